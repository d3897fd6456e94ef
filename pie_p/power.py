"""The physical base of power: what a board draws from achieved rates, and how its power limit bends that.

A board's dynamic power is a share of the room between active idle and limit. Kernels ask for a share (their *demand*) that depends on the
rates they reach; a power limit acts more slowly than kernels follow each other, so it bends the mean demand of a run, not that of a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pie_p.features import KIND_CODE
from pie_p.physics import AnyColumns, Floats, is_collective, soft_cap, wire_bytes

# HBM bandwidth over dynamic room of the H100 SXM, 3.35e12 B/s over (700 - 118) W: the board the demand shares are stated for.
REFERENCE_BYTES_PER_J: Final = 5.8e9


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """Demand of a kernel as a share of `limit - active idle`.

    Fitted on ML.ENERGY v3 and v2 (docs/method.md, "Power"). FLOPs enter with an exponent below 1: half-filled tensor cores draw more than
    half. Across boards the energy per byte falls more slowly than bandwidth per watt rises, hence `generation_exponent`.
    """

    wait: float = 0.032  # a rank that waits: warm clocks, spinning kernel
    kernel: float = 0.103  # any resident compute kernel
    collective: float = 0.101  # any resident collective
    weight: float = 0.548  # at full HBM bandwidth, weights
    expert_weight: float = 0.641  # same, expert weights
    kv: float = 1.38  # same, KV cache
    activation: float = 0.405  # same, activations
    flop: float = 2.4  # at peak FLOP/s, dense GEMM
    expert_flop: float = 4.0  # same, grouped GEMM
    attention_flop: float = 1.67  # same, attention
    flop_exponent: float = 0.546
    link: float = 0.304  # at full link bandwidth
    ceiling: float = 0.961  # of the limit: what a board settles at when the limit binds
    knee: float = 3.76  # exponent of the soft cap
    generation_exponent: float = 0.5
    clock_exponent: float = 3.0  # dynamic power over clock: frequency times voltage squared
    lowest_voltage_clock: float = 0.6  # share of the clock below which voltage falls no further, and power goes with the clock
    lowest_clock: float = 0.2  # share of the clock a board keeps at least (H100: 345 of 1980 MHz)
    off_core: float = 0.1  # share of dynamic power that a lower core clock does not touch: HBM and links

    def demand(self, columns: AnyColumns, time_s: Floats) -> Floats:
        """Share of the room that each operator asks for while it runs; above 1 where the limit would bind [-]."""
        seconds = np.maximum(time_s, 1e-9)
        kind, collective = columns["kind_code"], is_collective(columns)
        experts = kind == KIND_CODE["experts"]
        attention = (kind == KIND_CODE["attention_decode"]) | (kind == KIND_CODE["attention_prefill"])
        rest = columns["hbm_bytes"] - columns["weight_bytes"] - columns["kv_bytes"]
        moved = (
            np.where(experts, self.expert_weight, self.weight) * columns["weight_bytes"]
            + self.kv * columns["kv_bytes"]
            + self.activation * rest
        ) / (seconds * columns["hbm_bytes_per_s"])
        rate = np.maximum(columns["flops"] / (seconds * columns["peak_flops_per_s"]), 0.0)
        flop = np.where(experts, self.expert_flop, np.where(attention, self.attention_flop, self.flop)) * rate**self.flop_exponent
        inside, between = wire_bytes(columns)
        wire = self.link * (inside + between) / (seconds * columns["link_bytes_per_s"])
        return np.asarray(np.where(collective, self.collective, self.kernel) + self.generation(columns) * (moved + flop) + wire)

    def generation(self, columns: AnyColumns) -> Floats:
        """How much more of its room a board needs than the reference for the same share of its bandwidth [-]."""
        room = columns["limit_w"] - columns["active_idle_w"]
        return np.asarray((columns["hbm_bytes_per_s"] / (room * REFERENCE_BYTES_PER_J)) ** self.generation_exponent)

    def settled(self, demand: Floats, *, limit_w: Floats, idle_w: Floats) -> Floats:
        """Share of the room that a mean demand settles at under the board's own limit [-]."""
        most = (self.ceiling * limit_w - idle_w) / (limit_w - idle_w)
        return soft_cap(np.maximum(demand, 1e-12), most, knee=self.knee)

    def clock_at(self, share: Floats) -> Floats:
        """Share of the clock at which dynamic power is `share` of what it was [-].

        Above the lowest voltage dynamic core power goes with the third power of the clock, below it with the clock itself.

        >>> tuple(round(float(clock), 3) for clock in PowerLaw(off_core=0.0).clock_at(np.array([1.0, 0.343, 0.108])))
        (1.0, 0.7, 0.3)
        """
        core = np.clip((share - self.off_core) / (1.0 - self.off_core), 1e-3, 1.0)
        knee = self.lowest_voltage_clock
        clock = np.where(core >= knee**self.clock_exponent, core ** (1.0 / self.clock_exponent), core / knee ** (self.clock_exponent - 1.0))
        return np.maximum(clock, self.lowest_clock)

    def power_w(self, columns: AnyColumns, time_s: Floats) -> Floats:
        """Board power of an operator that runs again and again, as an operator benchmark sees it [W]."""
        limit_w, idle_w = columns["limit_w"], columns["active_idle_w"]
        share = self.settled(self.demand(columns, time_s), limit_w=limit_w, idle_w=idle_w)
        return np.asarray(idle_w + (limit_w - idle_w) * share)
