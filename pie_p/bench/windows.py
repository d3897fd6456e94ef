"""Windows of a run: from the first request sent to the last whole response, with the energy of exactly that time.

    window 0                                  cut   window 1                        broken off: Ctrl-C, or the server is gone
    │▒▒▒▒▒▒▒▒▒▒│                               │     │▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│▒▒▒▒
       │▒▒▒▒▒▒▒▒▒▒▒▒▒│     │▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│▒▒▒▒▒│   │▒▒▒▒▒▒▒▒▒▒▒▒▒
    ├──────────────────────────────────────────┼───────────────────────┤ ends with the last whole response; what was in flight then
    └ first request sent                                                 is counted nowhere

A long run is cut at moments, so that a crash costs minutes at most: samplers of the new window are running before those of the old one
stop, and a response counts in the window it ends in. Seconds and joules of the windows add up to those of the run without a gap.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pie_p.bench.folders import RunManifest, commit_window, wall_time
from pie_p.bench.in_flight import InFlight
from pie_p.bench.metering import Metering, Reading, WindowEnergy
from pie_p.bench.outcomes import Fault, Outcome
from pie_p.bench.rows import row_of
from pie_p.errors import DeviceError

GIVE_UP: Final[dict[Fault, int]] = {"connect": 3, "refused": 3}  # prompts in a row without an answer, until the run is broken off
GIVE_UP_ANY: Final = 20  # the same for other faults


class ServerGoneError(Exception):
    """Several prompts in a row had no answer for a reason that the next will meet too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchProgress:
    """How far a run is."""

    done: int  # prompts with an answer, those of earlier starts included [-]
    failed: int  # prompts without one, of this start [-]
    total: int  # prompts times repetitions [-]
    tokens: int  # written in this start [-]
    seconds: float  # of this start, warm-up left out [s]

    def __str__(self) -> str:
        speed = f", {self.tokens / self.seconds:.0f} tokens/s" if self.seconds > 0 else ""
        return f"{self.done}/{self.total}{speed}{f', {self.failed} failed' if self.failed else ''}"


OnProgress = Callable[[BenchProgress], None]


@dataclass
class OpenWindow:
    """What the window that is open has seen so far."""

    repetition: int
    start_s: float
    request_start_s: float  # request-seconds of the gauge at the start
    reading: Reading | None
    started: str = field(default_factory=wall_time)
    outcomes: list[Outcome] = field(default_factory=list)
    last_s: float = 0.0  # last whole response
    request_last_s: float = 0.0  # request-seconds of the gauge then

    @property
    def answered(self) -> int:
        """Whole responses."""
        return sum(outcome.answer is not None for outcome in self.outcomes)


class Recorder:
    """Takes outcomes, and commits windows of them.

    Args:
        folder: of the run, locked by the caller.
        manifest: as far as it is; `self.manifest` is what has been committed.
        metering: boards to read, or None.
        total: prompts times repetitions.
        done: answered in earlier starts.
        cut_every_s: a window is cut after this time, once it has a whole response [s].
        on_progress: told after every outcome.
    """

    def __init__(
        self,
        folder: Path,
        manifest: RunManifest,
        metering: Metering | None,
        *,
        total: int,
        done: int,
        cut_every_s: float,
        on_progress: OnProgress | None,
    ) -> None:
        self.folder, self.manifest, self.metering = folder, manifest, metering
        self.total, self.done, self.cut_every_s, self.on_progress = total, done, cut_every_s, on_progress
        self.gauge = InFlight()
        self._window: OpenWindow | None = None
        self._committing: threading.Thread | None = None
        self._trouble: Exception | None = None  # of a commit off the event loop
        self._unlucky: Counter[Fault] = Counter()  # prompts in a row without an answer
        self._begun = self._failed = self._tokens = 0
        self._first_s = 0.0

    def begun(self) -> None:
        """A prompt has been taken up."""
        self._begun += 1

    def report(self, outcome: Outcome) -> None:
        """A prompt's outcome. Raises `ServerGoneError`: too many in a row had no answer."""
        window = self._window
        assert window is not None
        self._begun -= 1
        window.outcomes.append(outcome)
        if outcome.answer is None:
            self._failed += 1
        else:
            self.done += 1
            self._tokens += outcome.answer.output_tokens
            window.last_s, window.request_last_s = outcome.end_s, self.gauge.request_s()
        if self.on_progress is not None:
            elapsed_s = time.monotonic() - self._first_s
            self.on_progress(BenchProgress(done=self.done, failed=self._failed, total=self.total, tokens=self._tokens, seconds=elapsed_s))
        self.check(outcome)

    def check(self, outcome: Outcome) -> None:
        """Count prompts without an answer in a row, those of the warm-up too."""
        if outcome.fault is None:
            self._unlucky.clear()
            return
        self._unlucky[outcome.fault] += 1
        count = self._unlucky[outcome.fault]
        if count >= GIVE_UP.get(outcome.fault, GIVE_UP_ANY) or self._unlucky.total() >= GIVE_UP_ANY:
            raise ServerGoneError(f"{self._unlucky.total()} prompts in a row had no answer ({outcome.fault}): {outcome.detail}")

    async def open(self, repetition: int) -> None:
        """Begin a window: power is being read when this returns."""
        reading = await self._reading()
        now_s = time.monotonic()
        self._first_s = self._first_s or now_s
        self._window = OpenWindow(repetition, now_s, self.gauge.request_s(), reading)

    async def cuts(self) -> None:
        """Cut the open window again and again, until cancelled."""
        while True:
            await asyncio.sleep(self.cut_every_s)
            if self._window is None or not self._window.answered:
                continue
            try:
                reading = await self._reading()
            except DeviceError:
                return  # the meter does not start again; the running samplers go on, or tell why they stopped
            old, now_s = self._window, time.monotonic()
            old.last_s, old.request_last_s = now_s, self.gauge.request_s()
            self._window = OpenWindow(old.repetition, now_s, old.request_last_s, reading)
            self._settle()
            self._committing = threading.Thread(target=self._commit_apart, args=(old,), name="pie-p bench commit")
            self._committing.start()

    def close(self, *, broken_off: bool) -> None:
        """End the open window and commit it, unless it holds nothing."""
        window, self._window = self._window, None
        self._settle()
        cut_off, self._begun = self._begun if broken_off else 0, 0
        if window is None:
            return
        if window.outcomes:
            self._commit(window, cut_off)
        elif window.reading is not None:
            window.reading.abandon()

    async def _reading(self) -> Reading | None:
        if self.metering is None:
            return None
        starting = asyncio.ensure_future(asyncio.to_thread(Reading.start, self.metering))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(lambda done: None if done.cancelled() or done.exception() else done.result().abandon())
            raise

    def _settle(self) -> None:
        """Wait for a commit that is under way; what went wrong in it is raised."""
        if self._committing is not None:
            self._committing.join()
            self._committing = None
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble

    def _commit_apart(self, window: OpenWindow) -> None:
        try:
            self._commit(window, 0)
        except Exception as error:  # noqa: BLE001 - raised by `_settle` in the thread that goes on
            self._trouble = error

    def _commit(self, window: OpenWindow, cut_off: int) -> None:
        energy = WindowEnergy(joules=0.0 if self.metering else None)
        if window.reading is not None:
            measured = window.reading.stop(window.start_s, max(window.last_s, window.start_s))
            energy = measured if window.answered else energy
        number = len(self.manifest.windows)
        rows = [row_of(outcome, window=number, window_start_s=window.start_s) for outcome in window.outcomes]
        self.manifest = commit_window(self.folder, self.manifest, _fields(window, energy, cut_off), rows)


def _fields(window: OpenWindow, energy: WindowEnergy, cut_off: int) -> dict[str, Any]:
    """A window as its manifest writes it. Without a whole response it has no seconds either."""
    answers = [outcome.answer for outcome in window.outcomes if outcome.answer is not None]
    return {
        "started": window.started,
        "repetition": window.repetition,
        "responses": len(answers),
        "words": sum(answer.words for answer in answers),
        "tokens": sum(answer.output_tokens for answer in answers),
        "seconds": window.last_s - window.start_s if answers else 0.0,
        "joules": energy.joules,
        "counter_j": energy.counter_j,
        "dropped_readings": energy.dropped,
        "meter_error": energy.error,
        "request_s": window.request_last_s - window.request_start_s if answers else 0.0,
        "faults": dict(Counter(fault for outcome in window.outcomes for fault in outcome.faults)),
        "failed": dict(Counter(outcome.fault for outcome in window.outcomes if outcome.fault is not None)),
        "cut_off": cut_off,
    }
