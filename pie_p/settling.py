"""Where a run settles: its steps' times and its boards' power, under the board's own limit and under a lower cap.

The power limit binds on the mean over a run. When a cap below the board's own limit binds, the clock falls until power meets it: compute
stretches, memory hardly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def settle(
    assembly: Assembly,
    time_s: Floats,
    *,
    costs: Sequence[ServingCosts],
    law: PowerLaw,
    roofline: Roofline,
    limits_w: Floats,
) -> Run:
    """Run the clock and find the power.

    Args:
        assembly: the flattened cases.
        time_s: seconds per call of each row at the board's own limit [s].
        costs: serving costs of each case's engine.
        law: power law.
        roofline: splits a row's time into compute and memory when the clock falls.
        limits_w: power cap per board of each case, infinite where there is none [W].
    """
    clock = run_clock(assembly, time_s, costs)
    demand = law.demand(assembly.columns, time_s)
    first_row = np.searchsorted(assembly.row_case, np.arange(len(assembly.cases)))
    own_w, idle_w = assembly.columns["limit_w"][first_row], assembly.columns["active_idle_w"][first_row]
    asked = mean_demand(assembly, clock, time_s, demand, wait=law.wait)
    share = law.settled(asked, limit_w=own_w, idle_w=idle_w)
    most = np.maximum(law.ceiling * limits_w - idle_w, 1.0) / (own_w - idle_w)
    binds = share > most
    if binds.any():
        fallen = np.where(binds, np.minimum(most / share, 1.0) ** (1.0 / law.clock_exponent), 1.0)
        time_s = time_s * roofline.stretch(assembly.columns, fallen[assembly.row_case])
        clock = run_clock(assembly, time_s, costs)
        asked = mean_demand(assembly, clock, time_s, demand, wait=law.wait)
        share = np.where(binds, most, share)
    bent = (share / asked) * (own_w - idle_w)  # watts per unit of demand
    case_of_stage = assembly.step_case[assembly.stage_step]
    return Run(
        assembly=assembly,
        clock=clock,
        time_s=time_s,
        power_w=(idle_w[assembly.row_case] + demand * bent[assembly.row_case]),
        wait_power_w=(idle_w + law.wait * bent)[case_of_stage],
    )


def mean_demand(assembly: Assembly, clock: Clock, time_s: Floats, demand: Floats, *, wait: float) -> Floats:
    """Demand of each case, mean over its boards and its life [-]."""
    lives = assembly.decode_steps + assembly.prefill_steps

    def per_case(values: Floats, of_case: NDArray[np.int64]) -> Floats:
        return np.asarray(np.bincount(of_case, weights=values, minlength=len(assembly.cases)), dtype=np.float64)

    row_weight = assembly.calls * time_s * assembly.stage_ranks[assembly.row_stage] * lives[assembly.stage_step[assembly.row_stage]]
    case_of_stage = assembly.step_case[assembly.stage_step]
    waited = np.sum([clock.waits_s[cause] for cause in WAIT_CAUSES], axis=0) * assembly.stage_ranks * lives[assembly.stage_step]
    asked = per_case(row_weight * demand, assembly.row_case) + wait * per_case(waited, case_of_stage)
    return asked / (per_case(row_weight, assembly.row_case) + per_case(waited, case_of_stage))
