"""Windows: what a server did between two scrapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pie_p.watch.dialects import GAUGES, Dialect, Role

# A counter that stands below its last value has begun anew; summing floats over engines may take off this share without a restart.
ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One engine between two scrapes. None stands for what the server does not tell."""

    seconds: float  # [s]
    prompt_tokens: float | None  # read, cached ones included [-]
    cached_tokens: float  # of those, found in the prefix cache [-]
    new_prompt_tokens: float | None  # prompt tokens computed by now; None where they only count when a request ends [-]
    output_tokens: float | None  # made [-]
    prompts: float | None  # requests whose prompt was read [-]
    finished: float | None  # requests that ended [-]
    steps: float | None  # engine steps [-]
    step_tokens: float | None  # output tokens made in those steps [-]
    busy_s: float | None  # in which the GPU worked [s]
    itl_sum_s: float | None  # time between tokens, sum over samples [s]
    itl_count: float | None  # its samples [-]
    running: tuple[float, float] | None  # requests that run, at both ends [-]
    waiting: tuple[float, float] | None  # requests that wait, at both ends [-]
    live_tokens: bool  # tokens are counted as they are made, not when a request ends
    resets: int  # counters that began anew: the server was restarted [-]


def between(before: Mapping[Role, float], after: Mapping[Role, float], *, seconds: float, dialect: Dialect) -> Window:
    """What happened from one reading of an engine to the next.

    A counter below its last value was reset, and counts from zero: what the server did before it died since the last scrape is lost.
    """
    resets = sum(_fell(before[role], after[role]) for role in after if role in before and role not in GAUGES)
    grown = {role: _grown(before, after, role, anew=resets > 0) for role in after if role not in GAUGES}
    first, itl = grown.get("first_tokens"), grown.get("itl_count")
    later = grown.get("live_output_tokens", None if dialect.live_tokens or dialect.server == "trtllm" else itl)
    live = dialect.live_tokens or (later is not None and first is not None)
    output = later + first if live and not dialect.live_tokens and later is not None and first is not None else grown.get("output_tokens")
    cached, read = _cached(grown, after), grown.get("prompt_tokens")
    new = grown.get("live_prompt_tokens", read - cached if dialect.live_tokens and read is not None else None)
    return Window(
        seconds=seconds,
        prompt_tokens=read,
        cached_tokens=cached,
        new_prompt_tokens=new,
        output_tokens=output,
        prompts=first,
        finished=grown.get("finished"),
        steps=grown.get("steps"),
        step_tokens=output if dialect.live_tokens else later,
        busy_s=grown.get("busy_s"),
        itl_sum_s=grown.get("itl_sum"),
        itl_count=itl,
        running=_ends(before, after, "running"),
        waiting=_ends(before, after, "waiting"),
        live_tokens=live,
        resets=resets,
    )


def _fell(before: float, after: float) -> bool:
    return after < before * (1.0 - ROUNDING)


def _grown(before: Mapping[Role, float], after: Mapping[Role, float], role: Role, *, anew: bool) -> float:
    """Growth of a counter; from zero after a restart, also where this counter has already overtaken its old value or is new."""
    return after[role] if anew else max(0.0, after[role] - before.get(role, 0.0))


def _cached(grown: Mapping[Role, float], after: Mapping[Role, float]) -> float:
    prompts = grown.get("prompt_tokens", 0.0)
    cached = grown["cached_tokens"] if "cached_tokens" in grown else after.get("cache_hit_rate", 0.0) * prompts
    return min(max(cached, 0.0), prompts)


def _ends(before: Mapping[Role, float], after: Mapping[Role, float], role: Role) -> tuple[float, float] | None:
    return (before[role], after[role]) if role in before and role in after else None
