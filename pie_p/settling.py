"""Where a run settles: its steps' times and its boards' power, under the board's own limit and under a lower cap.

The power limit binds on the mean over steps that alternate faster than it acts: over a life in which prompts come in between decode steps,
and over each phase where one follows the other. When a cap below the board's own limit binds, the clock falls until power meets it: compute
stretches, memory hardly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_p.physics import Floats, Roofline
from pie_p.power import PowerLaw
from pie_p.serving import WAIT_CAUSES, Assembly, Clock, ServingCosts, run_clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Many flattened cases with their times and powers."""

    assembly: Assembly
    clock: Clock
    time_s: Floats  # per call of each row [s]
    power_w: Floats  # of one board while each row runs [W]
    wait_power_w: Floats  # of one board that waits, per stage and step [W]
    outside: NDArray[np.bool_] | None = None  # rows outside what was profiled; None: nothing was learned

    def only(self, case: int) -> Run:
        """One case alone."""
        assembly = self.assembly
        rows, steps = assembly.row_case == case, assembly.step_case == case
        stages = steps[assembly.stage_step]
        return Run(
            assembly=assembly.only(case),
            clock=self.clock.only(steps=steps, stages=stages),
            time_s=self.time_s[rows],
            power_w=self.power_w[rows],
            wait_power_w=self.wait_power_w[stages],
            outside=None if self.outside is None else self.outside[rows],
        )


def settle(
    assembly: Assembly,
    time_s: Floats,
    *,
    costs: Sequence[ServingCosts],
    law: PowerLaw,
    roofline: Roofline,
    limits_w: Floats,
    demand: Floats | None = None,
) -> Run:
    """Run the clock and find the power.

    Args:
        assembly: the flattened cases.
        time_s: seconds per call of each row at the board's own limit [s].
        costs: serving costs of each case's engine.
        law: power law.
        roofline: splits a row's time into compute and memory when the clock falls.
        limits_w: power cap per board of each case, infinite where there is none [W].
        demand: share of the room that each row asks for; default what the law says [-].
    """
    clock = run_clock(assembly, time_s, costs)
    if demand is None:
        demand = law.demand(assembly.columns, time_s)
    boards = _boards(assembly)
    asked = mean_demand(assembly, clock, time_s, demand, wait=law.wait, groups=assembly.settles)
    share = law.settled(asked, limit_w=boards.limit_w, idle_w=boards.idle_w)
    most = np.maximum(law.ceiling * limits_w[boards.case] - boards.idle_w, 1.0) / (boards.limit_w - boards.idle_w)
    binds = share > most
    row_group = assembly.settles[assembly.stage_step[assembly.row_stage]]
    if binds.any():
        fallen = np.where(binds, law.clock_at(np.minimum(most / share, 1.0)), 1.0)
        time_s = time_s * roofline.stretch(assembly.columns, fallen[row_group])
        clock = run_clock(assembly, time_s, costs)
        asked = mean_demand(assembly, clock, time_s, demand, wait=law.wait, groups=assembly.settles)
        share = np.where(binds, most, share)
    bent = (share / asked) * (boards.limit_w - boards.idle_w)  # watts per unit of demand
    rows_w = boards.idle_w[row_group] + demand * bent[row_group]
    waits_w = (boards.idle_w + law.wait * bent)[assembly.settles[assembly.stage_step]]
    most_w = boards.idle_w + np.minimum(most, (law.ceiling * boards.limit_w - boards.idle_w) / (boards.limit_w - boards.idle_w)) * (
        boards.limit_w - boards.idle_w
    )
    rows_w, waits_w = levelled(assembly, clock, time_s, rows_w=rows_w, waits_w=waits_w, most_w=most_w)
    return Run(assembly=assembly, clock=clock, time_s=time_s, power_w=rows_w, wait_power_w=waits_w)


def levelled(assembly: Assembly, clock: Clock, time_s: Floats, *, rows_w: Floats, waits_w: Floats, most_w: Floats) -> tuple[Floats, Floats]:
    """Powers of rows and waits with none above what a board can hold, and the same mean.

    What a kernel asks for beyond the limit is drawn a little later: it is spread over the other kernels of the group in proportion to their
    distance from the limit, and over its waits when those are full.

    Args:
        assembly: the flattened cases.
        clock: times of the waits.
        time_s: seconds per call of each row [s].
        rows_w: power of each row [W].
        waits_w: power of a rank that waits, per stage and step [W].
        most_w: what a board can hold, per group of steps that settles together [W].
    """
    row_weight, wait_weight = _weights(assembly, clock, time_s)
    row_group = assembly.settles[assembly.stage_step[assembly.row_stage]]
    wait_group = assembly.settles[assembly.stage_step]
    count = len(most_w)

    def per_group(values: Floats, groups: NDArray[np.int64]) -> Floats:
        return np.asarray(np.bincount(groups, weights=values, minlength=count), dtype=np.float64)

    above = np.maximum(rows_w - most_w[row_group], 0.0)
    below = np.maximum(most_w[row_group] - rows_w, 0.0)
    excess_j, room_j = per_group(row_weight * above, row_group), per_group(row_weight * below, row_group)
    filled = np.minimum(excess_j / np.maximum(room_j, 1e-30), 1.0)
    left_w = np.maximum(excess_j - room_j, 0.0) / np.maximum(per_group(wait_weight, wait_group), 1e-30)
    return rows_w - above + filled[row_group] * below, waits_w + np.where(excess_j > room_j, left_w, 0.0)[wait_group]


class _Boards(NamedTuple):
    """Figures of the boards of each group of steps that settles together."""

    case: NDArray[np.int64]
    limit_w: Floats
    idle_w: Floats


def _boards(assembly: Assembly) -> _Boards:
    first_step = np.searchsorted(assembly.settles, np.arange(int(assembly.settles[-1]) + 1))
    case = assembly.step_case[first_step]
    first_row = np.searchsorted(assembly.row_case, np.arange(len(assembly.cases)))[case]
    return _Boards(case, assembly.columns["limit_w"][first_row], assembly.columns["active_idle_w"][first_row])


def mean_demand(
    assembly: Assembly, clock: Clock, time_s: Floats, demand: Floats, *, wait: float, groups: NDArray[np.int64] | None = None
) -> Floats:
    """Demand, mean over the boards and the time of each group of steps; by default of each case's whole life [-].

    Args:
        assembly: the flattened cases.
        clock: times of steps and waits.
        time_s: seconds per call of each row [s].
        demand: of each row [-].
        wait: demand of a rank that waits [-].
        groups: for each step the group it belongs to; default its case.
    """
    of_step = assembly.step_case if groups is None else groups
    count = int(of_step[-1]) + 1
    row_step = assembly.stage_step[assembly.row_stage]
    row_weight, waited = _weights(assembly, clock, time_s)
    wait_weight = np.bincount(of_step[assembly.stage_step], weights=waited, minlength=count)
    asked = np.bincount(of_step[row_step], weights=row_weight * demand, minlength=count) + wait * wait_weight
    seconds = np.bincount(of_step[row_step], weights=row_weight, minlength=count) + wait_weight
    return np.asarray(asked / np.maximum(seconds, 1e-30))


def mean_power_w(run: Run) -> Floats:
    """Power of a board, mean over the boards and the life of each case [W]."""
    assembly, clock = run.assembly, run.clock
    of_row = assembly.step_case[assembly.stage_step[assembly.row_stage]]
    lives = assembly.decode_steps + assembly.prefill_steps
    running_s = assembly.calls * run.time_s * (assembly.stage_ranks * lives[assembly.stage_step])[assembly.row_stage]
    waiting_s = np.sum([clock.waits_s[cause] for cause in WAIT_CAUSES], axis=0) * assembly.stage_ranks * lives[assembly.stage_step]
    of_stage, count = assembly.step_case[assembly.stage_step], len(assembly.cases)
    energy_j = np.bincount(of_row, weights=running_s * run.power_w, minlength=count)
    energy_j = energy_j + np.bincount(of_stage, weights=waiting_s * run.wait_power_w, minlength=count)
    seconds = np.bincount(of_row, weights=running_s, minlength=count) + np.bincount(of_stage, weights=waiting_s, minlength=count)
    return np.asarray(energy_j / seconds)


def _weights(assembly: Assembly, clock: Clock, time_s: Floats) -> tuple[Floats, Floats]:
    """Board-seconds of each row and of each stage's waits in a life [s]; a twin's are zero: it enters both phases with opposite signs."""
    lives = assembly.decode_steps + assembly.prefill_steps
    rows = assembly.calls * time_s * assembly.stage_ranks[assembly.row_stage] * lives[assembly.stage_step[assembly.row_stage]]
    waited = np.sum([clock.waits_s[cause] for cause in WAIT_CAUSES], axis=0)
    return rows, waited * assembly.stage_ranks * lives[assembly.stage_step]
