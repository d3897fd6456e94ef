"""Tables of several answers for a terminal: a sweep with its Pareto front, and configurations side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from pie_p.candidates import FIGURES, Candidate
from pie_p.sweeping import Sweep
from pie_p.wording import SCOPE_WORDS, quantity

MOST_ROWS: Final = 25  # of a front in a terminal
COLUMNS: Final = ("J/token", "latency", "per token", "tokens/s", "J/request", "first token", "power", "memory")
WIDE: Final = 110  # letters from which all columns fit
WHY_WORDS: Final = {
    "plan": "whose degrees do not divide the LLM or exceed the cluster",
    "memory": "whose weights do not fit",
    "kv_cache": "whose batch's KV cache does not fit",
    "power_limit": "at a power limit that the board cannot hold",
}


def sweep_table(plans: Sweep, chosen: Candidate, objective: str, *, wide: bool = True) -> Group:
    """The Pareto front of latency and energy, and the plan that was chosen, marked; a narrow one leaves columns out."""
    front = plans.pareto()
    shown = front[:: max(1, -(-len(front) // MOST_ROWS))]
    if not any(each is chosen for each in shown):
        shown = sorted([*shown, chosen], key=lambda each: each.latency_s)
    count = "" if len(shown) >= len(front) else f", {len(shown)} of {len(front)} plans of the front"
    title = (
        f"{plans.title}\n{len(plans):,} feasible plans; Pareto front of latency and energy{count}; → the best by {FIGURES[objective].words}"
    )
    formats = {each.dtype for each in shown}
    common = f", {formats.pop()}" if len(formats) == 1 and not wide else ""  # said once where columns are short
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column(f"plan{common}", overflow="fold")
    heads = COLUMNS if wide else COLUMNS[:4]
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for each in shown:
        mark = "→" if each is chosen else ""
        table.add_row(mark, each.plan.replace(common, "", 1), *_figures(each)[: len(heads)], style="bold" if each is chosen else None)
    return Group(Text(title), table)


def _limit_words(limits: Mapping[str, float | None]) -> str:
    """The limits that were given, in words.

    >>> _limit_words({"max_tpot_s": 0.03, "max_gpus": None, "margin": 0.05})
    ' with time per output token after the first at most 30.0 ms, margin 5 %'
    """
    words = []
    for name, limit in limits.items():
        bound, _, figure = name.partition("_")
        if limit is not None and figure in FIGURES:
            known = FIGURES[figure]
            value = quantity(limit, known.unit).strip() if known.unit in ("s", "W") else f"{limit:g}"
            words.append(f"{known.words} at {'most' if bound == 'max' else 'least'} {value}")
    if words and limits.get("margin"):
        words.append(f"margin {100 * (limits['margin'] or 0):g} %")
    return f" with {', '.join(words)}" if words else ""


def _figures(each: Candidate) -> tuple[str, ...]:
    return (
        quantity(each.energy_per_output_token_j, "J"),
        quantity(each.latency_s, "s"),
        quantity(each.tpot_s, "s"),
        quantity(each.tokens_per_s, ""),
        quantity(each.energy_j, "J"),
        quantity(each.ttft_s, "s"),
        quantity(each.avg_power_w, "W"),
        f"{100 * each.memory_share:.0f} %",
    )


def sweep_footer(plans: Sweep, chosen: Candidate, objective: str, *, limits: Mapping[str, float | None] | None = None) -> list[str]:
    """What was chosen under which limits (by name as in `Sweep.best`), what was left out and why, and the scope."""
    lines = [f"best by {FIGURES[objective].words}{_limit_words(limits or {})}: {chosen.plan}"]
    if chosen.interval_low_j is not None:
        low, high = quantity(chosen.interval_low_j, "J"), quantity(chosen.interval_high_j, "J")
        lines.append(f"its energy per request: {quantity(chosen.energy_j, 'J')}, 90 % interval {low} to {high}")
    why: Counter[str] = Counter()
    for each in plans.infeasible:
        why[each.why] += each.configurations
    lines += [f"cannot run: {count:,} {WHY_WORDS[name]}" for name, count in why.items()]
    lines.append(f"scope {plans.scope} ({SCOPE_WORDS[plans.scope]}) · predictor {plans.predictor.name} ({plans.predictor.sha256[:8]})")
    return lines + [f"warning: {text}" for text in chosen.warnings]


# Side by side

COMPARED: Final = (
    ("energy_j", "energy per request", "J"),
    ("energy_per_output_token_j", "energy per output token", "J"),
    ("breakdown.compute_j", "  compute", "J"),
    ("breakdown.communication_j", "  communication", "J"),
    ("breakdown.wait_j", "  wait", "J"),
    ("breakdown.host_j", "  host", "J"),
    ("breakdown.facility_j", "  facility", "J"),
    ("latency_s", "latency", "s"),
    ("ttft_s", "time to first token", "s"),
    ("tpot_s", "time per output token", "s"),
    ("avg_power_w", "power of all GPUs", "W"),
    ("tokens_per_s", "output tokens per second", ""),
)
SETTINGS: Final = (
    "llm", "gpu", "gpus", "tp", "pp", "dp", "ep", "batch", "dtype", "kv_dtype", "prompt_tokens", "cached_prompt_tokens", "output_tokens",
    "engine", "mode", "power_limit_w", "scope",
)  # fmt: skip


def figure_at(answer: Mapping[str, Any], path: str) -> float | None:
    """A figure of an answer by its path; None where it has none.

    >>> figure_at({"breakdown": {"wait_j": 2.0}}, "breakdown.wait_j")
    2.0
    """
    if path == "tokens_per_s":
        each_s = answer.get("time_per_token_s")
        return answer["batch"] * answer["dp"] / each_s if each_s else None
    value: Any = answer
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if value is None else float(value)


def ratios(answers: Sequence[Mapping[str, Any]]) -> list[dict[str, float | None]]:
    """Every figure of every answer over that of the first; None where one of the two is missing or the first is 0.

    >>> ratios([{"energy_j": 2.0}, {"energy_j": 1.0}])[1]["energy_j"]
    0.5
    """
    return [
        {
            path: value / base if (base := figure_at(answers[0], path)) and (value := figure_at(each, path)) is not None else None
            for path, _, _ in COMPARED
            if path != "tokens_per_s" or "batch" in each
        }
        for each in answers
    ]


def comparison_table(answers: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Group:
    """Configurations side by side, each figure with its ratio to the first."""
    same, heads = _heads(answers, names)
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for head in heads:
        table.add_column(Text(head), justify="right")
    over = ratios(answers)
    for path, words, unit in COMPARED:
        values = [figure_at(each, path) for each in answers]
        if any(value is not None for value in values):
            cells = [
                _cell(value, ratio.get(path), unit, first=number == 0)
                for number, (value, ratio) in enumerate(zip(values, over, strict=True))
            ]
            table.add_row(words, *cells)
    return Group(Text(same), table)


def _heads(answers: Sequence[Mapping[str, Any]], names: Sequence[str]) -> tuple[str, list[str]]:
    """What all have in common, and for each what sets it apart."""
    apart = [name for name in SETTINGS if len({str(each.get(name)) for each in answers}) > 1]
    first = answers[0]
    shared = ", ".join(f"{name} {_plain(first[name])}" for name in SETTINGS if name not in apart and first.get(name) not in (None, 0))
    heads = [
        "\n".join([name, *(f"{key} {_plain(each.get(key))}" for key in apart)]).strip() for name, each in zip(names, answers, strict=True)
    ]
    return shared, heads


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(value: float | None, ratio: float | None, unit: str, *, first: bool) -> str:
    beside = "" if first or ratio is None else f"  ({ratio:.2f}x)"
    return quantity(value, unit).strip() + beside


def comparison_footer(answers: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Where the figures come from, and what sets the answers apart that is no setting."""
    by = {f"{each['predictor']['name']} ({each['predictor']['sha256'][:8]})" for each in answers}
    lines = [f"ratios to {names[0] or 'the first'} · predictor {', '.join(sorted(by))}"]
    if len(by) > 1:
        lines.append("warning: the answers come from different predictors, so their ratios mix two methods")
    if len({each["scope"] for each in answers}) > 1:
        lines.append("warning: the answers count different watts (scope), so their ratios mean little")
    warned = dict.fromkeys((name, text) for name, each in zip(names, answers, strict=True) for text in each["warnings"])
    return lines + [f"warning: {name + ': ' if name else ''}{text}" for name, text in warned]
