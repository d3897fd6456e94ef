"""Replaying: the energy of real traffic, request by request, on a fleet of engines with continuous batching.

    trace ── route ──▶ engines (iterations timed by the predictor) ──▶ joules per segment ──▶ joules per request, power per time bin

What all requests answer for and what the fleet draws idle add up to the fleet's energy exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from pie_p.accounting import Accounting, Scope
from pie_p.engine import Engine as ServingEngine
from pie_p.errors import InputError
from pie_p.hardware import Cluster, Gpu
from pie_p.llm import LLM
from pie_p.physics import Floats
from pie_p.predictor import Predictor, load_predictor
from pie_p.quantities import as_float, shown
from pie_p.replay_energy import ATTRIBUTIONS, Attribution, Spent, cut, spend
from pie_p.replay_engine import Engine
from pie_p.replay_hosting import PREEMPTIONS, ROUTINGS, Hosted, Preemption, Routing, host, run_fleet, setup_of
from pie_p.replay_result import PowerBins, Replay
from pie_p.traces import RequestTrace
from pie_p.units import Dtype

Progress = Callable[[str, float, float], None]
MOST_BINS: Final = 2_000_000


def replay(
    trace: RequestTrace,
    llm: str | LLM | Mapping[str, object],
    *,
    gpu: str | Gpu | None = None,
    cluster: str | Cluster | None = None,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: int = 1,
    micro_batches: int | None = None,
    replicas: int = 1,
    dtype: Dtype | None = None,
    kv_dtype: Dtype | None = None,
    engine: str | ServingEngine = "vllm",
    max_sequences: int | None = None,
    chunk_tokens: int | None = None,
    preemption: Preemption = "recompute",
    routing: Routing = "least_loaded",
    attribution: Attribution = "marginal",
    scope: Scope = "gpu",
    pue: float | None = None,
    bin_s: float | None = None,
    predictor: str | Predictor | None = None,
    progress: Progress | None = None,
) -> Replay:
    """Serve a trace with replicas of one deployment, and say what every request costs.

    Args:
        trace: arrivals, from `load_trace` or `synthetic_trace`.
        llm: as in `predict_energy`.
        gpu: catalogue name or a `Gpu`; stands for the board's common host.
        cluster: name, TOML file or `Cluster`, instead of `gpu`.
        tp: tensor-parallel ranks [-].
        pp: pipeline stages [-].
        dp: data-parallel ranks: engines of their own, or attention-DP when `ep > 1` [-].
        ep: ranks the experts are spread over [-].
        micro_batches: pieces of a batch in the pipeline; default `pp` [-].
        replicas: copies of the deployment; the fleet has `replicas * tp * pp * dp` GPUs [-].
        dtype: storage of the weights; default as the checkpoint says.
        kv_dtype: storage of the KV cache; default as the checkpoint says.
        engine: "vllm", "sglang", "trtllm", optionally with a version.
        max_sequences: requests in flight at once on a data-parallel rank; default what the engine's graphs hold [-].
        chunk_tokens: tokens of one iteration on a data-parallel rank; default the engine's [-].
        preemption: "recompute" (the request admitted last gives way when the KV cache is full, and is read again) or "reserve" (a request
            waits until its whole life fits).
        routing: "least_loaded" or "round_robin".
        attribution: "marginal" or "proportional": how a step's joules are shared among the requests in it (docs/method.md).
        scope: "gpu" boards, "host" with CPU, memory, fans and PSU loss, "facility" with PUE.
        pue: power usage effectiveness, for scope "facility" [-].
        bin_s: width of the power bins; default about 500 of them [s].
        predictor: as in `predict_energy`.
        progress: called with a text, requests done and all.

    Returns:
        A `Replay`: times and joules of every request in arrays, idle apart, power per GPU over time.

    Raises:
        PiePError: with one line that says what came, what is allowed and what to do.

    >>> from pie_p.traces import synthetic_trace
    >>> trace = synthetic_trace(requests=50, rate_per_s=2, prompt_tokens=500, output_tokens=100, seed=1)
    >>> served = replay(trace, "llama-3.1-8b", gpu="h100-sxm-80gb")
    >>> bool(abs(served.request_j.sum() + served.idle_j - served.energy_j) < 1e-9 * served.energy_j)
    True
    """
    arguments = {
        "llm": llm, "gpu": gpu, "cluster": cluster, "tp": tp, "pp": pp, "dp": dp, "ep": ep, "micro_batches": micro_batches, "dtype": dtype,
        "kv_dtype": kv_dtype, "engine": engine, "replicas": replicas, "max_sequences": max_sequences, "chunk_tokens": chunk_tokens,
    }  # fmt: skip
    return replay_fleet(
        trace, [arguments], preemption=preemption, routing=routing, attribution=attribution, scope=scope, pue=pue, bin_s=bin_s,
        predictor=predictor, progress=progress,
    )  # fmt: skip


def replay_fleet(
    trace: RequestTrace,
    fleet: Sequence[Mapping[str, Any]],
    *,
    preemption: Preemption = "recompute",
    routing: Routing = "least_loaded",
    attribution: Attribution = "marginal",
    scope: Scope = "gpu",
    pue: float | None = None,
    bin_s: float | None = None,
    predictor: str | Predictor | None = None,
    progress: Progress | None = None,
) -> Replay:
    """Serve a trace with several deployments at once; every request may go to any of them.

    Args:
        trace: arrivals.
        fleet: one mapping per deployment: arguments of `replay` that name it, with `replicas`, `max_sequences`, `chunk_tokens`.
        preemption: as in `replay`, like all that follow.
        routing: least loaded or round robin over all engines.
        attribution: marginal or proportional.
        scope: gpu, host or facility.
        pue: for the facility [-].
        bin_s: width of the power bins [s].
        predictor: what answers.
        progress: called with a text, requests done and all.

    Raises:
        PiePError: as `replay` does.
    """
    for name, value, allowed in (
        ("preemption", preemption, PREEMPTIONS),
        ("routing", routing, ROUTINGS),
        ("attribution", attribution, ATTRIBUTIONS),
    ):
        if not isinstance(value, str) or value not in allowed:
            raise InputError(f"{name} = {shown(value)} is not known; allowed: {', '.join(allowed)}")
    if not len(trace):
        raise InputError("the trace has no requests; a replay needs at least one")
    if not fleet:
        raise InputError("the fleet has no deployments; give at least one")
    width_s = None if bin_s is None else as_float("bin_s", bin_s, above=True)
    accounting, answering = Accounting(scope=scope, pue=pue), load_predictor(predictor)
    hosted = tuple(_host(one) for one in fleet)
    setups = [setup_of(one, trace, answering, preemption=preemption) for one in hosted]
    engines = [Engine(setup) for setup, one in zip(setups, hosted, strict=True) for _ in range(one.engines)]
    went = run_fleet(engines, trace, routing=routing, progress=progress)
    spent = [spend(one.setup.surface, one.segments, one.chunks, one.stays, requests=len(trace), rule=attribution) for one in engines]
    return _put_together(trace, hosted, engines, spent, went, accounting, width_s, answering, (routing, attribution))


def _host(one: Mapping[str, Any]) -> Hosted:
    if not isinstance(one, Mapping):
        raise InputError(f"{shown(one)} is no deployment of a fleet; give a table like {{'llm': 'llama-3.1-8b', 'gpu': 'h100-sxm-80gb'}}")
    own = ("replicas", "max_sequences", "chunk_tokens")
    return host({name: value for name, value in one.items() if name not in own}, **{name: one[name] for name in own if name in one})


def _put_together(
    trace: RequestTrace,
    hosted: tuple[Hosted, ...],
    engines: Sequence[Engine],
    spent: Sequence[Spent],
    went: NDArray[np.int64],
    accounting: Accounting,
    bin_s: float | None,
    predictor: Predictor,
    rules: tuple[Routing, Attribution],
) -> Replay:
    requests, arrival_s = len(trace), trace.arrival_s - trace.arrival_s[0]
    started, first, finished = (_by_request(engines, name, requests) for name in ("started_s", "first_s", "finished_s"))
    duration_s = float(finished.max())
    kinds = np.sum([one.request_j for one in spent], axis=0)
    gpu_j, outputs = kinds.sum(axis=1), trace.output_tokens
    owners = [one for one in hosted for _ in range(one.engines)]
    factors = np.array([_factors(accounting, one) for one in owners])  # host watts, host per GPU joule, facility per joule
    idle_s = np.array([duration_s - one.busy_s for one in spent])
    idle_w = np.array([one.engine.cluster.gpu.active_idle_w * one.engine.plan.gpus for one in owners])
    host_j = factors[went, 0] * np.sum([one.request_s for one in spent], axis=0) + factors[went, 1] * gpu_j
    idle_host_j = factors[:, 0] * idle_s + factors[:, 1] * idle_w * idle_s
    wide, site = accounting.scope != "gpu", accounting.scope == "facility"
    idle_j = idle_w * idle_s + idle_host_j * wide
    return Replay(
        trace=trace,
        fleet=hosted,
        engine=went,
        queue_s=started - arrival_s,
        ttft_s=first - arrival_s,
        tpot_s=np.where(outputs > 1, (finished - first) / np.maximum(outputs - 1, 1), np.nan),
        latency_s=finished - arrival_s,
        compute_j=kinds[:, 0],
        communication_j=kinds[:, 1],
        wait_j=kinds[:, 2],
        host_j=host_j if wide else None,
        facility_j=factors[went, 2] * (gpu_j + host_j) if site else None,
        preemptions=_by_request(engines, "given_way", requests, missing=0.0).astype(np.int64),
        idle_j=float((idle_j * (1.0 + factors[:, 2] * site)).sum()),
        duration_s=duration_s,
        iterations=sum(one.steps for engine in engines for one in engine.segments),
        segments=sum(len(engine.segments) for engine in engines),
        decoded_tokens=_decoded(engines),
        prefilled_tokens=sum(one.tokens for engine in engines for one in engine.chunks),
        bins=_bins(trace, owners, spent, arrival_s, finished, duration_s, bin_s),
        scope=accounting.scope,
        routing=rules[0],
        attribution=rules[1],
        predictor={"name": predictor.name, "sha256": predictor.sha256},
        warnings=_warnings(trace, hosted),
    )


def _by_request(engines: Sequence[Engine], name: str, requests: int, *, missing: float = math.nan) -> Floats:
    values = np.full(requests, missing)
    for engine in engines:
        found = getattr(engine, name)
        values[list(found.keys())] = list(found.values())
    return values


def _decoded(engines: Sequence[Engine]) -> int:
    """Tokens that decode iterations wrote, and one per prompt that was read to its end (once more each time one gave way)."""
    decoded = sum(one.steps * one.decoding for engine in engines for one in engine.segments)
    return decoded + sum(engine.prompts_read for engine in engines)


def _factors(accounting: Accounting, hosted: Hosted) -> tuple[float, float, float]:
    """Host watts while an engine runs, host joules per GPU joule, facility joules per joule of both."""
    if accounting.scope == "gpu":
        return 0.0, 0.0, 0.0
    still = accounting.breakdown((0.0, 0.0, 0.0), seconds=1.0, deployment=hosted.engine)
    loaded = accounting.breakdown((1.0, 0.0, 0.0), seconds=0.0, deployment=hosted.engine)
    return cast(float, still.host_j), cast(float, loaded.host_j), (accounting.pue or 1.0) - 1.0


def _bins(
    trace: RequestTrace,
    owners: Sequence[Hosted],
    spent: Sequence[Spent],
    arrival_s: Floats,
    finished_s: Floats,
    duration_s: float,
    bin_s: float | None,
) -> PowerBins:
    width_s = bin_s or _round_width(duration_s / 500.0)
    if duration_s / width_s > MOST_BINS:
        raise InputError(f"bin_s = {width_s:g} makes more than {MOST_BINS} bins of {duration_s:g} s; give a wider one")
    count = max(math.ceil(duration_s / width_s), 1)
    start_s = np.arange(count) * width_s
    widths = np.minimum(width_s, duration_s - start_s)
    power_w, busy_s = np.zeros((count, len(spent))), np.zeros((count, len(spent)))
    for number, (one, owner) in enumerate(zip(spent, owners, strict=True)):
        idle_w = owner.engine.cluster.gpu.active_idle_w
        boards = owner.engine.plan.gpus
        if len(one.start_s):
            segment, cell, seconds = cut(one.start_s, one.end_s, width_s)
            cell = np.minimum(cell, count - 1)
            mean_w = one.segment_j.sum(axis=1) / np.maximum(one.end_s - one.start_s, 1e-30)
            busy_s[:, number] = np.bincount(cell, weights=seconds, minlength=count)
            power_w[:, number] = np.bincount(cell, weights=seconds * mean_w[segment], minlength=count)
        power_w[:, number] = (power_w[:, number] / boards + idle_w * (widths - busy_s[:, number])) / widths
    _, cell, seconds = cut(arrival_s, finished_s, width_s)
    boards_of = np.array([float(owner.engine.plan.gpus) for owner in owners])
    return PowerBins(
        start_s=start_s + trace.arrival_s[0],
        width_s=widths,
        power_w=power_w,
        in_flight=np.bincount(np.minimum(cell, count - 1), weights=seconds, minlength=count) / widths,
        busy=busy_s @ boards_of / (widths * boards_of.sum()),
    )


def _round_width(seconds: float) -> float:
    """1, 2 or 5 times a power of ten, at least a second."""
    if seconds <= 1.0:
        return 1.0
    tens = 10.0 ** math.floor(math.log10(seconds))
    return next(factor * tens for factor in (1.0, 2.0, 5.0, 10.0) if factor * tens >= seconds * 0.999)


def _warnings(trace: RequestTrace, fleet: Sequence[Hosted]) -> tuple[str, ...]:
    texts = [f"{trace.name}: {rows}" for rows in trace.bad_rows]
    lengths = trace.prompt_tokens + trace.output_tokens
    for one in fleet:
        llm = one.deployment.llm
        if llm.max_context and (longer := int((lengths > llm.max_context).sum())):
            texts.append(f"{longer} requests are longer than the {llm.max_context} tokens that {llm.name} was trained for")
        if one.deployment.engine.asked:
            asked = one.deployment.engine
            texts.append(f"{asked.name}=={asked.asked} was asked for; the costs are those of {asked}")
        texts += llm.notes
    return tuple(dict.fromkeys(texts))
