"""A simulated host of GPUs with a known law, whose form is not the predictor's: what a profile of it should give back can be worked out.

Time of a kernel: launch + the 4-norm of its compute and its memory time (both partly hidden behind each other), where the reached share of
the peak grows with the work, `work / (work + half)`. Power: idle + half the room x (u + 0.05)^0.8, u from what the time leaves of both
rates; it stays below the limit, because how a limit binds is another question. Collectives: `latency x (g - 1)^0.7 + moved / bandwidth`, at
the power of waiting + 90 W x (link use)^0.8. Jitter of work is log-normal, and waits at meetings follow from it; besides there is a gap
after every kernel and one after every step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pie_p.operators import COLLECTIVES, Operator
from pie_p.profiling.clocks import SimulatedClock
from pie_p.profiling.design import signature
from pie_p.profiling.laws import Timeline
from pie_p.profiling.measurement import Bench, Workload
from pie_p.profiling.samples import Floats
from pie_p.profiling.sampling import SimulatedSampler
from pie_p.profiling.simulated_meter import Artefacts, SimulatedMeter
from pie_p.profiling.window import MeterTiming


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedGpu:
    """The law of one board; the defaults are near an H100 SXM."""

    peak_flops_per_s: float = 989e12
    hbm_bytes_per_s: float = 3.35e12
    link_bytes_per_s: float = 400e9
    link_latency_s: float = 9e-6
    idle_w: float = 75.0
    wait_w: float = 140.0  # spinning in a collective
    limit_w: float = 700.0
    launch_s: float = 2.5e-6
    jitter: float = 0.03  # standard deviation of the logarithm of a rank's work between two meetings
    gap_s: float = 1.2e-6  # between kernels
    host_s: float = 0.9e-3  # between steps

    def time_s(self, operator: Operator) -> float:
        """True mean time of one call [s]."""
        if operator.kind in COLLECTIVES:
            return self.link_latency_s * math.pow(max(1, operator.group_size - 1), 0.7) + moved_bytes(operator) / self.link_bytes_per_s
        compute_s = (operator.flops + 2e9) / (0.82 * self.peak_flops_per_s) if operator.flops else 0.0
        memory_s = (operator.hbm_bytes + 1e6) / (0.91 * self.hbm_bytes_per_s)
        return float(self.launch_s + (compute_s**4 + memory_s**4) ** 0.25)

    def power_w(self, operator: Operator) -> float:
        """True power while it runs [W]."""
        if operator.kind in COLLECTIVES:
            reached = moved_bytes(operator) / self.time_s(operator) / self.link_bytes_per_s
            return self.wait_w + 90.0 * math.pow(reached, 0.8)
        time_s = self.time_s(operator)
        used = operator.flops / time_s / self.peak_flops_per_s + 0.6 * operator.hbm_bytes / time_s / self.hbm_bytes_per_s
        return self.idle_w + 0.5 * (self.limit_w - self.idle_w) * math.pow(used + 0.05, 0.8)

    def waits_s(self, operator: Operator, group_size: int, *, meetings: int, seed: int = 0) -> Floats:
        """Waits of each rank at meetings after `operator`: rows are meetings, columns ranks [s]."""
        chance = np.random.default_rng([seed, group_size])
        arrival_s = self.time_s(operator) * np.exp(chance.normal(0.0, self.jitter, (meetings, group_size)))
        return np.asarray(arrival_s.max(axis=1, keepdims=True) - arrival_s, dtype=np.float64)


def moved_bytes(operator: Operator) -> float:
    """What one rank moves in a collective, the switch reducing [B]."""
    others, payload = operator.group_size - 1, operator.payload_bytes
    if operator.kind == "all_gather":
        return payload * others
    if operator.kind in ("all_reduce", "send_recv"):
        return payload
    return payload * others / operator.group_size


class SimulatedKernel(Workload):
    """An operator on a simulated board: calls let the simulated time pass and draw the law's power."""

    def __init__(self, operator: Operator, gpu: SimulatedGpu, clock: SimulatedClock, board: Timeline, *, seed: int = 0) -> None:
        self._time_s, self._power_w, self._gpu = gpu.time_s(operator), gpu.power_w(operator), gpu
        self._clock, self._board = clock, board
        self._signature = f"simulated {signature(operator)}"
        self._chance = np.random.default_rng([seed, *self._signature.encode()])

    @property
    def signature(self) -> str:
        """Operator and device."""
        return self._signature

    def run(self, calls: int) -> float:
        """Let the calls pass; jitter averages out over many [s]."""
        took_s = calls * self._time_s * float(np.exp(self._chance.normal(0.0, self._gpu.jitter / math.sqrt(calls))))
        self._board.set_level(self._clock.now_s(), self._power_w)
        self._clock.sleep(took_s)
        self._board.set_level(self._clock.now_s(), self._gpu.idle_w)
        return took_s

    def time_each(self, calls: int) -> Floats:
        """Times of single calls [s]."""
        times_s = self._time_s * np.exp(self._chance.normal(0.0, self._gpu.jitter, calls))
        self._board.set_level(self._clock.now_s(), self._power_w)
        self._clock.sleep(float(times_s.sum()))
        self._board.set_level(self._clock.now_s(), self._gpu.idle_w)
        return np.asarray(times_s, dtype=np.float64)


def simulated_bench(gpu: SimulatedGpu, *, artefacts: Artefacts | None = None, uuid: str = "SIM") -> tuple[Bench, SimulatedClock, Timeline]:
    """A bench whose board follows the law, behind a meter with NVML's artefacts; its clock; what the board draws."""
    clock, board, shown = SimulatedClock(), Timeline(idle_w=gpu.idle_w, rise_s=0.01), artefacts or Artefacts()
    meter = SimulatedMeter(board, clock, artefacts=shown, uuid=uuid)
    timing = MeterTiming(period_s=shown.period_s, window_s=shown.window_s, lag_s=shown.lag_s, residual=0.0, updates=0)
    return Bench(clock=clock, meter=meter, sampler=SimulatedSampler(meter, clock), timing=timing), clock, board
