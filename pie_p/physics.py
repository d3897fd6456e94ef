"""The physical base of time: roofline and floors, collectives over their bandwidth bound.

Every learned regressor answers with a ratio to these figures, and falls back to them outside what was profiled. The constants are priors
from fits on public measurements (docs/method.md names them); a trained predictor brings its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pie_p.features import DTYPE_CODE, KIND_CODE, Columns
from pie_p.operators import COLLECTIVES, KINDS

SHARED_BYTES_PER_S: Final = 64e9  # links of at most that are PCIe, whose bridges all ranks of a host share; NVLink has wires of its own
REFERENCE_BYTES_PER_S: Final = 3.35e12  # HBM bandwidth of the H100 SXM, the board the shares are stated for [B/s]
_MOVES_BYTES: Final[NDArray[np.bool_]] = np.array([kind in COLLECTIVES for kind in KINDS])  # by kind code
BYTE_FLOPS_PER_S: Final = 1.979e15  # peak of the H100 SXM at 8 bits, the board the 8-bit shares are stated for [FLOP/s]
FOUR_BITS: Final = DTYPE_CODE["int4"]  # formats from here on have 4 bits
LOW_PRECISION: Final = DTYPE_CODE["fp8"]  # formats from here on have 8 bits or fewer

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
    """Time of one operator from counted work and data-sheet figures: a floor, and a smooth maximum of memory and compute time.

    Shares are of the data-sheet peak that a good kernel reaches; floors are what a kernel of no work takes inside a replayed graph. The
    priors are medians over the public operator tables of H100, H200 and B200 (docs/method.md, "Shares and floors").
    """

    weight_share: float = 0.90  # of HBM bandwidth, streaming weights
    expert_share: float = 0.88  # same, grouped GEMMs
    kv_share: float = 0.85  # same, attention over the cache
    activation_share: float = 0.60  # same, norms and element-wise work
    flop_share: float = 0.68  # of peak FLOP/s, dense GEMM
    expert_flop_share: float = 0.37  # same, grouped GEMMs
    byte_flop_share: float = 0.55  # same, dense GEMM with 8-bit weights on a board of 1.98e15 FLOP/s at 8 bits (H100, H200)
    byte_expert_flop_share: float = 0.38  # same, grouped GEMMs
    byte_exponent: float = 0.2  # how the dense share falls with that peak
    byte_expert_exponent: float = 1.05  # how the grouped share falls: block-scaled B200 tables reach no more FLOP/s than H200's
    low_flop_share: float = 0.48  # same, dense GEMM with 4-bit weights, of the peak of the format it computes in
    low_expert_flop_share: float = 0.16  # same, grouped GEMMs with such weights
    attention_flop_share: float = 0.60  # same, attention over a prompt
    size_exponent: float = 0.10  # shares fall with this power of bandwidth over the reference board's: wider boards are harder to fill
    memory_clock_exponent: float = 0.10  # how far a lower core clock slows memory: loads are issued by the cores
    overlap_power: float = 3.0  # exponent of the smooth maximum of memory and compute time
    linear_floor_s: float = 4.7e-6  # GEMM [s]
    quantise_s: float = 2e-6  # more for a GEMM whose activations are first brought to 8 bits or fewer [s]
    attention_floor_s: float = 10e-6  # attention [s]
    expert_floor_s: float = 27e-6  # routing, sorting and two grouped GEMMs [s]
    other_floor_s: float = 2e-6  # norms, element-wise work, scans [s]
    link_share: float = 0.65  # of link bandwidth, large messages
    shared_link_exponent: float = 0.8  # how PCIe slows with the ranks beyond two that share the host's bridges
    collective_floor_s: float = 4.5e-6  # a collective of no bytes in a graph: flags and barrier [s]
    eager_collective_floor_s: float = 20e-6  # the same launched from the host [s]
    crossing_floor_s: float = 25e-6  # more for a collective between hosts: proxy threads and NICs [s]

    def compute_and_memory_s(self, columns: AnyColumns) -> tuple[Floats, Floats]:
        """Times at the achievable peaks, apart [s]."""
        kind = columns["kind_code"]
        experts, prefill = kind == KIND_CODE["experts"], kind == KIND_CODE["attention_prefill"]
        bits = [columns["dtype_code"] >= FOUR_BITS, columns["dtype_code"] >= LOW_PRECISION]
        fall = BYTE_FLOPS_PER_S / columns["peak_flops_per_s"]
        dense_share = np.select(bits, [self.low_flop_share, self.byte_flop_share * fall**self.byte_exponent], self.flop_share)
        byte_expert_share = np.minimum(self.byte_expert_flop_share * fall**self.byte_expert_exponent, 0.6)
        expert_share = np.select(bits, [self.low_expert_flop_share, byte_expert_share], self.expert_flop_share)
        flop_share = np.where(experts, expert_share, np.where(prefill, self.attention_flop_share, dense_share))
        compute_s = columns["flops"] / (flop_share * columns["peak_flops_per_s"])
        rest = columns["hbm_bytes"] - columns["weight_bytes"] - columns["kv_bytes"]
        moved = (
            columns["weight_bytes"] / np.where(experts, self.expert_share, self.weight_share)
            + columns["kv_bytes"] / self.kv_share
            + rest / self.activation_share
        )
        fill = np.maximum(columns["hbm_bytes_per_s"] / REFERENCE_BYTES_PER_S, 1.0) ** self.size_exponent
        return compute_s * fill, moved * fill / columns["hbm_bytes_per_s"]

    def floor_s(self, columns: AnyColumns) -> Floats:
        """What a kernel takes however little it does [s]; zero for collectives, which have their own."""
        floors = np.full(len(KINDS), self.other_floor_s)
        for kinds, floor_s in (
            (("linear", "lm_head", "router"), self.linear_floor_s),
            (("attention_prefill", "attention_decode"), self.attention_floor_s),
            (("experts",), self.expert_floor_s),
            (tuple(COLLECTIVES), 0.0),
        ):
            floors[[KIND_CODE[kind] for kind in kinds]] = floor_s
        kind = columns["kind_code"]
        quantised = (kind == KIND_CODE["linear"]) & (columns["dtype_code"] >= LOW_PRECISION)
        return np.asarray(floors[kind] + self.quantise_s * quantised)

    def collective_s(self, columns: AnyColumns) -> Floats:
        """A collective over its bandwidth bound, with a floor for meeting [s]. Zero for other operators."""
        inside, between = wire_bytes(columns)
        group = columns["group_size"]
        switched = columns["link_switched"] > 0
        turns = np.where(columns["kind_code"] == KIND_CODE["all_reduce"], 2.0, 1.0)  # a ring goes round once, an all-reduce twice
        hops = np.where(switched, 0.5, turns * np.maximum(group - 1.0, 1.0))
        crossing = columns["hosts"] > 1
        eager = columns["eager"] if "eager" in columns else np.zeros(len(group))
        floor = np.where(eager > 0, self.eager_collective_floor_s, self.collective_floor_s)
        latency = floor + hops * columns["link_latency_s"]
        latency = latency + np.where(crossing, self.crossing_floor_s + 2.0 * columns["inter_latency_s"] * (columns["hosts"] - 1.0), 0.0)
        shared = ~switched & (columns["link_bytes_per_s"] <= SHARED_BYTES_PER_S)
        crowd = np.where(shared, np.maximum(np.minimum(group, columns["ranks_per_host"]) / 2.0, 1.0) ** self.shared_link_exponent, 1.0)
        transfer = inside * crowd / (self.link_share * columns["link_bytes_per_s"])
        transfer = transfer + np.where(crossing, between / (self.link_share * columns["inter_bytes_per_s"]), 0.0)
        return np.asarray(np.where(is_collective(columns) & (group > 1), latency + transfer, 0.0))

    def time_s(self, columns: AnyColumns) -> Floats:
        """Seconds per call at the board's own power limit."""
        compute_s, memory_s = self.compute_and_memory_s(columns)
        kernel_s = smooth_max(compute_s, memory_s, power=self.overlap_power) + self.floor_s(columns)
        return kernel_s * (~is_collective(columns)) + self.collective_s(columns)

    def stretch(self, columns: AnyColumns, clock: Floats) -> Floats:
        """How much longer an operator takes when the clock falls to a share `clock`: the compute part stretches, memory hardly [-]."""
        compute_s, memory_s = self.compute_and_memory_s(columns)
        floor_s = self.floor_s(columns)
        before = smooth_max(compute_s, memory_s, power=self.overlap_power) + floor_s
        after = smooth_max(compute_s / clock, memory_s / clock**self.memory_clock_exponent, power=self.overlap_power) + floor_s
        return np.where(is_collective(columns), 1.0, after / np.maximum(before, 1e-30))


def soft_cap(value: Floats, most: Floats, *, knee: float) -> Floats:
    """A value that bends towards its cap and never passes it: `v / (1 + (v/m)^k)^(1/k)`.

    >>> bool(soft_cap(np.array([10.0]), np.array([1.0]), knee=4.0)[0] < 1.0)
    True
    """
    return np.asarray(value / (1.0 + (value / most) ** knee) ** (1.0 / knee))


def is_collective(columns: AnyColumns) -> NDArray[np.bool_]:
    """Rows that move bytes between ranks."""
    return _MOVES_BYTES[columns["kind_code"]]


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


__all__ = ["Columns", "Floats", "Roofline", "is_collective", "smooth_max", "soft_cap", "wire_bytes"]
