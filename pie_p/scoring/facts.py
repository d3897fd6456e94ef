"""Facts about each run that the baselines read: what anyone knows before it runs, and what counting and data sheets say about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pie_p.end_to_end import MeasuredRuns
from pie_p.features import KIND_CODE
from pie_p.fitting import Physics, seconds_per_token
from pie_p.physics import Floats, is_collective
from pie_p.scoring.folds import run_physics
from pie_p.serving import WAIT_CAUSES, Assembly, Case
from pie_p.units import BYTES_PER_VALUE

GROUPS: Final = ("dense", "experts", "attention over the cache", "attention over prompts", "norms and others", "communication")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Figures per run."""

    raw: Floats  # (runs, RAW): shape, plan, request and board, in logarithms
    scaled: Floats  # (runs, SCALED): work of one step over the board's peaks, and ratios, in logarithms
    physical: Floats  # (runs, ...): seconds, rates and shares of the unfitted physics, in logarithms where they span decades
    gpus: Floats  # [-]
    running: Floats  # requests in flight over all ranks [-]
    limit_w: Floats  # power limit in force [W]
    prompt_tokens: Floats  # [-]
    output_tokens: Floats  # [-]
    active_parameters: Floats  # [-]
    roofline_j: Floats  # (runs, 2 * compute groups): memory and compute time at the data sheet's peaks times the limit [J per output token]


RAW: Final = (
    "batch", "dp", "gpus", "tp", "ep", "hidden size", "layers", "parameters", "active parameters", "weight bytes", "KV bytes per token",
    "experts per token", "prompt tokens", "output tokens", "length spread", "bandwidth", "peak FLOP/s", "power limit",
)  # fmt: skip
SCALED: Final = ("active weight time", "stored weight time", "cache time", "batch", "gpus", "prompt per output")


def facts_of(runs: MeasuredRuns, assembly: Assembly, prior: Physics) -> Facts:
    """Facts of every run, from its deployment and from the unfitted physics."""
    limit_w = np.array([case.power_limit_w or case.deployment.cluster.gpu.limit_w for case in runs.cases])
    return Facts(
        scaled=np.log(np.array([_scaled(case) for case in runs.cases], dtype=np.float64)),
        raw=np.log(np.array([_raw(case) for case in runs.cases], dtype=np.float64)),
        physical=_physical(assembly, prior),
        gpus=runs.gpus.astype(np.float64),
        running=np.array([case.request.batch * case.deployment.plan.dp for case in runs.cases]),
        limit_w=limit_w,
        prompt_tokens=np.array([case.request.prompt_tokens for case in runs.cases]),
        output_tokens=np.array([case.request.mean_output_tokens for case in runs.cases]),
        active_parameters=np.array([float(case.deployment.llm.active_parameters) for case in runs.cases]),
        roofline_j=_roofline_j(assembly, limit_w),
    )


def _raw(case: Case) -> tuple[float, ...]:
    request, where = case.request, case.deployment
    llm, plan, gpu = where.llm, where.plan, where.cluster.gpu
    return (
        request.batch,
        plan.dp,
        plan.gpus,
        plan.tp,
        plan.ep,
        llm.hidden_size,
        len(llm.layers),
        llm.parameters,
        llm.active_parameters,
        llm.active_parameters * BYTES_PER_VALUE[where.dtype],
        llm.kv_bytes_per_token(where.kv_dtype),
        1 + where.experts_per_token,
        request.prompt_tokens,
        request.mean_output_tokens,
        request.length_spread,
        gpu.hbm_bytes_per_s,
        gpu.peak(where.dtype),
        case.power_limit_w or gpu.limit_w,
    )


def _scaled(case: Case) -> tuple[float, ...]:
    """Seconds to read active weights, stored weights and the running requests' cache once [s]; batch, GPUs, prompt over output [-]."""
    request, where = case.request, case.deployment
    together = where.plan.gpus * where.cluster.gpu.hbm_bytes_per_s
    context = request.prompt_tokens + request.mean_output_tokens * request.length_spread / 2
    cache = request.batch * where.plan.dp * context * where.llm.kv_bytes_per_token(where.kv_dtype)
    return (
        where.llm.active_parameters * BYTES_PER_VALUE[where.dtype] / together,
        where.llm.weight_bytes(where.dtype) / together,
        cache / together,
        request.batch,
        where.plan.gpus,
        request.prompt_tokens / request.mean_output_tokens,
    )


def row_group(assembly: Assembly) -> NDArray[np.int64]:
    """For each row its place in `GROUPS`."""
    kind = assembly.columns["kind_code"]
    group = np.full(len(kind), GROUPS.index("norms and others"))
    for kinds, name in (
        (("linear", "lm_head", "router"), "dense"),
        (("experts",), "experts"),
        (("attention_decode", "scan"), "attention over the cache"),
        (("attention_prefill",), "attention over prompts"),
    ):
        group[np.isin(kind, [KIND_CODE[each] for each in kinds])] = GROUPS.index(name)
    group[is_collective(assembly.columns)] = GROUPS.index("communication")
    return group


def per_token(assembly: Assembly, values: Floats) -> Floats:
    """Sum of a row's value over a life, per output token and per group of operators: (runs, groups)."""
    lives = assembly.decode_steps + assembly.prefill_steps
    row_step = assembly.stage_step[assembly.row_stage]
    weights = assembly.calls * values * lives[row_step]
    count, groups = len(assembly.cases), len(GROUPS)
    sums = np.bincount(assembly.row_case * groups + row_group(assembly), weights=weights, minlength=count * groups)
    tokens = np.array([plan.output_tokens for plan in assembly.schedules])
    return np.asarray(sums.reshape(count, groups) / tokens[:, None])


def waits_per_token(assembly: Assembly, waits_s: Floats) -> Floats:
    """The same for one cause of waiting: (runs,)."""
    lives = assembly.decode_steps + assembly.prefill_steps
    stage_case = assembly.step_case[assembly.stage_step]
    weights = waits_s * lives[assembly.stage_step]
    tokens = np.array([plan.output_tokens for plan in assembly.schedules])
    return np.asarray(np.bincount(stage_case, weights=weights, minlength=len(assembly.cases)) / tokens)


def _physical(assembly: Assembly, prior: Physics) -> Floats:
    run = run_physics(assembly, prior)
    seconds, _ = seconds_per_token(assembly, run.clock)
    groups_s = per_token(assembly, run.time_s)
    waits_s = np.column_stack([waits_per_token(assembly, run.clock.waits_s[cause]) for cause in WAIT_CAUSES])
    columns = assembly.columns
    flop_s = per_token(assembly, columns["flops"] / columns["peak_flops_per_s"]).sum(axis=1) / seconds
    byte_s = per_token(assembly, columns["hbm_bytes"] / columns["hbm_bytes_per_s"]).sum(axis=1) / seconds
    logs = np.log(np.maximum(np.column_stack([seconds, groups_s, waits_s]), 1e-9))
    shares = np.column_stack([groups_s, waits_s]) / seconds[:, None]
    batch = np.log([case.request.batch for case in assembly.cases])
    gpus = np.log([case.deployment.plan.gpus for case in assembly.cases])
    return np.column_stack([logs, shares, flop_s, byte_s, batch, gpus])


def _roofline_j(assembly: Assembly, limit_w: Floats) -> Floats:
    """Joules of compute operators at the data sheet's peaks and the power limit, memory and FLOPs apart, over all ranks."""
    columns = assembly.columns
    on_ranks = assembly.stage_ranks[assembly.row_stage]
    running = np.array([plan.sharing for plan in assembly.schedules])
    memory_s = per_token(assembly, on_ranks * columns["hbm_bytes"] / columns["hbm_bytes_per_s"])
    compute_s = per_token(assembly, on_ranks * columns["flops"] / columns["peak_flops_per_s"])
    compute = [number for number, name in enumerate(GROUPS) if name != "communication"]
    return np.asarray(np.column_stack([memory_s[:, compute], compute_s[:, compute]]) * (limit_w / running)[:, None])
