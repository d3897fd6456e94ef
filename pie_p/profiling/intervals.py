"""What each rank did in each moment of a parallel step: intervals that tile the step, so times and energies add up.

    rank 0  │norm│attention│ww│═all_reduce═│norm│ mlp │═all_reduce═│g│
    rank 1  │norm│ attention  │═all_reduce═│norm│mlp│w│═all_reduce═│g│        w: wait for the other rank    g: gap between launches

A meeting's record runs from a rank's arrival to its end; it is cut at the arrival of the last rank into wait (skew) and transfer. In a
pipeline the time before a stage's work on a micro-batch is cut where the stage before had it ready: wait (bubble), then send_recv.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pie_p.profiling.samples import Floats

MEETINGS: Final = "all_reduce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One module's run on one rank."""

    path: str  # "layer/mlp"; layers share it
    kind: str
    start_s: float
    end_s: float
    opens: bool = False  # first work of a stage on a micro-batch that came from the stage before
    closes: bool = False  # last work of a stage on a micro-batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A stretch in which a rank did one thing."""

    path: str
    kind: str  # module kind, "all_reduce", "send_recv" or "wait"
    cause: str  # of a wait: "skew", "bubble", "launch_gap"; else empty
    start_s: float
    end_s: float

    @property
    def time_s(self) -> float:
        """Length [s]."""
        return self.end_s - self.start_s


def tile(
    records: Sequence[Record], *, start_s: float, end_s: float, met_s: Sequence[float] = (), ready_s: Sequence[float] = ()
) -> list[Interval]:
    """Intervals of one rank that cover `[start_s, end_s]` without gap or overlap.

    Args:
        records: of one rank, in the order of time.
        start_s: of the step on this rank [s].
        end_s: of the step on this rank [s].
        met_s: arrival of the last rank, one per meeting in `records` [s].
        ready_s: when the stage before had finished each micro-batch [s]; empty for the first stage.
    """
    intervals: list[Interval] = []
    meetings, arrivals = iter(met_s), iter(ready_s)
    now_s = start_s

    def until(moment_s: float, path: str, kind: str, cause: str = "") -> None:
        nonlocal now_s
        moment_s = min(max(moment_s, now_s), end_s)
        if moment_s > now_s:
            intervals.append(Interval(path=path, kind=kind, cause=cause, start_s=now_s, end_s=moment_s))
            now_s = moment_s

    for record in records:
        ready = next(arrivals, None) if record.opens else None
        if ready is not None:
            until(min(ready, record.start_s), record.path, "wait", "bubble")
            until(record.start_s, "send_recv", "send_recv")
        until(record.start_s, record.path, "wait", "launch_gap")
        if record.kind == MEETINGS:
            until(min(next(meetings), record.end_s), record.path, "wait", "skew")
        until(record.end_s, record.path, record.kind)
    until(end_s, "step", "wait", "launch_gap")
    return intervals


def times(intervals: Sequence[Interval]) -> dict[tuple[str, str], float]:
    """Total time [s] by (kind, cause); the sum is the length of the step."""
    total: dict[tuple[str, str], float] = defaultdict(float)
    for interval in intervals:
        total[interval.kind, interval.cause] += interval.time_s
    return dict(total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Energy of a run by what the ranks did, and what that leaves over."""

    energy_j: Mapping[str, float]  # by kind
    power_w: Mapping[str, float]  # by kind, of one board
    measured_j: float  # by the meters

    @property
    def unexplained_j(self) -> float:
        """Measured, but in no part [J]; negative where the parts claim more than there was."""
        return self.measured_j - sum(self.energy_j.values())


def explain(
    rows: Sequence[tuple[Sequence[Interval], Floats, Floats]], window_s: float, measured_j: float, *, prior: float = 1.0
) -> Explained:
    """Power of each kind, from meters whose windows hold mixtures of kinds, and the energies that follow.

    For every update: `reading = sum over kinds of share of the window x power`. Solved by least squares over the updates of all ranks,
    drawn towards the mean power where the mixtures cannot tell kinds apart (`prior` updates' worth).

    Args:
        rows: per rank its intervals, the ends of its meter's windows [s] and the readings [W].
        window_s: averaging window of the meter [s].
        measured_j: energy of all ranks by their meters [J].
        prior: weight of the pull towards the mean [updates].
    """
    kinds = sorted({interval.kind for intervals, _, _ in rows for interval in intervals})
    shares = np.vstack([_shares(intervals, ends_s, window_s, kinds) for intervals, ends_s, _ in rows])
    readings = np.concatenate([readings_w for _, _, readings_w in rows])
    whole = shares.sum(axis=1) > 0.999  # windows that reach beyond the run say nothing about it
    shares, readings = shares[whole], readings[whole]
    middle_w = float(readings.mean())
    squared = shares.T @ shares + prior * np.eye(len(kinds))
    solved = middle_w + np.linalg.solve(squared, shares.T @ (readings - shares.sum(axis=1) * middle_w))
    power_w = dict(zip(kinds, (float(value) for value in solved), strict=True))
    spent_s: dict[str, float] = defaultdict(float)
    for intervals, _, _ in rows:
        for (kind, _), time_s in times(intervals).items():
            spent_s[kind] += time_s
    return Explained(energy_j={kind: power_w[kind] * spent_s[kind] for kind in kinds}, power_w=power_w, measured_j=measured_j)


def _shares(intervals: Sequence[Interval], ends_s: Floats, window_s: float, kinds: Sequence[str]) -> Floats:
    """Share of each window that each kind fills: rows are windows, columns kinds."""
    shares = np.zeros((len(ends_s), len(kinds)))
    for column, kind in enumerate(kinds):
        mine = [interval for interval in intervals if interval.kind == kind]
        if not mine:
            continue
        edges = np.array([edge for interval in mine for edge in (interval.start_s, interval.end_s)])
        filled = np.repeat(np.cumsum([0.0, *(interval.time_s for interval in mine)]), 2)[1:-1]
        shares[:, column] = (np.interp(ends_s, edges, filled) - np.interp(ends_s - window_s, edges, filled)) / window_s
    return shares
