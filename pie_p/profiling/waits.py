"""Waits: how long ranks stand still for each other, as distributions, and what power they draw while they do.

Kernels on different ranks never take exactly the same time, and a collective starts when the last rank arrives. PIE-P's error was
17.6 % with this phase and 36.9 % without it (arXiv 2512.12801), so waits are measured apart from transfers (`collectives`).

The power of waiting needs the meter to see it: one rank stays away for seconds while the others wait in the collective. A rank that
SPINS (NCCL's kernel polls on the GPU) draws more than one that BLOCKS (gloo, or a host that waits before it launches).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Literal

import numpy as np

from pie_p.errors import InputError
from pie_p.operators import Kind, Operator
from pie_p.profiling.collectives import Meetings, make_collective, meet
from pie_p.profiling.kernels import KernelWorkload
from pie_p.profiling.measurement import Bench, updates
from pie_p.profiling.ranks import Rank
from pie_p.profiling.samples import Floats
from pie_p.profiling.stamps import stamper

WaitMode = Literal["spinning", "blocking"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Many times of one thing, summed up [s]."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    spread_s: float  # standard deviation
    count: int

    @classmethod
    def of(cls, times_s: Floats) -> Distribution:
        """Of every value in an array of any shape.

        >>> Distribution.of(np.array([0.0, 1.0, 2.0])).mean_s
        1.0
        """
        if times_s.size == 0:
            raise InputError("a distribution needs one value or more, there are 0; let the ranks meet")
        p50_s, p90_s, p99_s = (float(value) for value in np.percentile(times_s, (50, 90, 99)))
        return cls(
            mean_s=float(times_s.mean()),
            p50_s=p50_s,
            p90_s=p90_s,
            p99_s=p99_s,
            spread_s=float(times_s.std()),
            count=int(times_s.size),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """Waits of ranks at a collective after some work."""

    kind: Kind
    payload_bytes: float
    group_size: int
    preceding: str  # kind of the work before; empty: none
    work: Distribution  # time of that work
    wait: Distribution  # over all ranks and meetings
    transfer: Distribution
    meetings: Meetings
    late_s: Floats  # by how much the delayed rank really came late on purpose, by meeting


def measure_skew(
    rank: Rank,
    kind: Kind,
    payload_bytes: float,
    *,
    meetings: int = 64,
    preceding: Operator | None = None,
    preceding_calls: int = 1,
    delays_s: Sequence[float] = (),
    delayed_rank: int = 0,
) -> Skew:
    """Waits at a collective that follows `preceding`, one per rank and meeting.

    Args:
        rank: this rank; all must call alike.
        kind: of the collective.
        payload_bytes: one rank's [B].
        meetings: how often.
        preceding: what each rank computes before; None: nothing.
        preceding_calls: how often before each meeting [-].
        delays_s: by how much `delayed_rank` comes late on purpose, one after the other, over and over [s].
        delayed_rank: which.
    """
    workload = KernelWorkload(preceding, rank.device) if preceding is not None else None
    work_s: list[float] = []
    turns = cycle(delays_s or (0.0,))
    late_s: list[float] = []

    def work() -> None:
        if workload is not None:
            work_s.append(workload.run(preceding_calls))
        late_s.append(_stay_away(next(turns)) if rank.index == delayed_rank else 0.0)

    met = meet(rank, kind, payload_bytes, meetings=meetings, work=work)
    spent_s = np.array(rank.gather(work_s or [0.0]))
    waiting = met.wait_s if kind != "send_recv" else met.wait_s[:, : rank.size // 2 * 2]
    return Skew(
        kind=kind,
        payload_bytes=payload_bytes,
        group_size=rank.size,
        preceding=preceding.kind if preceding is not None else "",
        work=Distribution.of(spent_s),
        wait=Distribution.of(waiting),
        transfer=Distribution.of(met.transfer_s),
        meetings=met,
        late_s=np.array(rank.gather(late_s)[delayed_rank]),
    )


def _stay_away(delay_s: float) -> float:
    """Sleep; how long it really was [s]."""
    start_s = time.monotonic()
    if delay_s:
        time.sleep(delay_s)
    return time.monotonic() - start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitPower:
    """Power of ranks while they wait."""

    mode: WaitMode
    wait_s: float  # how long they waited
    power_w: tuple[float | None, ...]  # by rank; None: the late one, or not measured


def measure_wait_power(
    rank: Rank,
    bench: Bench,
    *,
    mode: WaitMode | None = None,
    away_s: float = 3.0,
    rise_s: float = 0.5,
) -> WaitPower:
    """Rank 0 stays away for `away_s` [s]; the power of the others while they wait for it.

    Args:
        rank: this rank; all must call alike.
        bench: this rank's board.
        mode: spinning: in the collective itself; blocking: in a barrier of the host, before it. Default: what the backend does.
        away_s: how long; the meter must update some ten times.
        rise_s: dropped at the start, while power falls to that of waiting.
    """
    mode = mode or ("spinning" if rank.backend == "nccl" else "blocking")
    if mode == "spinning" and rank.backend != "nccl":
        raise InputError("gloo does not spin: it blocks the process in a system call; ask for mode='blocking'")
    call = make_collective(rank, "all_reduce", 1 << 20)
    call()
    marks = stamper(rank.device)
    rank.barrier()
    bench.sampler.start()
    if bench.on_state is not None:
        bench.on_state(bench.clock.now_s(), "away" if rank.index == 0 else "wait")
    marks.mark()
    if rank.index == 0:
        time.sleep(away_s)
        back_s = bench.clock.now_s()
    else:
        back_s = 0.0
    if mode == "blocking":
        rank.barrier()
    call()
    marks.mark()
    start_s, _end_s = marks.stamps_s()
    back_s = max(rank.gather(back_s))
    samples = bench.sampler.stop()
    power_w = None
    if rank.index != 0 and bench.timing is not None:
        ends_s, values_w = updates(samples, bench.timing)
        inside = (ends_s - bench.timing.window_s >= start_s + rise_s) & (ends_s <= back_s)
        power_w = float(values_w[inside].mean()) if inside.any() else None
    return WaitPower(mode=mode, wait_s=back_s - float(start_s), power_w=tuple(rank.gather(power_w)))


def skew_body(kind: Kind, payload_bytes: float, **settings: object) -> Callable[[Rank], Skew]:
    """`measure_skew` as a body for `run_ranks`."""
    return partial(_skew_body, kind=kind, payload_bytes=payload_bytes, settings=settings)


def _skew_body(rank: Rank, *, kind: Kind, payload_bytes: float, settings: dict[str, object]) -> Skew:
    return measure_skew(rank, kind, payload_bytes, **settings)  # type: ignore[arg-type]
