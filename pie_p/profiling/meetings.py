"""A campaign of meetings: collectives and waits by group size, payload and preceding work, over gloo or NCCL, into a profile.

For every group size the ranks are started anew; under `torchrun`, `measure_group` is the body and the group is the world. All ranks
measure together, each with its own meter; rank 0 hands the rows over, and they are committed group by group, so a kill loses at most
the group in flight.

    python -m pie_p.profiling.meetings profiles/cpu-loopback/plan.toml --out profiles/cpu-loopback/2026-11-30-gloo
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import Field

from pie_p.operators import Kind, Operator, collective, linear
from pie_p.profiles import append_profile, load_profile
from pie_p.profiling.benches import rank_bench, unmetered_bench
from pie_p.profiling.campaign import AnyPlan, compact, load_plan, open_profile
from pie_p.profiling.collectives import make_collective, meet, payloads
from pie_p.profiling.design import signature
from pie_p.profiling.environment import read_environment
from pie_p.profiling.measurement import Bench, Measurement, Procedure, Workload, measure
from pie_p.profiling.ranks import Backend, Rank, run_ranks
from pie_p.profiling.rows import ORIGIN, operator_table, wait_table
from pie_p.profiling.samples import Floats
from pie_p.profiling.stamps import stamper
from pie_p.profiling.waits import measure_skew, measure_wait_power
from pie_p.tables import Table

MakeBench = Callable[[Rank], Bench]
PRECEDING: Final = (64, 1024)  # widths of the matrix products that come before a meeting


class MeetingPlan(AnyPlan):
    """Collectives and waits to measure on one set of ranks."""

    backend: Backend = "gloo"
    link: str = ""  # how the ranks are joined, for the rows
    group_sizes: tuple[int, ...] = (2,)
    collectives: tuple[Kind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
    payload_count: int = Field(default=8, ge=1)
    most_payload_bytes: int = 1 << 30
    meetings: int = Field(default=32, ge=2)
    away_s: float = 3.0  # how long a rank stays away for the power of waiting; not used where power is not measured


class LockstepWorkload(Workload):
    """A collective as a workload: every rank hears the same times, so all make the same decisions and stay in step."""

    def __init__(self, rank: Rank, operator: Operator) -> None:
        self._rank, self._operator = rank, operator
        self._call = make_collective(rank, operator.kind, operator.payload_bytes)

    @property
    def signature(self) -> str:
        """Operator and backend."""
        return f"{self._rank.backend} {signature(self._operator)}"

    def run(self, calls: int) -> float:
        """Time of the slowest rank [s]."""
        marks = stamper(self._rank.device)
        marks.mark()
        for _ in range(calls):
            self._call()
        marks.mark()
        start_s, end_s = marks.stamps_s()
        return float(max(self._rank.gather(float(end_s - start_s))))

    def time_each(self, calls: int) -> Floats:
        """Transfers of single calls, of this rank [s]."""
        met = meet(self._rank, self._operator.kind, self._operator.payload_bytes, meetings=calls, warm_up=0)
        return np.asarray(met.transfer_s[:, self._rank.index], dtype=np.float64)


def run_meetings(plan: MeetingPlan, folder: str | Path, *, make_bench: MakeBench = unmetered_bench, timeout_s: float = 3600.0) -> None:
    """Measure the group sizes of a plan that the profile at `folder` does not hold yet.

    Raises:
        ProfileError: the folder holds another profile, or the disk refuses.
        RankError: a rank died, failed or hung; the groups before are safe.
    """
    place = Path(folder)
    for group_size in plan.group_sizes:
        if group_size in _finished(place):
            continue
        body = partial(measure_group, plan=plan, make_bench=make_bench, folder=place)
        tables = run_ranks(body, group_size, backend=plan.backend, timeout_s=timeout_s)
        append_profile(place, [Table.concat([table for table in tables[0] if table.name == name]) for name in ("collectives", "waits")])
    compact(place)


def _finished(place: Path) -> set[int]:
    if not (place / "manifest.json").exists():
        return set()
    return {int(size) for size in load_profile(place, tables=("collectives",)).collectives["group_size"]}


def measure_group(rank: Rank, *, plan: MeetingPlan, make_bench: MakeBench, folder: Path) -> list[Table]:
    """All rows of one group: the body that every rank runs. Rank 0 begins the profile."""
    bench = make_bench(rank)
    if rank.index == 0:
        open_profile(plan, folder, bench, {"backend": plan.backend})
    tables = []
    waiting_w = _waiting_w(rank, plan, bench)
    for payload_bytes in payloads(plan.payload_count, most_bytes=plan.most_payload_bytes):
        for kind in plan.collectives:
            if kind == "send_recv" and rank.size > 2:
                continue  # a pair is a pair in any group
            operator = collective(kind, kind, tokens=1, width=payload_bytes / 2, group_size=rank.size)
            tables.append(_collective_row(rank, plan, bench, operator))
    for width in PRECEDING:
        tables += _wait_rows(rank, plan, bench, width, waiting_w)
    return tables


def _collective_row(rank: Rank, plan: MeetingPlan, bench: Bench, operator: Operator) -> Table:
    """Time of the transfer alone; power, where there is a meter, of the collective repeated back to back."""
    met = meet(rank, operator.kind, operator.payload_bytes, meetings=plan.meetings)
    together = _repeated(rank, plan, bench, operator)
    powers_w = [power_w for power_w in rank.gather(together.power_w) if power_w is not None]
    measured = replace(
        together,
        time_s=float(np.median(met.transfer_s.mean(axis=1))),
        spread_s=float(met.transfer_s.mean(axis=1).std()),
        power_w=float(np.mean(powers_w)) if powers_w else None,
    )
    row = operator_table(operator, measured, gpu=plan.gpu, source=plan.name, kernel_source=plan.backend)
    return row.with_columns(link=plan.link, engine=plan.backend)


def _repeated(rank: Rank, plan: MeetingPlan, bench: Bench, operator: Operator) -> Measurement:
    """The collective under the procedure; one round, because ranks would not agree on a second. Unmetered: a glance."""
    procedure = replace(plan.procedure, rounds=1)
    if bench.timing is None:
        procedure = Procedure(
            cool_down_s=0, warm_up_s=0, enough_s=1e-3, enough_iterations=1, trials=1, rounds=1, longest_pause_s=0, most_spread=10
        )
    return measure(LockstepWorkload(rank, operator), bench, procedure)


def _waiting_w(rank: Rank, plan: MeetingPlan, bench: Bench) -> float | None:
    """Mean power of the boards that wait [W]; None where power is not measured."""
    if not any(rank.gather(bench.timing is not None)):
        return None
    powers_w = [power_w for power_w in measure_wait_power(rank, bench, away_s=plan.away_s).power_w if power_w is not None]
    return float(np.mean(powers_w)) if powers_w else None


def _wait_rows(rank: Rank, plan: MeetingPlan, bench: Bench, width: int, waiting_w: float | None) -> list[Table]:
    """Waits at a small and a large all-reduce after a matrix product of the given width."""
    work = linear("linear", tokens=64, in_features=width, out_features=width)
    rows = []
    for payload_bytes in payloads(3, most_bytes=plan.most_payload_bytes)[:2]:
        skew = measure_skew(rank, "all_reduce", payload_bytes, meetings=plan.meetings, preceding=work)
        row = wait_table(
            cause="skew",
            wait=skew.wait,
            kind=skew.kind,
            payload_bytes=payload_bytes,
            preceding=skew.preceding,
            preceding_s=skew.work.mean_s,
            group_size=rank.size,
            gpu=plan.gpu,
            origin=ORIGIN[read_environment(bench.meter).meter.origin],
            source=plan.name,
            power_w=waiting_w,
            detail=f"width={width}",
        )
        rows.append(row.with_columns(link=plan.link, engine=plan.backend))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a plan on this host: GPUs by their own meters, the CPU without power."""
    parser = argparse.ArgumentParser(description="Measure collectives and waits on the ranks of one host.")
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    run_meetings(load_plan(chosen.plan, MeetingPlan), chosen.out, make_bench=rank_bench)


if __name__ == "__main__":
    main()
