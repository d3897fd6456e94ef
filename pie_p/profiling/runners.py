"""A real transformer under tensor, pipeline and data parallelism, mixed as wanted, with a record of what every rank did.

On one host `run_ranks(partial(run_parallel, layout=Layout(tp=2, pp=2)), 4)`; on several, `torchrun` starts this module:

    torchrun --nnodes 2 --nproc-per-node 8 ... -m pie_p.profiling.runners --tp 8 --pp 2 --backend nccl --out run.json

Tensor parallelism is torch's own (`torch.distributed.tensor.parallel`), so is the pipeline (`torch.distributed.pipelining`, GPipe).
Ranks are numbered tensor first, then pipeline, then data: neighbours share a host.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pie_p.errors import InputError
from pie_p.extras import require
from pie_p.profiling.intervals import MEETINGS, Interval, Record, tile
from pie_p.profiling.ranks import Backend, Rank, joined
from pie_p.profiling.stamps import Stamper, find_offset, on_common_clock, stamper
from pie_p.profiling.transformer import RECORDED, Shape, build, keep_stage, split_over


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How many ranks split the work, and how."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    micro_batches: int = 1  # per step, where there is a pipeline

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
class ParallelRun:
    """What all ranks did in some steps; the same on every rank."""

    layout: Layout
    steps_s: list[list[tuple[float, float]]]  # by rank and step: start and end
    intervals: list[list[Interval]]  # by rank, over all steps
    logits: Any  # of the last step, on ranks that hold them, as nested lists; else None


class Recorder:
    """Marks where recorded modules begin and end."""

    def __init__(self, marks: Stamper) -> None:
        self._marks = marks
        self._names: list[tuple[str, str]] = []  # path and kind of each record; every record makes two marks

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
        self._names.append(label)

    def take(self) -> tuple[list[tuple[str, str]], Any]:
        """Labels and marks since the last time; the first and the last mark are the step's own."""
        names, self._names = self._names, []
        return names, self._marks.stamps_s()


def run_parallel(
    rank: Rank, *, layout: Layout, shape: Shape | None = None, sequences: int = 4, tokens: int = 16, steps: int = 3, seed: int = 0
) -> ParallelRun:
    """Run some steps and record them. Each replica works on its own batch of `sequences` x `tokens`.

    Raises:
        InputError: a layout that does not fit the ranks or the shape.
    """
    if layout.ranks != rank.size:
        raise InputError(f"tp {layout.tp} x pp {layout.pp} x dp {layout.dp} is {layout.ranks} ranks; {rank.size} were started")
    torch, shape = require("torch", extra="profile"), shape or Shape()
    if shape.heads % layout.tp or sequences % layout.micro_batches:
        split = f"{shape.heads} heads over tp {layout.tp}, {sequences} sequences over {layout.micro_batches} micro-batches"
        raise InputError(f"{split}: does not divide; choose numbers that do")
    replica, stage, _ = layout.place(rank.index)
    mesh = require("torch.distributed.device_mesh", extra="profile").init_device_mesh(
        rank.device.partition(":")[0], (layout.dp, layout.pp, layout.tp), mesh_dim_names=("dp", "pp", "tp")
    )
    transformer = keep_stage(build(shape, seed=seed), stage, layout.pp).to(rank.device)
    if layout.tp > 1:
        split_over(transformer, mesh["tp"])
    batch = batch_of(shape, sequences=sequences, tokens=tokens, seed=seed + replica).to(rank.device)
    step = _step(transformer, batch, layout, stage, mesh, rank)
    with torch.no_grad():
        step()
        step()  # the pipeline learns its shapes in the first
        recorder = Recorder(marks := stamper(rank.device))
        recorder.watch(transformer, layout)
        before = find_offset(rank)
        taken = []
        for _ in range(steps):
            rank.barrier()
            marks.mark()
            logits = step()
            marks.mark()
            taken.append(recorder.take())
        after = find_offset(rank)
    mine = [_records(names, on_common_clock(stamps_s, before, after), layout, stage) for names, stamps_s in taken]
    return _put_together(rank, layout, mine, None if logits is None else logits.float().cpu().tolist())


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


def _put_together(rank: Rank, layout: Layout, mine: list[tuple[float, float, list[Record]]], logits: Any) -> ParallelRun:
    """Everybody's steps, tiled with what the partners' records say about meetings and micro-batches."""
    every = rank.gather(mine)
    held = rank.gather(logits)
    intervals: list[list[Interval]] = [[] for _ in range(rank.size)]
    for index in range(rank.size):
        replica, stage, _ = layout.place(index)
        partners = [other for other in range(rank.size) if layout.place(other)[:2] == (replica, stage)]
        for number, (start_s, end_s, records) in enumerate(every[index]):
            arrivals = [[record.start_s for record in every[other][number][2] if record.kind == MEETINGS] for other in partners]
            met_s = [max(moments) for moments in zip(*arrivals, strict=True)]
            ready_s = [record.end_s for record in every[index - layout.tp][number][2] if record.closes] if stage else []
            intervals[index] += tile(records, start_s=start_s, end_s=end_s, met_s=met_s, ready_s=ready_s)
    steps_s = [[(start_s, end_s) for start_s, end_s, _ in steps] for steps in every]
    return ParallelRun(layout=layout, steps_s=steps_s, intervals=intervals, logits=next((one for one in held if one is not None), None))


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry for `torchrun`: run, and let rank 0 write the record as JSON."""
    parser = argparse.ArgumentParser(description="Run a small transformer in parallel and record what every rank did.")
    for name in ("tp", "pp", "dp", "micro_batches"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    layout = Layout(tp=chosen.tp, pp=chosen.pp, dp=chosen.dp, micro_batches=chosen.micro_batches)
    backend: Backend = chosen.backend
    with joined(backend=backend) as rank:
        run = run_parallel(rank, layout=layout, steps=chosen.steps)
        if rank.index == 0:
            chosen.out.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(run, logits=None))))


if __name__ == "__main__":
    main()
