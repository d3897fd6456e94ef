"""A campaign of parallel runs: a real transformer under each layout of a plan, into the four tables of a profile.

    name = "h100-runs"
    gpu = "h100-sxm-80gb"             # "cpu" for gloo
    backend = "nccl"                  # or "gloo"
    sequences = 8                     # per replica
    tokens = 1024                     # per sequence
    layouts = [{tp = 4}, {pp = 4, micro_batches = 4}, {tp = 2, pp = 2, micro_batches = 2}, {dp = 4}]

    [shape]                           # of the transformer
    layers = 8
    width = 4096

One row for every module and rank in `operators`, every meeting in `collectives`, every cause of waiting in `waits`, and the whole in
`end_to_end`. The parts make the whole: over all rows of a layout, calls x time x power (for waits count / steps x mean x power) is its
energy per step; what is left over stands in the whole's detail as `unexplained_j`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from pie_p import operators
from pie_p.errors import InputError
from pie_p.operators import COLLECTIVES, Operator
from pie_p.profiles import append_profile
from pie_p.profiling.benches import unmetered_bench
from pie_p.profiling.campaign import compact, finished, only_campaign, open_profile
from pie_p.profiling.intervals import Explained, explain
from pie_p.profiling.measurement import Bench
from pie_p.profiling.plans import AnyPlan
from pie_p.profiling.progress import OnProgress, Progress
from pie_p.profiling.ranks import Backend, Rank, run_ranks
from pie_p.profiling.rows import ORIGIN, digest, wait_table
from pie_p.profiling.runners import Layout, ParallelRun, check_layout, run_parallel
from pie_p.profiling.stamps import host_name
from pie_p.profiling.transformer import Shape
from pie_p.profiling.waits import Distribution
from pie_p.tables import Table

MakeBench = Callable[[Rank], Bench]


class RunPlan(AnyPlan):
    """Layouts of one transformer to run on one set of ranks."""

    backend: Backend = "gloo"
    link: str = ""  # how the ranks are joined, for the rows
    layouts: tuple[Layout, ...] = Field(min_length=1)
    shape: Shape = Shape()
    sequences: int = Field(default=4, ge=1, le=1 << 16)
    tokens: int = Field(default=16, ge=1, le=1 << 20)

    @model_validator(mode="after")
    def _fits(self) -> RunPlan:
        if (self.backend == "gloo") != (self.gpu == "cpu"):
            raise ValueError("gloo ranks compute on the CPU and nccl ranks on GPUs: gpu must be 'cpu' with gloo and only there")
        for layout in self.layouts:
            check_layout(layout, self.shape, sequences=self.sequences)
        return self


def name_of(layout: Layout) -> str:
    """What is run; equal names are run once.

    >>> name_of(Layout(tp=2, pp=2, micro_batches=2))
    'tp=2,pp=2,dp=1,micro_batches=2'
    """
    return f"tp={layout.tp},pp={layout.pp},dp={layout.dp},micro_batches={layout.micro_batches}"


def run_layouts(
    plan: RunPlan,
    folder: str | Path,
    *,
    make_bench: MakeBench = unmetered_bench,
    budget_s: float | None = None,
    on_progress: OnProgress | None = None,
    timeout_s: float = 3600.0,
) -> Progress:
    """Run the layouts that the profile at `folder` does not hold yet, on ranks of this host; arguments and errors as `run_meetings`."""
    place, start_s, made = Path(folder), time.monotonic(), 0
    with only_campaign(plan, place):
        for layout in plan.layouts:
            spent_s = time.monotonic() - start_s
            expected_s = spent_s / made if made else plan.procedure.enough_s
            if digest(name_of(layout)) in finished(place)[0] or (budget_s is not None and spent_s + expected_s > budget_s):
                continue
            body = partial(measure_layout, plan=plan, layout=layout, make_bench=make_bench, folder=place)
            run_ranks(body, layout.ranks, backend=plan.backend, timeout_s=timeout_s)
            made += 1
            if on_progress is not None:
                on_progress(_state(plan, place, (time.monotonic() - start_s) / made, name_of(layout)))
        progress = _state(plan, place, None, "nothing more")
        if progress.done == progress.total:
            compact(place)
    return progress


def _state(plan: RunPlan, place: Path, layout_s: float | None, now: str) -> Progress:
    names = {digest(name_of(layout)) for layout in plan.layouts}
    left = len(names - finished(place)[0])
    left_s = None if layout_s is None else left * layout_s
    return Progress(done=len(names) - left, total=len(names), rejected=0, left_s=left_s, now=now)


def measure_layout(rank: Rank, *, plan: RunPlan, layout: Layout, make_bench: MakeBench, folder: Path) -> None:
    """Run one layout: the body that every rank runs, under `torchrun` too. Rank 0 writes."""
    bench = make_bench(rank)
    if rank.index == 0:
        open_profile(plan, folder, bench, {"backend": plan.backend})
    enough_s = 0.0 if bench.timing is None else plan.procedure.enough_s
    run = run_parallel(
        rank,
        layout=layout,
        shape=plan.shape,
        sequences=plan.sequences,
        tokens=plan.tokens,
        steps=plan.procedure.enough_iterations,
        enough_s=enough_s,
        bench=bench,
    )
    hosts = rank.gather(host_name())
    if rank.index == 0:
        append_profile(folder, run_tables(run, plan, hosts=len(set(hosts)), origin=ORIGIN[bench.meter.identity.origin]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where rows of a run come from: columns that all of them share."""

    plan: RunPlan
    layout: Layout
    hosts: int
    origin: Any

    @property
    def shared(self) -> dict[str, Any]:
        """Columns of every table."""
        engine = {"engine": "torch", "kernel_source": "eager", "link": self.plan.link}
        return {"gpu": self.plan.gpu, "origin": self.origin, "source": self.plan.name, "hosts": float(self.hosts), **engine}

    def detail(self, more: str) -> str:
        """The layout and whatever else."""
        return f"point={digest(name_of(self.layout))},{name_of(self.layout)},{more}"


def run_tables(run: ParallelRun, plan: RunPlan, *, hosts: int, origin: Any) -> list[Table]:
    """Rows of one run: the whole, and its parts by rank."""
    where, found = Place(plan=plan, layout=run.layout, hosts=hosts, origin=origin), explained(run)
    rows = [_whole(run, where, found)]
    for index, intervals in enumerate(run.intervals):
        times: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for interval in intervals:
            times[interval.path, interval.kind, interval.cause].append(interval.time_s)
        rows += _parts(run, where, found, index, times)
    names = dict.fromkeys(row.name for row in rows)
    return [Table.concat([row for row in rows if row.name == name]) for name in names]


def explained(run: ParallelRun) -> Explained | None:
    """Powers by kind, and what the meters measured in all; None where one rank's power was not measured."""
    powers = [power for power in run.power if power is not None]
    if len(powers) < len(run.intervals):
        return None
    measured_j = 0.0
    for power, intervals in zip(powers, run.intervals, strict=True):
        start_s, end_s = intervals[0].start_s, intervals[-1].end_s
        inside = (power.ends_s - power.window_s >= start_s) & (power.ends_s <= end_s)
        if not inside.any():
            raise InputError(f"no update of the meter fell inside a run of {end_s - start_s:.3f} s; let it run longer (procedure.enough_s)")
        measured_j += float(power.readings_w[inside].mean()) * (end_s - start_s)
    rows = [(intervals, power.ends_s, power.readings_w) for intervals, power in zip(run.intervals, powers, strict=True)]
    return explain(rows, powers[0].window_s, measured_j)


def _whole(run: ParallelRun, where: Place, found: Explained | None) -> Table:
    """The run as a deployment that prefills `tokens` tokens and gives one back."""
    layout, plan, steps = run.layout, where.plan, len(run.steps_s[0])
    length_s = float(np.mean([intervals[-1].end_s - intervals[0].start_s for intervals in run.intervals]))
    requests = plan.sequences * layout.dp
    ratios = [power.counter_ratio for power in run.power if power is not None and power.counter_ratio is not None]
    left = "" if found is None else f",unexplained_j={found.unexplained_j / steps:.6g},measured_j={found.measured_j / steps:.6g}"
    columns = {
        **where.shared,
        "llm": f"transformer-{plan.shape.layers}x{plan.shape.width}",
        "workload": "prefill",
        "mode": "static",
        **{name: float(getattr(layout, name)) for name in ("tp", "pp", "dp")},
        "dtype": _dtype(plan),
        "batch": float(plan.sequences),
        "prompt_tokens": float(plan.tokens),
        "output_tokens": 1.0,
        "time_per_token_s": length_s / steps,
        "ttft_s": length_s / steps,
        "throughput_tokens_per_s": requests * steps / length_s,
        "energy_per_output_token_j": np.nan if found is None else found.measured_j / steps / requests,
        "avg_power_w": np.nan if found is None else found.measured_j / length_s,
        "meter_scope": "none" if found is None else "gpu",
        "detail": where.detail(f"steps={steps}{left}" + (f",counter_ratio={np.median(ratios):.4f}" if ratios else "")),
    }
    return Table.from_columns("end_to_end", columns)


def _parts(
    run: ParallelRun, where: Place, found: Explained | None, index: int, times: dict[tuple[str, str, str], list[float]]
) -> Iterator[Table]:
    """Rows of one rank: modules, meetings and waits."""
    power, steps = run.power[index], len(run.steps_s[index])
    uuid = "none" if power is None else power.uuid
    for (path, kind, cause), each_s in times.items():
        power_w = np.nan if found is None or found.power_w[kind] <= 0 else found.power_w[kind]
        limit_w = np.nan if power is None or power.limit_w is None else power.limit_w
        detail = where.detail(f"steps={steps},rank={index},uuid={uuid}")
        if kind == "wait":
            row = wait_table(
                cause=cause,
                wait=Distribution.of(np.array(each_s)),
                group_size=run.layout.tp if cause == "skew" else run.layout.ranks,
                gpu=where.plan.gpu,
                origin=where.origin,
                source=where.plan.name,
                kind="all_reduce" if cause == "skew" else "",
                power_w=None if np.isnan(power_w) else power_w,
                detail=detail,
            )
            yield row.with_columns(path=f"prefill/{path}", power_limit_w=limit_w, **where.shared)
            continue
        work = counted(kind, where.plan, run.layout)
        measured = {"calls": len(each_s) / steps, "time_s": np.mean(each_s), "spread_s": np.std(each_s), "samples": float(len(each_s))}
        fields = {name: getattr(work, name) for name in FIGURES} if work is not None else {}
        measured |= {**fields, "path": f"prefill/{path}", "kind": kind, "dtype": _dtype(where.plan), "power_w": power_w}
        measured |= {"power_limit_w": limit_w, "detail": detail}
        yield Table.from_columns("collectives" if kind in COLLECTIVES else "operators", {**where.shared, **measured})


FIGURES = ("flops", "hbm_bytes", "weight_bytes", "payload_bytes", "group_size", "tokens", "in_features", "out_features")


def counted(kind: str, plan: RunPlan, layout: Layout) -> Operator:
    """What one call of a recorded module costs on one rank, by the counting rules of `pie_p.operators`; blocks are sums.

    >>> plan = RunPlan(name="p", gpu="cpu", layouts=(Layout(tp=2),), shape=Shape(width=256, intermediate=512))
    >>> counted("mlp", plan, Layout(tp=2)).flops > 2 * 3 * 64 * 256 * 256  # three matrices of 256 x 256 for 64 tokens
    True
    """
    shape, tp = plan.shape, layout.tp
    sequences = plan.sequences / layout.micro_batches
    tokens = sequences * plan.tokens
    if kind in COLLECTIVES:
        group = tp if kind == "all_reduce" else 2
        payload = operators.collective(kind, kind, tokens=tokens, width=shape.width, group_size=group)
        return payload if plan.backend == "nccl" else payload._replace(payload_bytes=2 * payload.payload_bytes)  # 32-bit on the CPU
    if kind == "attention":
        head, heads = shape.width // shape.heads, shape.heads // tp
        parts = [_linear(tokens, shape.width, shape.width // tp)] * 3 + [_linear(tokens, shape.width // tp, shape.width)]
        prefill = partial(operators.attention_prefill, sequences=sequences, new_tokens=plan.tokens, cached_tokens=0)
        parts.append(prefill(kind, heads=heads, kv_heads=heads, head_dim=head))
        return _sum(parts)
    if kind == "mlp":
        inner = shape.intermediate // tp
        return _sum(
            [_linear(tokens, shape.width, inner)] * 2
            + [operators.activation(kind, tokens=tokens, width=inner, gated=True), _linear(tokens, inner, shape.width)]
        )
    if kind == "lm_head":
        return operators.linear(kind, tokens=tokens, in_features=shape.width, out_features=shape.vocab, kind="lm_head")
    return (operators.norm if kind == "norm" else operators.embedding)(kind, tokens=tokens, width=shape.width)


def _linear(tokens: float, width_in: int, width_out: int) -> Operator:
    return operators.linear("linear", tokens=tokens, in_features=width_in, out_features=width_out)


def _sum(parts: list[Operator]) -> Operator:
    """One block: figures that add up are added, the rest is the first part's."""
    sums = {name: sum(getattr(part, name) for part in parts) for name in ("flops", "hbm_bytes", "weight_bytes")}
    return parts[0]._replace(**sums)


def _dtype(plan: RunPlan) -> str:
    return "bf16" if plan.backend == "nccl" else "fp32"
