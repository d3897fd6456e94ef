"""Clocks: the machine's own, and one that moves only when told, so that a protocol of minutes is tested in milliseconds.

Durations and time stamps come from a monotonic clock, never from the wall clock.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from typing_extensions import override

from pie_p.errors import InputError


class Clock(ABC):
    """Tells the time [s] and lets it pass; the zero is arbitrary."""

    @abstractmethod
    def now_s(self) -> float:
        """Time [s] since an arbitrary moment; never runs backwards."""

    @abstractmethod
    def sleep(self, duration_s: float) -> None:
        """Let `duration_s` [s] pass."""


class MonotonicClock(Clock):
    """`CLOCK_MONOTONIC`: one time for all processes of a host, so a sampler's stamps fit the workload's."""

    @override
    def now_s(self) -> float:
        return time.monotonic()

    @override
    def sleep(self, duration_s: float) -> None:
        if duration_s > 0:
            time.sleep(duration_s)


class SimulatedClock(Clock):
    """Time that passes when asked to.

    >>> clock = SimulatedClock()
    >>> clock.sleep(3600.0)
    >>> clock.now_s()
    3600.0
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    @override
    def now_s(self) -> float:
        return self._now_s

    @override
    def sleep(self, duration_s: float) -> None:
        if duration_s < 0:
            raise InputError(f"a simulated clock cannot run backwards: asked to sleep {duration_s} s; give 0 s or more")
        self._now_s += duration_s
