"""Collectives over gloo or NCCL: how long bytes take to move once every rank has arrived.

      rank 0  ██ work ██│wwwwwwwwwwwwww│════ transfer ════│          w: waiting, for the rank that is late
      rank 1  ██ work ███████│wwwwwwwww│════ transfer ════│
      rank 2  ██ work █████████████████│════ transfer ════│          arrival of the last rank = start of the transfer, for all
                        arrival        start            end

Payload is what one rank hands over, as in `pie_p.operators`: the whole tensor of an all-reduce, one rank's part of an all-gather, all
that a rank sends in an all-to-all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pie_p.errors import InputError
from pie_p.extras import require
from pie_p.operators import ACTIVATION_BYTES, COLLECTIVES, Kind
from pie_p.profiling.design import farthest_first
from pie_p.profiling.ranks import Rank, torch_distributed
from pie_p.profiling.samples import Floats
from pie_p.profiling.stamps import find_offset, on_common_clock, stamper

Call = Callable[[], object]
LEAST_PAYLOAD_BYTES: Final = 1 << 10
MOST_PAYLOAD_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Meetings:
    """Three moments of every collective on every rank, on a common clock: rows are meetings, columns ranks."""

    kind: Kind
    payload_bytes: float
    arrival_s: Floats  # the rank has nothing left to do but to meet
    end_s: Floats  # the rank has its result

    @property
    def start_s(self) -> Floats:
        """Start of the transfer: the arrival of the last rank that takes part, one per meeting and rank."""
        if self.kind != "send_recv":
            return np.broadcast_to(self.arrival_s.max(axis=1, keepdims=True), self.arrival_s.shape)
        pairs = self.arrival_s[:, : self.arrival_s.shape[1] // 2 * 2].reshape(len(self.arrival_s), -1, 2)
        paired = np.repeat(pairs.max(axis=2), 2, axis=1)
        return np.hstack((paired, self.arrival_s[:, paired.shape[1] :]))

    @property
    def wait_s(self) -> Floats:
        """From a rank's arrival to the start of the transfer."""
        return self.start_s - self.arrival_s

    @property
    def transfer_s(self) -> Floats:
        """From the start of the transfer to a rank's end."""
        return self.end_s - self.start_s


def payloads(count: int, *, least_bytes: int = LEAST_PAYLOAD_BYTES, most_bytes: int = MOST_PAYLOAD_BYTES) -> list[int]:
    """Payloads to measure [B], powers of two, most informative first: the middle, the ends, then the widest gaps.

    >>> payloads(3)
    [1048576, 1024, 1073741824]
    """
    exponents = np.arange(int(np.log2(least_bytes)), int(np.log2(most_bytes)) + 1)
    chosen = farthest_first(exponents[:, None].astype(np.float64), min(count, len(exponents)))
    return [1 << int(exponents[index]) for index in chosen]


def make_collective(rank: Rank, kind: Kind, payload_bytes: float) -> Call:
    """Tensors and the call of one collective; every rank must make and call it alike.

    Raises:
        InputError: not a collective.
    """
    if kind not in COLLECTIVES:
        raise InputError(f"{kind!r} is no collective; allowed: {', '.join(sorted(COLLECTIVES))}")
    torch, distributed = require("torch", extra="profile"), torch_distributed()
    values = max(rank.size, round(payload_bytes / ACTIVATION_BYTES / rank.size) * rank.size)  # every rank gets a part
    mine = torch.randn(values, device=rank.device).to(torch.bfloat16)
    return _CALLS[kind](torch, distributed, rank, mine)


def _all_reduce(_torch: Any, distributed: Any, _rank: Rank, mine: Any) -> Call:
    def call() -> object:
        distributed.all_reduce(mine, op=distributed.ReduceOp.MAX)  # as many bytes as a sum, and the values stay in range
        return mine

    return call


def _all_gather(torch: Any, distributed: Any, rank: Rank, mine: Any) -> Call:
    gathered = torch.empty(rank.size * len(mine), device=rank.device, dtype=mine.dtype)
    collective = _named(distributed, "all_gather_single", "all_gather_into_tensor")
    return lambda: collective(gathered, mine)


def _reduce_scatter(torch: Any, distributed: Any, rank: Rank, mine: Any) -> Call:
    part = torch.empty(len(mine) // rank.size, device=rank.device, dtype=mine.dtype)
    collective = _named(distributed, "reduce_scatter_single", "reduce_scatter_tensor")
    return lambda: collective(part, mine)


def _named(distributed: Any, new: str, old: str) -> Any:
    """Torch 2.13 renamed two collectives and warns about the old names."""
    return getattr(distributed, new, None) or getattr(distributed, old)


def _all_to_all(torch: Any, distributed: Any, _rank: Rank, mine: Any) -> Call:
    received = torch.empty_like(mine)
    return lambda: distributed.all_to_all_single(received, mine)


def _send_recv(_torch: Any, distributed: Any, rank: Rank, mine: Any) -> Call:
    """Even ranks send to the next one; the last of an odd number has no partner."""
    partner = rank.index ^ 1
    if partner >= rank.size:
        return lambda: None
    if rank.index % 2 == 0:
        return lambda: distributed.send(mine, partner)
    return lambda: distributed.recv(mine, partner)


_CALLS: Final[dict[Kind, Callable[[Any, Any, Rank, Any], Call]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "send_recv": _send_recv,
}


def meet(rank: Rank, kind: Kind, payload_bytes: float, *, meetings: int, work: Call | None = None, warm_up: int = 3) -> Meetings:
    """Run `work` and then the collective, `meetings` times; the three moments of each, the same on every rank.

    Without `work` ranks come to each meeting straight from the last one, and waits are what the collective itself leaves.
    """
    call = make_collective(rank, kind, payload_bytes)
    for _ in range(warm_up):
        call()
    marks = stamper(rank.device)
    before = find_offset(rank)
    rank.barrier()
    for _ in range(meetings):
        if work is not None:
            work()
        marks.mark()
        call()
        marks.mark()
    stamps_s = marks.stamps_s()
    mine = on_common_clock(stamps_s, before, find_offset(rank)).reshape(meetings, 2)
    every = np.stack(rank.gather(mine), axis=1)  # meetings, ranks, (arrival, end)
    return Meetings(kind=kind, payload_bytes=payload_bytes, arrival_s=every[:, :, 0], end_s=every[:, :, 1])
