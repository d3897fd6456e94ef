"""Time stamps of ranks on one common clock.

One host: every process reads the same CLOCK_MONOTONIC. Several hosts: each rank's offset to rank 0 is estimated by exchanging messages
(the exchange with the shortest round trip is the most exact, off by at most half of it), before and after the run; between the two the
offset is taken to drift in a straight line. On CUDA, moments in the stream are events, tied to the host's clock at one moment.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from pie_p.extras import require
from pie_p.profiling.ranks import Rank, torch_distributed
from pie_p.profiling.samples import Floats

EXCHANGES: Final = 32


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question and answer between a rank and rank 0 [s]."""

    asked_s: float  # on the asker's clock
    answered_s: float  # on rank 0's clock
    heard_s: float  # on the asker's clock


@dataclass(frozen=True, slots=True)
class Offset:
    """What to add to a rank's clock to get rank 0's, and how sure that is [s]."""

    at_s: float  # on the rank's clock
    offset_s: float
    doubt_s: float  # at most: half of the shortest round trip


def offset_of(exchanges: Sequence[Exchange]) -> Offset:
    """Offset from the exchange with the shortest round trip.

    >>> offset_of([Exchange(10.0, 110.5, 10.2), Exchange(11.0, 111.51, 11.02)])
    Offset(at_s=11.01, offset_s=100.5, doubt_s=0.01)
    """
    best = min(exchanges, key=lambda exchange: exchange.heard_s - exchange.asked_s)
    middle_s = (best.asked_s + best.heard_s) / 2
    return Offset(round(middle_s, 9), round(best.answered_s - middle_s, 9), round((best.heard_s - best.asked_s) / 2, 9))


def on_common_clock(stamps_s: Floats, before: Offset, after: Offset) -> Floats:
    """A rank's stamps on rank 0's clock, the offset drifting in a straight line between two estimates [s].

    >>> on_common_clock(np.array([0.0, 5.0, 10.0]), Offset(0.0, 100.0, 0.0), Offset(10.0, 100.001, 0.0)).tolist()
    [100.0, 105.0005, 110.001]
    """
    length_s = after.at_s - before.at_s
    drift = (after.offset_s - before.offset_s) / length_s if length_s > 0 else 0.0
    return stamps_s + before.offset_s + drift * (stamps_s - before.at_s)


def find_offset(rank: Rank) -> Offset:
    """This rank's offset to rank 0: exactly none where all ranks share a host, else by exchange."""
    if len(set(rank.gather(host_name()))) == 1:
        return Offset(time.monotonic(), 0.0, 0.0)
    offset = Offset(time.monotonic(), 0.0, 0.0)
    for other in range(1, rank.size):
        if rank.index == other:
            offset = offset_of([_ask(rank) for _ in range(EXCHANGES)])
        elif rank.index == 0:
            for _ in range(EXCHANGES):
                _answer(rank, other)
    return offset


def host_name() -> str:
    """The host, as one boot of one machine: containers may share a name, and then their clock as well."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else platform.node()


def _ask(rank: Rank) -> Exchange:
    torch, distributed = require("torch", extra="profile"), torch_distributed()
    message = torch.zeros(1, dtype=torch.float64, device=rank.device)
    asked_s = time.monotonic()
    distributed.send(message, 0)
    distributed.recv(message, 0)
    answered_s = float(message[0])
    return Exchange(asked_s, answered_s, time.monotonic())


def _answer(rank: Rank, other: int) -> None:
    torch, distributed = require("torch", extra="profile"), torch_distributed()
    message = torch.zeros(1, dtype=torch.float64, device=rank.device)
    distributed.recv(message, other)
    message[0] = time.monotonic()
    distributed.send(message, other)


class Stamper(Protocol):
    """Marks moments in the course of a rank's work."""

    def mark(self) -> None:
        """The work queued so far ends here."""

    def stamps_s(self) -> Floats:
        """Every mark so far, on this host's monotonic clock [s]; waits for the work, and starts anew."""


class HostStamper(Stamper):
    """Work on the CPU is done when its call returns."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> None:
        """Read the clock."""
        self._marks.append(time.monotonic())

    def stamps_s(self) -> Floats:
        """The readings [s]."""
        marks, self._marks = self._marks, []
        return np.array(marks)


class CudaStamper(Stamper):
    """Work on the GPU is done when the event behind it is; events are tied to the host's clock by one that the host waited for."""

    def __init__(self, device: str) -> None:
        self._torch: Any = require("torch", extra="profile")
        self._device = device
        self._events: list[Any] = []
        self._tie()

    def mark(self) -> None:
        """Record an event in the current stream."""
        self._events.append(self._record())

    def stamps_s(self) -> Floats:
        """Moments of the events [s]."""
        self._torch.cuda.synchronize(self._device)
        stamps = np.array([self._base_s + self._base.elapsed_time(event) / 1e3 for event in self._events])
        self._events = []
        self._tie()
        return stamps

    def _record(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _tie(self) -> None:
        """Of some tries, keep the one in which recording and waiting took least: there the host's clock is nearest to the event."""
        best_s = np.inf
        for _ in range(16):
            self._torch.cuda.synchronize(self._device)
            before_s = time.monotonic()
            event = self._record()
            event.synchronize()
            after_s = time.monotonic()
            if after_s - before_s < best_s:
                best_s, self._base, self._base_s = after_s - before_s, event, (before_s + after_s) / 2


def stamper(device: str) -> Stamper:
    """The stamper for a device."""
    return CudaStamper(device) if device.startswith("cuda") else HostStamper()
