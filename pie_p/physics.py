"""The physical base: roofline time, power from achieved rates, collectives over their bandwidth bound.

Every learned regressor answers with a ratio to these figures, and falls back to them outside what was profiled. The constants are priors
from fits on public measurements (docs/method.md names them); a trained predictor brings its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_p.features import COLLECTIVE_CODES, KIND_CODE, Columns

Floats = NDArray[np.float64]
AnyColumns = Mapping[str, NDArray[Any]]


def smooth_max(first: Floats, second: Floats, *, power: float | Floats) -> Floats:
    """A smooth maximum, `(a^p + b^p)^(1/p)`: partly overlapped work takes a bit more than the longer part.

    >>> float(smooth_max(np.array([3.0]), np.array([4.0]), power=2.0)[0])
    5.0
    """
    largest = np.maximum(np.maximum(first, second), 1e-30)
    return np.asarray(largest * ((first / largest) ** power + (second / largest) ** power) ** (1.0 / power))


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Time and power of one operator from counted work and data-sheet figures.

    Shares are of the data-sheet peak that a good kernel reaches. Fitted by others' and our own refits of ML.ENERGY v3 (method page).
    """

    weight_share: float = 0.86  # of HBM bandwidth, streaming weights
    expert_share: float = 0.69  # same, grouped GEMMs
    kv_share: float = 0.71  # same, attention over the cache
    activation_share: float = 0.70  # same, norms and element-wise work
    flop_share: float = 0.70  # of peak FLOP/s, dense GEMM
    attention_flop_share: float = 0.50  # same, attention over a prompt
    overlap_power: float = 3.0  # exponent of the smooth maximum of memory and compute time
    link_share: float = 0.75  # of link bandwidth, large messages
    collective_floor_s: float = 6e-6  # a collective of no bytes: flags and barrier [s]
    busy_power: float = 0.06  # share of (limit - active idle) that any resident kernel draws
    memory_power: float = 0.60  # share at full HBM bandwidth
    flop_power: float = 0.90  # share at full peak FLOP/s
    link_power: float = 0.30  # share at full link bandwidth
    power_ceiling: float = 0.95  # of the limit: what a board settles at when the limit binds
    power_knee: float = 4.0  # exponent of the soft cap

    def compute_and_memory_s(self, columns: AnyColumns) -> tuple[Floats, Floats]:
        """Times at the achievable peaks, apart [s]."""
        kind = columns["kind_code"]
        experts, prefill = kind == KIND_CODE["experts"], kind == KIND_CODE["attention_prefill"]
        flop_share = np.where(prefill, self.attention_flop_share, self.flop_share)
        compute_s = columns["flops"] / (flop_share * columns["peak_flops_per_s"])
        rest = columns["hbm_bytes"] - columns["weight_bytes"] - columns["kv_bytes"]
        moved = (
            columns["weight_bytes"] / np.where(experts, self.expert_share, self.weight_share)
            + columns["kv_bytes"] / self.kv_share
            + rest / self.activation_share
        )
        return compute_s, moved / columns["hbm_bytes_per_s"]

    def collective_s(self, columns: AnyColumns) -> Floats:
        """A collective over its bandwidth bound, with a floor for meeting [s]. Zero for other operators."""
        inside, between = wire_bytes(columns)
        group = columns["group_size"]
        hops = np.where(columns["link_switched"] > 0, 1.0, np.maximum(group - 1.0, 1.0))
        crossing = columns["hosts"] > 1
        latency = self.collective_floor_s + hops * columns["link_latency_s"]
        latency = latency + np.where(crossing, 2.0 * columns["inter_latency_s"] * (columns["hosts"] - 1.0), 0.0)
        transfer = inside / (self.link_share * columns["link_bytes_per_s"])
        transfer = transfer + np.where(crossing, between / (self.link_share * columns["inter_bytes_per_s"]), 0.0)
        return np.asarray(np.where(is_collective(columns) & (group > 1), latency + transfer, 0.0))

    def time_s(self, columns: AnyColumns) -> Floats:
        """Seconds per call at the board's own power limit."""
        compute_s, memory_s = self.compute_and_memory_s(columns)
        return smooth_max(compute_s, memory_s, power=self.overlap_power) * (~is_collective(columns)) + self.collective_s(columns)

    def power_w(self, columns: AnyColumns, time_s: Floats) -> Floats:
        """Board power while an operator runs that takes `time_s` [W]."""
        seconds = np.maximum(time_s, 1e-12)
        inside, between = wire_bytes(columns)
        drawn = (
            self.busy_power
            + self.memory_power * columns["hbm_bytes"] / (seconds * columns["hbm_bytes_per_s"])
            + self.flop_power * columns["flops"] / (seconds * columns["peak_flops_per_s"])
            + self.link_power * (inside + between) / (seconds * columns["link_bytes_per_s"])
        )
        room = columns["limit_w"] - columns["active_idle_w"]
        most = (self.power_ceiling * columns["limit_w"] - columns["active_idle_w"]) / room
        return np.asarray(columns["active_idle_w"] + room * soft_cap(drawn, most, knee=self.power_knee))

    def wait_power_w(self, columns: AnyColumns) -> Floats:
        """Board power of a rank that waits: active idle and the spinning kernel or the warm clocks [W]."""
        return np.asarray(columns["active_idle_w"] + self.busy_power * (columns["limit_w"] - columns["active_idle_w"]))


def soft_cap(value: Floats, most: Floats, *, knee: float) -> Floats:
    """A value that bends towards its cap and never passes it: `v / (1 + (v/m)^k)^(1/k)`.

    >>> bool(soft_cap(np.array([10.0]), np.array([1.0]), knee=4.0)[0] < 1.0)
    True
    """
    return np.asarray(value / (1.0 + (value / most) ** knee) ** (1.0 / knee))


def is_collective(columns: AnyColumns) -> NDArray[np.bool_]:
    """Rows that move bytes between ranks."""
    return np.isin(columns["kind_code"], COLLECTIVE_CODES)


def wire_bytes(columns: AnyColumns) -> tuple[Floats, Floats]:
    """Bytes one rank puts on the links inside its host, and on those between hosts [B].

    Ring or pairwise algorithms over g ranks with payload p: all-reduce `2 p (g-1)/g` (p when the switch reduces), all-gather `p (g-1)`,
    reduce-scatter and all-to-all `p (g-1)/g`, send/recv `p`. Over h hosts the part between hosts is the same rule with h in place of g,
    each rank carrying its share of the payload.
    """
    kind, payload, group, hosts = columns["kind_code"], columns["payload_bytes"], columns["group_size"], columns["hosts"]
    local = np.maximum(np.minimum(group, columns["ranks_per_host"]), 1.0)
    reduces = columns["link_reduces"] > 0
    inside = payload * _passes(kind, group, reduces)
    across = payload / np.where(kind == KIND_CODE["send_recv"], 1.0, local) * _passes(kind, np.maximum(hosts, 1.0), False)
    send = kind == KIND_CODE["send_recv"]
    inside = np.where(send & (hosts > 1), 0.0, inside)
    return np.where(group > 1, inside, 0.0), np.where(hosts > 1, np.where(send, payload, across), 0.0)


def _passes(kind: NDArray[Any], group: Floats, reduces: NDArray[np.bool_] | bool) -> Floats:
    """Times the payload crosses a rank's link [-]."""
    share = (group - 1.0) / np.maximum(group, 1.0)
    passes = np.where(kind == KIND_CODE["all_reduce"], np.where(reduces, 1.0, 2.0 * share), share)
    passes = np.where(kind == KIND_CODE["all_gather"], group - 1.0, passes)
    return np.asarray(np.where(kind == KIND_CODE["send_recv"], 1.0, passes))


def capped(
    columns: AnyColumns, time_s: Floats, power_w: Floats, cap_w: Floats, physics: Roofline, *, clock_exponent: float = 3.0
) -> tuple[Floats, Floats]:
    """Time and power when the board must stay below `cap_w`: the clock falls until power meets the cap.

    Dynamic power goes with about the third power of the clock (frequency times voltage squared), so the clock falls to
    `((cap - idle) / (power - idle))^(1/3)`; the compute part of the time stretches by its inverse, the memory part hardly.

    Returns:
        `time_s` [s] and `power_w` [W], unchanged where the cap does not bind.
    """
    idle = columns["active_idle_w"]
    room = np.clip((cap_w - idle) / np.maximum(power_w - idle, 1e-9), 1e-3, 1.0)
    clock = room ** (1.0 / clock_exponent)
    compute_s, memory_s = physics.compute_and_memory_s(columns)
    before = smooth_max(compute_s, memory_s, power=physics.overlap_power)
    after = smooth_max(compute_s / clock, memory_s, power=physics.overlap_power)
    stretch = np.where(before > 0, after / np.maximum(before, 1e-30), 1.0)
    binds = power_w > cap_w
    return np.where(binds, time_s * stretch, time_s), np.where(binds, cap_w, power_w)


__all__ = ["Columns", "Floats", "Roofline", "capped", "is_collective", "smooth_max", "soft_cap", "wire_bytes"]
