"""The energies that a simulated host's law gives a request, part by part, worked out without any predictor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pie_p.operators import COLLECTIVES
from pie_p.profiling.simulated_host import SimulatedGpu
from pie_p.serving import Case, assemble


@dataclass(frozen=True)
class Truth:
    """Energies of a request by the law alone [J]."""

    compute_j: float
    communication_j: float
    wait_j: float
    time_per_token_s: float

    @property
    def total_j(self) -> float:
        return self.compute_j + self.communication_j + self.wait_j


def truth(asked: Case, gpu: SimulatedGpu) -> Truth:
    """Operators as expanded; their times, powers and waits from the law, waits of late ranks by drawing lots. Tensor parallelism alone."""
    assembly = assemble([asked])
    operators = [row.operator for row in assembly.rows]
    time_s, power_w = (np.array([law(operator) for operator in operators]) for law in (gpu.time_s, gpu.power_w))
    lives = (assembly.decode_steps + assembly.prefill_steps)[assembly.stage_step] * assembly.stage_ranks
    runs = assembly.calls * lives[assembly.row_stage]
    meets = np.array([operator.kind in COLLECTIVES for operator in operators])
    work = np.exp(np.random.default_rng(0).normal(0.0, gpu.jitter, (200_000, asked.deployment.plan.tp)))
    late = float((work.max(axis=1) - work.mean(axis=1)).mean())
    waited_s = late * (runs * time_s)[~meets].sum() + gpu.gap_s * runs.sum() + gpu.host_s * lives.sum()
    schedule = assembly.schedules[0]
    energy_j = runs * time_s * power_w / schedule.sharing
    lived_s = (waited_s + (runs * time_s).sum()) / asked.deployment.plan.tp
    return Truth(
        time_per_token_s=float(lived_s * schedule.crowding / schedule.output_tokens),
        compute_j=float(energy_j[~meets].sum()),
        communication_j=float(energy_j[meets].sum()),
        wait_j=float(gpu.wait_w * waited_s / schedule.sharing),
    )
