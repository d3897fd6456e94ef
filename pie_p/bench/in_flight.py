"""How many requests are in flight, as an integral over time: its mean is the concurrency that was really reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class InFlight:
    """Counts requests that are with the server now.

    >>> moments = iter([0.0, 1.0, 3.0, 4.0])
    >>> gauge = InFlight(now_s=lambda: next(moments))
    >>> with gauge.one():
    ...     pass
    >>> gauge.request_s()  # one request from 1 s to 3 s
    2.0
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._integral, self._at_s = 0.0, now_s()
        self.count = 0

    @contextmanager
    def one(self, requests: int = 1) -> Iterator[None]:
        """So many more requests, while the block runs."""
        self._change(requests)
        try:
            yield
        finally:
            self._change(-requests)

    def request_s(self) -> float:
        """Request-seconds so far: mean concurrency times time [s]."""
        self._change(0)
        return self._integral

    def _change(self, by: int) -> None:
        now_s = self._now_s()
        self._integral += self.count * (now_s - self._at_s)
        self._at_s, self.count = now_s, self.count + by
