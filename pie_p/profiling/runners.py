"""A real transformer under tensor, pipeline and data parallelism, mixed as wanted, with a record of what every rank did.

On one host `run_ranks(partial(run_parallel, layout=Layout(tp=2, pp=2)), 4)`; `pie_p.profiling.runs` makes rows of a profile of it, on
several hosts too. Tensor parallelism is torch's own (`torch.distributed.tensor.parallel`), so is the pipeline
(`torch.distributed.pipelining`, GPipe). Ranks are numbered tensor first, then pipeline, then data: neighbours share a host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from pie_p.errors import InputError
from pie_p.extras import require
from pie_p.profiling.intervals import MEETINGS, Interval, Record, tile
from pie_p.profiling.measurement import Bench, counter_ratio, updates
from pie_p.profiling.ranks import MOST_RANKS, Rank
from pie_p.profiling.samples import Floats
from pie_p.profiling.stamps import Offset, Stamper, find_offset, on_common_clock, stamper
from pie_p.profiling.transformer import RECORDED, Shape, build, keep_stage, split_over

MOST_STEPS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How many ranks split the work, and how."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    micro_batches: int = 1  # per step, where there is a pipeline

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "micro_batches"):
            if not 1 <= (value := getattr(self, name)) <= MOST_RANKS:
                raise InputError(f"{name} is {value}; give 1 to {MOST_RANKS}")
        if self.ranks > MOST_RANKS:
            raise InputError(f"tp {self.tp} x pp {self.pp} x dp {self.dp} are {self.ranks} ranks; at most {MOST_RANKS} are possible")

    @property
    def ranks(self) -> int:
        """All ranks together [-]."""
        return self.tp * self.pp * self.dp

    def place(self, index: int) -> tuple[int, int, int]:
        """(dp, pp, tp) of a rank.

        >>> Layout(tp=2, pp=2, dp=2).place(5)
        (1, 0, 1)
        """
        return index // (self.tp * self.pp), index // self.tp % self.pp, index % self.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPower:
    """What the meter of a rank's board showed during a run."""

    uuid: str
    ends_s: Floats  # of the meter's windows, on the common clock
    readings_w: Floats
    window_s: float
    limit_w: float | None
    counter_ratio: float | None  # energy counter over integrated power


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelRun:
    """What all ranks did in some steps; the same on every rank."""

    layout: Layout
    steps_s: list[list[tuple[float, float]]]  # by rank and step: start and end
    intervals: list[list[Interval]]  # by rank, from the start of the first step to the end of the last without a gap
    power: list[RankPower | None]  # by rank; None: not measured
    logits: Any  # of the last step, on ranks that hold them, as nested lists; else None


class Recorder:
    """Marks where steps and recorded modules begin and end."""

    def __init__(self, marks: Stamper) -> None:
        self._marks = marks
        self._steps: list[list[tuple[str, str]]] = []  # path and kind of each record; every step and every record makes two marks

    def watch(self, transformer: Any, layout: Layout) -> None:
        """Put hooks on every recorded module."""
        for name, module in transformer.named_modules():
            kind = RECORDED.get(name.rpartition(".")[2])
            if kind is None or (kind == MEETINGS and layout.tp == 1):
                continue
            path = "layer/" + name.rpartition(".")[2] if name.startswith("layers.") else name
            module.register_forward_pre_hook(lambda _module, _input: self._marks.mark())
            module.register_forward_hook(lambda _module, _input, _output, label=(path, kind): self._end(label))

    def _end(self, label: tuple[str, str]) -> None:
        self._marks.mark()
        self._steps[-1].append(label)

    def step(self, call: Callable[[], Any]) -> Any:
        """Run one step and return what it returns."""
        self._steps.append([])
        self._marks.mark()
        result = call()
        self._marks.mark()
        return result

    def take(self) -> list[tuple[list[tuple[str, str]], Floats]]:
        """Labels and marks of every step; the first and the last mark of a step are its own."""
        ends = np.cumsum([2 + 2 * len(names) for names in self._steps])
        return list(zip(self._steps, np.split(self._marks.stamps_s(), ends[:-1]), strict=True))


def run_parallel(
    rank: Rank,
    *,
    layout: Layout,
    shape: Shape | None = None,
    sequences: int = 4,
    tokens: int = 16,
    steps: int = 3,
    enough_s: float = 0.0,
    bench: Bench | None = None,
    seed: int = 0,
) -> ParallelRun:
    """Run some steps and record them. Each replica works on its own batch of `sequences` x `tokens`.

    Args:
        rank: this rank; all must call alike.
        layout: how the ranks split the work.
        shape: of the transformer.
        sequences: per replica [-].
        tokens: per sequence [-].
        steps: at least so many [-].
        enough_s: and at least for so long [s], up to `MOST_STEPS`.
        bench: this rank's meter, sampled from before the first step until after the last; None: power is not measured.
        seed: of weights and tokens.

    Raises:
        InputError: a layout that does not fit the ranks or the shape.
    """
    check_layout(layout, shape := shape or Shape(), sequences=sequences)
    if layout.ranks != rank.size:
        raise InputError(f"tp {layout.tp} x pp {layout.pp} x dp {layout.dp} is {layout.ranks} ranks; {rank.size} were started")
    torch, place = require("torch", extra="profile"), layout.place(rank.index)
    mesh = require("torch.distributed.device_mesh", extra="profile").init_device_mesh(
        rank.device.partition(":")[0], (layout.dp, layout.pp, layout.tp), mesh_dim_names=("dp", "pp", "tp")
    )
    dtype = torch.float32 if rank.device == "cpu" else torch.bfloat16
    transformer = keep_stage(build(shape, seed=seed), place[1], layout.pp).to(rank.device, dtype)
    if layout.tp > 1:
        split_over(transformer, mesh["tp"])
    batch = batch_of(shape, sequences=sequences, tokens=tokens, seed=seed + place[0]).to(rank.device)
    step = _step(transformer, batch, layout, place[1], mesh, rank)
    marks = stamper(rank.device)
    with torch.no_grad():
        count = min(MOST_STEPS, max(steps, math.ceil(enough_s / _warm_up(step, marks, rank))))
        recorder = Recorder(marks)
        recorder.watch(transformer, layout)
        before = find_offset(rank)
        if bench is not None:
            bench.sampler.start()
        for _ in range(count):
            rank.barrier()
            logits = recorder.step(step)
        taken = recorder.take()
        after = find_offset(rank)
    mine = [_records(names, on_common_clock(stamps_s, before, after), layout, place[1]) for names, stamps_s in taken]
    steps_s, intervals = _put_together(rank, layout, mine)
    power = None if bench is None else _read_power(bench, intervals[rank.index], before, after)
    held = rank.gather(None if logits is None else logits.float().cpu().tolist())
    first = next((one for one in held if one is not None), None)
    return ParallelRun(layout=layout, steps_s=steps_s, intervals=intervals, power=rank.gather(power), logits=first)


def check_layout(layout: Layout, shape: Shape, *, sequences: int) -> None:
    """A layout that divides the heads, the layers and the batch.

    Raises:
        InputError: with the numbers that do not divide.
    """
    if shape.heads % layout.tp or sequences % layout.micro_batches:
        split = f"{shape.heads} heads over tp {layout.tp}, {sequences} sequences over {layout.micro_batches} micro-batches"
        raise InputError(f"{split}: does not divide; choose numbers that do")
    if shape.layers < layout.pp:
        raise InputError(f"{shape.layers} layers cannot fill {layout.pp} pipeline stages; use at most {shape.layers}")


def _warm_up(step: Callable[[], Any], marks: Stamper, rank: Rank) -> float:
    """Three steps, because a pipeline learns its shapes in the first; time of the last on the slowest rank [s]."""
    step()
    step()
    rank.barrier()
    marks.mark()
    step()
    marks.mark()
    start_s, end_s = marks.stamps_s()
    return max(1e-6, *rank.gather(float(end_s - start_s)))


def _read_power(bench: Bench, intervals: Sequence[Interval], before: Offset, after: Offset) -> RankPower | None:
    """End the sampling; what the meter showed. A simulated board learns first what it did."""
    if bench.on_state is not None:
        for interval in intervals:
            bench.on_state(interval.start_s, interval.kind)
        bench.on_state(intervals[-1].end_s, "wait")
    samples = bench.sampler.stop()
    if bench.timing is None:
        return None
    at_s, counter_at_s = (on_common_clock(moments, before, after) for moments in (samples.at_s, samples.counter_at_s))
    samples = replace(samples, at_s=at_s, counter_at_s=counter_at_s)
    ends_s, readings_w = updates(samples, bench.timing)
    ratio = counter_ratio(samples, ends_s, readings_w, [(intervals[0].start_s, intervals[-1].end_s)])
    limit_w = bench.meter.read_state().limit_w
    return RankPower(
        uuid=bench.meter.identity.uuid,
        ends_s=ends_s,
        readings_w=readings_w,
        window_s=bench.timing.window_s,
        limit_w=limit_w,
        counter_ratio=ratio,
    )


def batch_of(shape: Shape, *, sequences: int, tokens: int, seed: int) -> Any:
    """Token ids (sequences, tokens), the same for the same seed."""
    torch = require("torch", extra="profile")
    return torch.randint(0, shape.vocab, (sequences, tokens), generator=torch.Generator().manual_seed(seed))


def _step(transformer: Any, batch: Any, layout: Layout, stage: int, mesh: Any, rank: Rank) -> Any:
    """One forward step of this rank: a call that gives logits on the last stage, None elsewhere."""
    if layout.pp == 1:
        return lambda: transformer(batch)
    pipelining = require("torch.distributed.pipelining", extra="profile")
    torch = require("torch", extra="profile")
    mine = pipelining.PipelineStage(transformer, stage, layout.pp, torch.device(rank.device), group=mesh["pp"].get_group())
    schedule = pipelining.ScheduleGPipe(mine, n_microbatches=layout.micro_batches)
    return (lambda: schedule.eval(batch)) if stage == 0 else schedule.eval


def _records(names: Sequence[tuple[str, str]], stamps_s: Any, layout: Layout, stage: int) -> tuple[float, float, list[Record]]:
    """Start, end and records of one step on this rank."""
    per_micro_batch = len(names) // (layout.micro_batches if layout.pp > 1 else 1)
    records = [
        Record(
            path=path,
            kind=kind,
            start_s=float(stamps_s[1 + 2 * index]),
            end_s=float(stamps_s[2 + 2 * index]),
            opens=stage > 0 and index % per_micro_batch == 0,
            closes=(index + 1) % per_micro_batch == 0,
        )
        for index, (path, kind) in enumerate(names)
    ]
    return float(stamps_s[0]), float(stamps_s[-1]), records


def _put_together(
    rank: Rank, layout: Layout, mine: list[tuple[float, float, list[Record]]]
) -> tuple[list[list[tuple[float, float]]], list[list[Interval]]]:
    """Everybody's steps, and their intervals, tiled with what the partners' records say about meetings and micro-batches."""
    every = rank.gather(mine)
    intervals: list[list[Interval]] = [[] for _ in range(rank.size)]
    for index in range(rank.size):
        replica, stage, _ = layout.place(index)
        partners = [other for other in range(rank.size) if layout.place(other)[:2] == (replica, stage)]
        for number, (start_s, end_s, records) in enumerate(every[index]):
            arrivals = [[record.start_s for record in every[other][number][2] if record.kind == MEETINGS] for other in partners]
            met_s = [max(moments) for moments in zip(*arrivals, strict=True)]
            ready_s = [record.end_s for record in every[index - layout.tp][number][2] if record.closes] if stage else []
            intervals[index] += between(intervals[index], start_s)
            intervals[index] += tile(records, start_s=start_s, end_s=end_s, met_s=met_s, ready_s=ready_s)
    return [[(start_s, end_s) for start_s, end_s, _ in steps] for steps in every], intervals


def between(intervals: Sequence[Interval], start_s: float) -> list[Interval]:
    """What a rank does from the end of one step to the start of the next: it waits for the host."""
    if not intervals or intervals[-1].end_s >= start_s:
        return []
    return [Interval(path="between_steps", kind="wait", cause="host_gap", start_s=intervals[-1].end_s, end_s=start_s)]
