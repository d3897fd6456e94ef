"""A campaign of meetings: collectives and waits by group size, payload and preceding work, over gloo or NCCL, into a profile.

    name = "h100-nvlink"              # becomes the `source` of every row
    gpu = "h100-sxm-80gb"             # name in the catalogue; "cpu" for ranks that are processes of the CPU
    backend = "nccl"                  # or "gloo"
    link = "nvlink4-switch"           # how the ranks are joined, for the rows
    group_sizes = [2, 4, 8]
    payload_count = 11                # of each collective, 1 KiB to most_payload_bytes

For every group size the ranks are started anew; under `torchrun` the group is the world (`pie_p.profiling.launched`). All ranks measure
together, each with its own meter. Rank 0 commits each point as it is measured, so a kill loses at most the point in flight.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import Field

from pie_p.operators import Kind, Operator, collective, linear
from pie_p.profile_manifest import Rejected
from pie_p.profiles import append_profile
from pie_p.profiling.benches import unmetered_bench
from pie_p.profiling.campaign import compact, finished, only_campaign, open_profile
from pie_p.profiling.clocks import MonotonicClock
from pie_p.profiling.collectives import make_collective, meet, payloads
from pie_p.profiling.design import signature
from pie_p.profiling.measurement import Bench, Measurement, Procedure, Workload, measure
from pie_p.profiling.plans import AnyPlan
from pie_p.profiling.progress import OnProgress, Progress, TimeBox, first_guess_s
from pie_p.profiling.ranks import MOST_RANKS, Backend, Rank, run_ranks
from pie_p.profiling.rows import ORIGIN, digest, operator_table, wait_table
from pie_p.profiling.samples import Floats
from pie_p.profiling.stamps import host_name, stamper
from pie_p.profiling.waits import measure_skew, measure_wait_power
from pie_p.tables import Table

MakeBench = Callable[[Rank], Bench]
ALL: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
HOUR_S: Final = 3600.0
PRECEDING: Final = (64, 1024)  # widths of the matrix products that come before a meeting


class MeetingPlan(AnyPlan):
    """Collectives and waits to measure on one set of ranks."""

    backend: Backend = "gloo"
    link: str = ""  # how the ranks are joined, for the rows
    group_sizes: tuple[Annotated[int, Field(ge=2, le=MOST_RANKS)], ...] = Field(default=(2,), min_length=1)
    collectives: tuple[Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"], ...] = ALL
    payload_count: int = Field(default=8, ge=1, le=64)
    most_payload_bytes: int = Field(default=1 << 30, ge=1024, le=1 << 36)
    meetings: int = Field(default=32, ge=2, le=100_000)
    away_s: float = Field(default=3.0, gt=0, le=50)  # how long a rank stays away for the power of waiting; less than a collective may take


class LockstepWorkload(Workload):
    """A collective as a workload: every rank hears the same times, so all make the same decisions and stay in step."""

    def __init__(self, rank: Rank, operator: Operator, bench: Bench) -> None:
        self._rank, self._operator, self._bench = rank, operator, bench
        self._call = make_collective(rank, operator.kind, operator.payload_bytes)

    @property
    def signature(self) -> str:
        """Operator and backend."""
        return f"{self._rank.backend} {signature(self._operator)}"

    def run(self, calls: int) -> float:
        """Time of the slowest rank [s]."""
        if self._bench.on_state is not None:
            self._bench.on_state(self._bench.clock.now_s(), self._operator.kind)
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


@dataclass(frozen=True, slots=True)
class Point:
    """One thing to measure in a group: a collective, or waits at an all-reduce after a matrix product of some width."""

    operator: Operator
    width: int = 0  # of the matrix product before; 0: the collective itself

    @property
    def name(self) -> str:
        """What is measured; equal names are measured once."""
        return signature(self.operator) + (f",wait after width={self.width}" if self.width else "")


def points_of(plan: MeetingPlan, group_size: int, hosts: int = 1) -> list[Point]:
    """Everything to measure in a group, most informative payloads first; a pair is a pair in any group."""
    kinds = [kind for kind in plan.collectives if kind != "send_recv" or group_size == 2]
    every = payloads(plan.payload_count, most_bytes=plan.most_payload_bytes)
    waits = [(width, size) for width in PRECEDING for size in payloads(3, most_bytes=plan.most_payload_bytes)[:2]]
    return [
        *(Point(_collective(kind, size, group_size, hosts)) for size in every for kind in kinds),
        *(Point(_collective("all_reduce", size, group_size, hosts), width) for width, size in waits),
    ]


def _collective(kind: Kind, payload_bytes: int, group_size: int, hosts: int) -> Operator:
    return collective(kind, kind, tokens=1, width=payload_bytes / 2, group_size=group_size, hosts=hosts)


def run_meetings(
    plan: MeetingPlan,
    folder: str | Path,
    *,
    make_bench: MakeBench = unmetered_bench,
    budget_s: float | None = None,
    on_progress: OnProgress | None = None,
    timeout_s: float | None = None,
) -> Progress:
    """Measure what is left of a plan into the profile at `folder`, on ranks of this host; the state at the end.

    Args:
        plan: what to measure.
        folder: a new profile, or one that an earlier run of the same plan began.
        make_bench: a rank's clock and meter.
        budget_s: no point is begun that would not end within this [s].
        on_progress: told after every point, by the process of rank 0: must be picklable.
        timeout_s: for one group size [s]; default an hour, and four times what its points should take.

    Raises:
        ProfileError: the folder holds another profile, or the disk refuses.
        RankError: a rank died, failed or hung; what was measured before is safe.
    """
    place, end_s = Path(folder), time.monotonic() + (math.inf if budget_s is None else budget_s)
    with only_campaign(plan, place):
        for group_size in plan.group_sizes:
            left_s, points = None if budget_s is None else end_s - time.monotonic(), points_of(plan, group_size)
            if all(digest(point.name) in finished(place)[0] for point in points) or (left_s is not None and left_s <= 0):
                continue
            body = partial(measure_group, plan=plan, make_bench=make_bench, folder=place, budget_s=left_s, on_progress=on_progress)
            longest_s = timeout_s or HOUR_S + 4 * len(points) * first_guess_s(plan.procedure)
            run_ranks(body, group_size, backend=plan.backend, timeout_s=longest_s)
        progress = _state(plan, plan.group_sizes, place, None, "nothing more")
        if progress.done == progress.total:
            compact(place)
    return progress


def _state(plan: MeetingPlan, group_sizes: Sequence[int], place: Path, point_s: float | None, now: str, hosts: int = 1) -> Progress:
    """How far the groups are, by what the profile holds."""
    names = {digest(point.name) for group_size in group_sizes for point in points_of(plan, group_size, hosts)}
    done = len(names & finished(place)[0])
    return Progress(done=done, total=len(names), rejected=0, left_s=None if point_s is None else point_s * (len(names) - done), now=now)


def measure_group(
    rank: Rank,
    *,
    plan: MeetingPlan,
    make_bench: MakeBench,
    folder: Path,
    budget_s: float | None = None,
    on_progress: OnProgress | None = None,
) -> None:
    """Measure what is left of one group: the body that every rank runs, under `torchrun` too. Rank 0 decides, and writes."""
    bench = make_bench(rank)
    if rank.index == 0:
        open_profile(plan, folder, bench, {"backend": plan.backend})
    done: set[str] = rank.gather(finished(folder)[0] if rank.index == 0 else set[str]())[0]
    hosts = len(set(rank.gather(host_name())))
    box = TimeBox(MonotonicClock(), budget_s, 1.0 if bench.timing is None else first_guess_s(plan.procedure))
    left = [point for point in points_of(plan, rank.size, hosts) if digest(point.name) not in done]
    waiting_w = _waiting_w(rank, plan, bench) if any(point.width for point in left) else {}
    for point in left:
        if not rank.gather(box.has_room)[0]:
            break
        start_s = box.clock.now_s()
        rejected: list[Rejected] = []
        rows = _wait_row(rank, plan, bench, point, waiting_w) if point.width else _collective_rows(rank, plan, bench, point, rejected)
        box.costs_s.append(box.clock.now_s() - start_s)
        if rank.index == 0:
            append_profile(folder, [rows], rejected=rejected)
            if on_progress is not None:
                sizes = sorted({*plan.group_sizes, rank.size})
                on_progress(_state(plan, sizes, folder, box.point_s, point.name, hosts))


def _collective_rows(rank: Rank, plan: MeetingPlan, bench: Bench, point: Point, rejected: list[Rejected]) -> Table:
    """Time of the transfer alone; power, where there is a meter, of the collective repeated back to back, one row for each rank's board.

    A power that cannot be trusted is left out of its row, and goes to `rejected` with the reason.
    """
    operator = point.operator
    met = meet(rank, operator.kind, operator.payload_bytes, meetings=plan.meetings)
    together = rank.gather(_repeated(rank, plan, bench, operator))
    metered = [index for index, measured in enumerate(together) if measured.power_w is not None]
    rows = []
    for index in metered or [0]:
        transfer_s = met.transfer_s[:, index] if metered else met.transfer_s.mean(axis=1)
        measured = replace(together[index], time_s=float(np.median(transfer_s)), spread_s=float(transfer_s.std()))
        if metered and measured.rejected_because:
            reason = f"power of rank {index}: {measured.rejected_because} (power_w={measured.power_w})"
            rejected.append(Rejected(file=f"{digest(point.name)} {point.name}", reason=reason, rows=1))
            measured = replace(measured, power_w=None)
        row = operator_table(operator, measured, gpu=plan.gpu, source=plan.name, kernel_source=plan.backend)
        who = f"rank={index}," if metered else ""
        rows.append(row.with_columns(detail=[f"point={digest(point.name)},{who}{row['detail'][0]}"], link=plan.link, engine=plan.backend))
    return Table.concat(rows)


def _repeated(rank: Rank, plan: MeetingPlan, bench: Bench, operator: Operator) -> Measurement:
    """The collective under the procedure; one round, because ranks would not agree on a second. Unmetered: a glance."""
    procedure = replace(plan.procedure, rounds=1)
    if bench.timing is None:
        procedure = Procedure(
            cool_down_s=0, warm_up_s=0, enough_s=1e-3, enough_iterations=1, trials=1, rounds=1, longest_pause_s=0, most_spread=10
        )
    return measure(LockstepWorkload(rank, operator, bench), bench, procedure)


def _waiting_w(rank: Rank, plan: MeetingPlan, bench: Bench) -> dict[int, float]:
    """Power of the board of each rank that waits [W]; empty where power is not measured."""
    if not any(rank.gather(bench.timing is not None)):
        return {}
    powers_w = measure_wait_power(rank, bench, away_s=plan.away_s).power_w
    return {index: power_w for index, power_w in enumerate(powers_w) if power_w is not None}


def _wait_row(rank: Rank, plan: MeetingPlan, bench: Bench, point: Point, waiting_w: Mapping[int, float]) -> Table:
    """Waits at an all-reduce after a matrix product of the given width."""
    work = linear("linear", tokens=64, in_features=point.width, out_features=point.width)
    skew = measure_skew(rank, "all_reduce", point.operator.payload_bytes, meetings=plan.meetings, preceding=work)
    by_rank = "".join(f",power_w_of_rank_{index}={power_w:.2f}" for index, power_w in waiting_w.items())
    row = wait_table(
        cause="skew",
        wait=skew.wait,
        kind=skew.kind,
        payload_bytes=point.operator.payload_bytes,
        preceding=skew.preceding,
        preceding_s=skew.work.mean_s,
        group_size=rank.size,
        gpu=plan.gpu,
        origin=ORIGIN[bench.meter.identity.origin],
        source=plan.name,
        power_w=float(np.mean(list(waiting_w.values()))) if waiting_w else None,
        detail=f"point={digest(point.name)},width={point.width}{by_rank}",
    )
    return row.with_columns(link=plan.link, engine=plan.backend, hosts=float(point.operator.hosts))
