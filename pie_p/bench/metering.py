"""Meters of a benchmark: boards whose power is read while requests run, and the energy between two moments.

Energy is the integral of each board's power readings over the window, added up over boards. The energy counter is read beside it, and both
are stored: a counter that disagrees by more than a few percent is worth a look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from pie_p.bench.remote import RemoteMeter, remote_boards
from pie_p.errors import DeviceError, InputError, PiePError
from pie_p.profiling.clocks import MonotonicClock
from pie_p.profiling.meters import MeterIdentity, Origin
from pie_p.profiling.nvml_meter import NvmlMeter, nvml_boards
from pie_p.profiling.replay_meter import ReplayMeter
from pie_p.profiling.samples import Samples
from pie_p.profiling.sampling import ProcessSampler, Sampler, SimulatedSampler
from pie_p.profiling.window import known_timing, period_for

COUNTER_LEAST_S: Final = 1.0  # shortest difference of a counter that means anything [s]
USUAL_PERIOD_S: Final = 0.02  # between readings of a board whose meter nobody has described [s]
REMOTE_PERIOD_S: Final = 1.0  # between readings over HTTP [s]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metering:
    """Boards to read; `make_samplers` gives one sampler per board, each time a new one."""

    make_samplers: Callable[[], Sequence[Sampler]]
    boards: tuple[MeterIdentity, ...]
    limits_w: tuple[float | None, ...]  # power limit in force per board, as the board says; None: it does not [W]

    @property
    def origin(self) -> Origin:
        """Where the readings come from."""
        return self.boards[0].origin

    @property
    def limit_w(self) -> float | None:
        """The one limit of all boards; None where it is not known or not one [W]."""
        limits = set(self.limits_w)
        return limits.pop() if len(limits) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowEnergy:
    """Energy of all boards between two moments."""

    joules: float | None  # integrated power; None: the meter failed [J]
    counter_j: float | None = None  # by the boards' counters over nearly the same time; None: too short, or there is none [J]
    dropped: int = 0  # readings that were due and did not happen [-]
    error: str = ""  # of the meter


@dataclass
class Reading:
    """Samplers that run now. They are started and stopped off the event loop, because a process is behind each."""

    samplers: list[Sampler] = field(default_factory=list)

    @classmethod
    def start(cls, metering: Metering) -> Reading:
        """Samplers that have taken their first reading. Raises `DeviceError`: a meter did not answer."""
        reading = cls()
        try:
            for sampler in metering.make_samplers():
                sampler.start()
                reading.samplers.append(sampler)
        except BaseException:
            reading.abandon()
            raise
        return reading

    def stop(self, start_s: float, end_s: float) -> WindowEnergy:
        """Energy of the window; a meter that failed in between is told, and costs no response."""
        boards = [_stopped(sampler, start_s, end_s) for sampler in self.samplers]
        joules, counted = [board.joules for board in boards], [board.counter_j for board in boards]
        return WindowEnergy(
            joules=sum(value for value in joules if value is not None) if None not in joules else None,
            counter_j=sum(value for value in counted if value is not None) if None not in counted else None,
            dropped=sum(board.dropped for board in boards),
            error="; ".join(board.error for board in boards if board.error),
        )

    def abandon(self) -> None:
        """Stop without wanting anything, complaints included."""
        for sampler in self.samplers:
            _stopped(sampler, 0.0, 0.0)


def _stopped(sampler: Sampler, start_s: float, end_s: float) -> WindowEnergy:
    try:
        samples = sampler.stop()
        joules = samples.integral_j(start_s, end_s)
        return WindowEnergy(joules=joules, counter_j=counter_j(samples, start_s, end_s), dropped=samples.dropped)
    except PiePError as error:
        return WindowEnergy(joules=None, error=str(error))


def counter_j(samples: Samples, start_s: float, end_s: float) -> float | None:
    """Counted energy of a window, its edges interpolated between counter readings; None where there are too few [J]."""
    if len(samples.counter_at_s) < 2 or end_s - start_s < COUNTER_LEAST_S:
        return None
    edges = np.interp((start_s, end_s), samples.counter_at_s, samples.energy_j)
    return float(edges[1] - edges[0])


def metering_of(meter: str, *, boards: Sequence[str] = (), gpus: int = 1) -> Metering | None:
    """The meter that a word names; None for "none".

    Args:
        meter: "none"; "nvml": boards of this host; "http://..." or "https://...": a DCGM exporter beside the server; "replay:PATH": a
            recording of one board, played from the start of each window.
        boards: which: indices or UUIDs; default all, which must then be as many as the deployment has.
        gpus: boards of the deployment.

    Raises:
        InputError: another word, or another number of boards.
        DeviceError: no such board, or it does not answer.
    """
    if meter == "none":
        return None
    if meter == "nvml":
        return _nvml(boards, gpus)
    if meter.startswith(("http://", "https://")):
        return _remote(meter, boards, gpus)
    if meter.startswith("replay:"):
        return _replay(Path(meter.removeprefix("replay:")))
    raise InputError(f"meter = {meter!r:.80} is not known; allowed: none, nvml, the http address of a DCGM exporter, replay:FILE")


def _counted(found: Sequence[str], boards: Sequence[str], gpus: int) -> Sequence[str]:
    """The boards to read: those that were named, else all, if they are as many as the deployment has."""
    chosen = list(dict.fromkeys(boards)) or list(found)
    if len(chosen) != gpus:
        came = f"{len(chosen)} boards were named" if boards else f"{len(chosen)} boards are visible"
        raise InputError(f"the deployment has {gpus} GPUs (tp * pp * dp), but {came}; name its boards with --boards 0,1,...")
    return chosen


def _nvml(boards: Sequence[str], gpus: int) -> Metering:
    visible = [board.uuid for board in nvml_boards()]
    chosen = [int(board) if board.isdigit() else board for board in _counted(visible, boards, gpus)]
    makers, identities, limits = [], [], []
    for board in chosen:
        with NvmlMeter(board) as meter:
            identities.append(meter.identity)
            limits.append(meter.read_state().limit_w)
            period_s = _period_s(meter.identity.name)
            power_field: Any = "instant" if "instant" in meter.fields else "average"
        makers.append(partial(ProcessSampler, partial(NvmlMeter, meter.identity.uuid), period_s=period_s, power_field=power_field))
    return Metering(make_samplers=lambda: [make() for make in makers], boards=tuple(identities), limits_w=tuple(limits))


def _period_s(name: str) -> float:
    try:
        return period_for(known_timing(name))
    except DeviceError:  # nobody has published it: read fast enough for the quickest known
        return USUAL_PERIOD_S


def _remote(url: str, boards: Sequence[str], gpus: int) -> Metering:
    chosen = _counted(remote_boards(url), boards, gpus)
    identities, limits = [], []
    for board in chosen:
        with RemoteMeter(url, board) as meter:
            identities.append(meter.identity)
            limits.append(meter.read_state().limit_w)
    makers = [
        partial(ProcessSampler, partial(RemoteMeter, url, board), period_s=REMOTE_PERIOD_S, power_field="average") for board in chosen
    ]
    return Metering(make_samplers=lambda: [make() for make in makers], boards=tuple(identities), limits_w=tuple(limits))


def _replay(path: Path) -> Metering:
    recording, clock = Samples.load(path), MonotonicClock()

    def make() -> list[Sampler]:
        meter: Any = ReplayMeter(recording, clock)
        return [SimulatedSampler(meter, clock, period_s=recording.wanted_period_s)]

    identity = ReplayMeter(recording, clock).identity
    return Metering(make_samplers=make, boards=(identity,), limits_w=(None,))
