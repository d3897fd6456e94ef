"""The fleet a trace is replayed on: hosted deployments, their engines, and which engine a request goes to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal, get_args

import numpy as np

from pie_p.cases import OF_REQUEST, case_of
from pie_p.deployment import Deployment, deploy
from pie_p.errors import InputError
from pie_p.predictor import Predictor
from pie_p.quantities import as_int, shown
from pie_p.replay_engine import Engine, EngineSetup
from pie_p.replay_surface import Surface, make_surface
from pie_p.step_costs import step_tables
from pie_p.traces import RequestTrace

Routing = Literal["least_loaded", "round_robin"]
ROUTINGS: Final[tuple[Routing, ...]] = get_args(Routing)
Preemption = Literal["recompute", "reserve"]
PREEMPTIONS: Final[tuple[Preemption, ...]] = get_args(Preemption)


@dataclass(frozen=True, kw_only=True)
class Hosted:
    """A deployment that serves, and how many engines of it."""

    deployment: Deployment  # as asked for
    engine: Deployment  # one engine of it: what steps together
    engines: int  # replicas times independent data-parallel ranks [-]
    max_sequences: int  # per data-parallel rank [-]
    chunk_tokens: int  # per data-parallel rank and iteration [-]

    @property
    def lanes(self) -> int:
        """Data-parallel ranks that step together [-]."""
        return self.engine.plan.dp

    @property
    def gpus(self) -> int:
        """Boards of all its engines [-]."""
        return self.engines * self.engine.plan.gpus

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        plan = self.deployment.plan
        return {
            "llm": self.deployment.llm.name,
            "gpu": self.deployment.cluster.gpu.name,
            "cluster": self.deployment.cluster.name,
            **{name: getattr(plan, name) for name in ("tp", "pp", "dp", "ep")},
            "dtype": self.deployment.dtype,
            "kv_dtype": self.deployment.kv_dtype,
            "serving_engine": str(self.deployment.engine),
            "engines": self.engines,
            "gpus": self.gpus,
            "max_sequences": self.max_sequences,
            "chunk_tokens": self.chunk_tokens,
        }


def host(
    arguments: Mapping[str, Any], *, replicas: object = 1, max_sequences: object | None = None, chunk_tokens: object | None = None
) -> Hosted:
    """A checked deployment with its engines.

    Args:
        arguments: of `predict_energy` that name a deployment, `llm` among them.
        replicas: how many of it [-].
        max_sequences: in flight at once on a data-parallel rank; default what the engine's graphs hold [-].
        chunk_tokens: tokens of an iteration on a data-parallel rank; default the engine's [-].

    Raises:
        PiePError: as `predict_energy` does; a power cap or a batch, which a replay does not take.
    """
    stray = [name for name in OF_REQUEST if arguments.get(name) is not None]
    if stray:
        raise InputError(f"{stray[0]} = {shown(arguments[stray[0]])} is given for a replay, whose load comes from the trace; leave it out")
    if arguments.get("power_limit_w") is not None:
        raise InputError(
            f"power_limit_w = {shown(arguments['power_limit_w'])}: a replay runs at the board's own limit; leave it out, or give a Gpu "
            "with that limit_w"
        )
    case = case_of(arguments, prompt_tokens=1, output_tokens=1)
    whole, copies = case.deployment, as_int("replicas", replicas, most=100_000)
    plan, apart = whole.plan, whole.plan.dp > 1 and not whole.plan.attention_dp
    engine = whole
    if apart:
        single = replace(plan, dp=1)
        engine = deploy(whole.llm, plan=single, cluster=whole.cluster, engine=whole.engine, dtype=whole.dtype, kv_dtype=whole.kv_dtype)
    return Hosted(
        deployment=whole,
        engine=engine,
        engines=copies * (plan.dp if apart else 1),
        max_sequences=as_int("max_sequences", whole.engine.graph_sequences if max_sequences is None else max_sequences, most=16384),
        chunk_tokens=as_int("chunk_tokens", whole.engine.chunk_tokens if chunk_tokens is None else chunk_tokens, most=1 << 20),
    )


def setup_of(hosted: Hosted, trace: RequestTrace, predictor: Predictor, *, preemption: Preemption) -> EngineSetup:
    """What an engine of a hosted deployment may do with the requests of a trace; its surface is filled here.

    Raises:
        InputError: a request that no empty engine could hold; the text names the first.
    """
    engine, lanes = hosted.engine, hosted.lanes
    lengths = trace.prompt_tokens + trace.output_tokens
    longest, shortest = int(lengths.max()), int(lengths.min())
    most_bytes = engine.kv_bytes_per_gpu(sequences=1.0, context_tokens=float(longest))
    token_bytes = most_bytes - engine.kv_bytes_per_gpu(sequences=1.0, context_tokens=float(longest - 1))
    sequence_bytes = max(most_bytes - token_bytes * longest, 0.0)
    room = engine.free_bytes_per_gpu
    too_long = np.flatnonzero(sequence_bytes + token_bytes * lengths > room)
    if len(too_long):
        fits = int(max(room - sequence_bytes, 0.0) / token_bytes) if token_bytes else 0
        raise InputError(
            f"request {int(too_long[0])} of the trace has {int(lengths[too_long[0]])} tokens, and the KV cache of {engine.llm.name} on "
            f"{engine.plan} of {engine.cluster.gpu.name} holds {fits} ({len(too_long)} such requests); use more GPUs per engine, or "
            "leave them out with trace.only(...)"
        )
    at_most = int(lanes * room / max(sequence_bytes + token_bytes * shortest, 1.0)) + lanes
    sequences = max(min(hosted.max_sequences * lanes, len(trace), at_most), 1)  # that may ever decode together
    surface = _surface(_Known(predictor), engine, lanes, _power_of_two(sequences), _power_of_two(longest + 1), hosted.chunk_tokens)
    return EngineSetup(
        surface=surface,
        max_sequences=hosted.max_sequences,
        chunk_tokens=hosted.chunk_tokens,
        capacity_bytes=room * lanes,
        sequence_bytes=sequence_bytes,
        token_bytes=token_bytes,
        reserves=preemption == "reserve",
    )


@dataclass(frozen=True, eq=False)
class _Known:
    """A predictor that is equal to another of the same checksum."""

    predictor: Predictor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and self.predictor.sha256 == other.predictor.sha256

    def __hash__(self) -> int:
        return hash(self.predictor.sha256)


@lru_cache(maxsize=8)
def _surface(known: _Known, engine: Deployment, lanes: int, sequences: int, context: int, prompt: int) -> Surface:
    """Surfaces are kept: replays of other traces on the same deployment begin at once."""
    tables = step_tables(
        known.predictor, engine, most_sequences=max(sequences / lanes, 1.0), most_context=float(context), most_prompt=max(prompt, 2.0)
    )
    return make_surface(tables, most_sequences=sequences, most_context=float(context), most_prompt=float(prompt), lanes=lanes)


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 1).bit_length()


def run_fleet(
    engines: Sequence[Engine], trace: RequestTrace, *, routing: Routing, progress: Callable[[str, float, float], None] | None = None
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Send every request to an engine and run them all to the end.

    Args:
        engines: fresh ones.
        trace: arrivals.
        routing: "round_robin" by turns; "least_loaded" to the engine with the fewest requests in flight, by turns among equals.
        progress: told about every hundredth of the trace.

    Returns:
        The engine of each request.
    """
    arrivals = (trace.arrival_s - trace.arrival_s[0]).tolist()
    prompts, outputs = trace.prompt_tokens.tolist(), trace.output_tokens.tolist()
    cached = [0] * len(trace) if trace.cached_prompt_tokens is None else trace.cached_prompt_tokens.tolist()
    went = np.zeros(len(trace), dtype=np.int64)
    count, turn, every = len(engines), 0, max(len(trace) // 100, 1)
    for number, at_s in enumerate(arrivals):
        if routing == "least_loaded" and count > 1:
            for engine in engines:
                engine.advance(at_s)
            loads = [engine.load for engine in engines]
            least = min(loads)
            turn = next(place % count for place in range(turn, turn + count) if loads[place % count] == least)
        else:
            engines[turn].advance(at_s)
        engines[turn].submit(number, at_s, prompt=prompts[number], cached=cached[number], output=outputs[number])
        went[number] = turn
        turn = (turn + 1) % count
        if progress is not None and number % every == 0:
            progress(f"{number} of {len(trace)} requests", float(number), float(len(trace)))
    for engine in engines:
        engine.advance(math.inf)
    return went
