"""Reading a meter at a steady rate while something else works.

`ProcessSampler` reads in a process of its own, so that the workload's interpreter lock neither delays the readings nor pays for
them; both stamp with `CLOCK_MONOTONIC`, one time for the whole host. `SimulatedSampler` reads a simulated or replayed meter
after the fact, at the moments a real one would have. Both report the rate they achieved and the readings they dropped.

The counter is read at the start, every second and at the end: it updates about every 100 ms and must not be polled fast.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol

import numpy as np
from typing_extensions import override

from pie_p.errors import DeviceError, InputError
from pie_p.profiling.clocks import Clock, MonotonicClock
from pie_p.profiling.meters import Meter, PowerField
from pie_p.profiling.processes import fresh_context
from pie_p.profiling.samples import Floats, Samples

COUNTER_EVERY_S: Final = 1.0
START_TIMEOUT_S: Final = 60.0  # a fresh interpreter and the driver
STOP_TIMEOUT_S: Final = 60.0
LOOK_EVERY_S: Final = 0.5  # between looks at whether the workload is still there
MakeMeter = Callable[[], Meter]


class Sampler(ABC):
    """Collects readings between `start` and `stop`."""

    @abstractmethod
    def start(self) -> None:
        """Begin; returns when the first reading has been taken."""

    @abstractmethod
    def stop(self) -> Samples:
        """End, and hand over what was read. An error of the meter in between is raised here."""


class ProcessSampler(Sampler):
    """Samples in its own process.

    Args:
        make_meter: makes the meter, in that process; must be picklable: `partial(NvmlMeter, 0)`.
        period_s: between power readings [s].
        power_field: which field is read.
    """

    def __init__(self, make_meter: MakeMeter, *, period_s: float = 0.01, power_field: PowerField = "instant") -> None:
        if period_s <= 0:
            raise InputError(f"sampling period is {period_s} s; give more than 0 s")
        self._arguments = (make_meter, period_s, power_field)
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None
        self._told: Any = None

    @override
    def start(self) -> None:
        if self._process is not None:
            raise InputError("this sampler runs already; stop it before it is started again")
        context = fresh_context()
        self._pipe, theirs = context.Pipe()
        self._told = context.RawValue("b", 0)  # one byte both see: looking at it costs a reading next to nothing
        self._process = context.Process(target=_sample, args=(theirs, self._told, *self._arguments), daemon=True, name="power-sampler")
        self._process.start()
        theirs.close()
        self._receive("start", START_TIMEOUT_S)

    @override
    def stop(self) -> Samples:
        if self._pipe is None:
            raise InputError("this sampler was not started; call start first")
        self._told.value = 1
        samples = self._receive("stop", STOP_TIMEOUT_S)
        self._end()
        if not isinstance(samples, Samples):
            raise DeviceError(f"the power sampler answered {samples!r} instead of samples; run the measurement again")
        return samples

    def _receive(self, what: str, timeout_s: float) -> object:
        """The next message; an error that was sent is raised, a dead process is an error, waiting is bounded."""
        assert self._pipe is not None
        try:
            if not self._pipe.poll(timeout_s):
                raise DeviceError(f"the power sampler did not {what} within {timeout_s:.0f} s; is the driver hung? Try nvidia-smi")
            message = self._pipe.recv()
        except EOFError:
            exit_code = self._end()
            raise DeviceError(f"the power sampler died (exit code {exit_code}) before {what}; its readings are lost") from None
        except DeviceError:
            self._end()
            raise
        if isinstance(message, Exception):
            self._end()
            raise message
        return message

    def _end(self) -> int | None:
        """Reap the process, kill it if it must be; its exit code."""
        process, self._process, self._pipe = self._process, None, None
        if process is None:
            return None
        process.join(timeout=5.0)
        if process.is_alive():
            process.kill()
            process.join()
        return process.exitcode


@dataclass
class Readings:
    """What has been read so far; plain arrays of doubles, because a list of floats costs four times as much memory."""

    at_s: array[float] = field(default_factory=lambda: array("d"))
    power_w: array[float] = field(default_factory=lambda: array("d"))
    counter_at_s: array[float] = field(default_factory=lambda: array("d"))
    energy_j: array[float] = field(default_factory=lambda: array("d"))
    dropped: int = 0

    def read(self, meter: Meter, clock: Clock, power_field: PowerField) -> None:
        """One power reading, stamped between before and after the call, and the counter when it is due."""
        before_s = clock.now_s()
        power_w = meter.read_power_w(power_field)
        self.at_s.append((before_s + clock.now_s()) / 2)
        self.power_w.append(power_w)
        if not self.counter_at_s or before_s - self.counter_at_s[-1] >= COUNTER_EVERY_S:
            self.count(meter, clock)

    def count(self, meter: Meter, clock: Clock) -> None:
        """One reading of the counter, where there is one."""
        if "counter" in meter.fields:
            energy_j = meter.read_energy_j()
            self.counter_at_s.append(clock.now_s())
            self.energy_j.append(energy_j)

    def samples(self, period_s: float) -> Samples:
        """As samples."""
        columns = [np.array(column, dtype=np.float64) for column in (self.at_s, self.power_w, self.counter_at_s, self.energy_j)]
        return Samples(
            at_s=columns[0],
            power_w=columns[1],
            counter_at_s=columns[2],
            energy_j=columns[3],
            wanted_period_s=period_s,
            dropped=self.dropped,
        )


def _sample(pipe: Connection, told: Any, make_meter: MakeMeter, period_s: float, power_field: PowerField) -> None:
    """Body of the sampler's process: read at every due moment until told to stop."""
    try:
        with make_meter() as meter:
            pipe.send(_sample_until_told(pipe, told, meter, period_s, power_field))
    except EOFError:
        pass  # the workload is gone; so are we
    except Exception as error:  # noqa: BLE001 - whatever happened is raised in the process that asked
        pipe.send(error if isinstance(error, DeviceError) else DeviceError(f"the power sampler failed: {type(error).__name__}: {error}"))


def _sample_until_told(pipe: Connection, told: Any, meter: Meter, period_s: float, power_field: PowerField) -> Samples:
    """The loop is short and flat: after every sleep it runs from a cold cache, where each call costs microseconds."""
    clock, readings, began_s = MonotonicClock(), Readings(), time.process_time()
    readings.read(meter, clock, power_field)
    pipe.send("started")
    gc.disable()  # nothing below makes garbage
    now, sleep, read_power_w = time.monotonic, time.sleep, meter.read_power_w
    keep_moment, keep_power = readings.at_s.append, readings.power_w.append
    due_s = now() + period_s
    count_s = look_s = due_s + COUNTER_EVERY_S
    while not told.value:
        sleep(max(0.0, due_s - now()))
        before_s = now()
        power_w = read_power_w(power_field)
        after_s = now()
        keep_moment((before_s + after_s) / 2)
        keep_power(power_w)
        if after_s >= count_s:
            readings.count(meter, clock)
            count_s = after_s + COUNTER_EVERY_S
        if after_s >= look_s:
            look_s = after_s + LOOK_EVERY_S
            if pipe.poll():
                pipe.recv()  # nobody sends: it is the end of the pipe, and of the workload
        due_s += period_s
        if after_s > due_s:
            missed = int((after_s - due_s) / period_s)
            readings.dropped += missed
            due_s += missed * period_s
    readings.read(meter, clock, power_field)
    readings.count(meter, clock)
    return replace(readings.samples(period_s), processor_s=time.process_time() - began_s)


class PastMeter(Protocol):
    """A meter that also tells what it showed in the past; simulated and replayed ones do."""

    @property
    def fields(self) -> frozenset[str]:
        """What the meter answers."""

    def powers_at_w(self, at_s: Floats, power_field: PowerField = "instant") -> Floats:
        """Power shown at each moment [W]."""

    def energy_at_j(self, at_s: float) -> float:
        """Counter shown at `at_s` [s]."""


class SimulatedSampler(Sampler):
    """Samples a simulated or replayed meter on its own clock: when stopped, it reads every moment that has passed."""

    def __init__(self, meter: PastMeter, clock: Clock, *, period_s: float = 0.01, power_field: PowerField = "instant") -> None:
        self._meter, self._clock, self._period_s, self._power_field = meter, clock, period_s, power_field
        self._start_s: float | None = None

    @override
    def start(self) -> None:
        self._start_s = self._clock.now_s()

    @override
    def stop(self) -> Samples:
        if self._start_s is None:
            raise InputError("this sampler was not started; call start first")
        start_s, self._start_s = self._start_s, None
        at_s = _moments(start_s, self._clock.now_s(), self._period_s)
        power_w = self._meter.powers_at_w(at_s, self._power_field)
        counter_at_s, energy_j = np.empty(0), np.empty(0)
        if "counter" in self._meter.fields:
            counter_at_s = _moments(start_s, self._clock.now_s(), COUNTER_EVERY_S)
            energy_j = np.array([self._meter.energy_at_j(moment) for moment in counter_at_s])
        return Samples(at_s=at_s, power_w=power_w, counter_at_s=counter_at_s, energy_j=energy_j, wanted_period_s=self._period_s)


class NoSampler(Sampler):
    """Where power is not measured: no samples, which no integral accepts."""

    @override
    def start(self) -> None:
        pass

    @override
    def stop(self) -> Samples:
        return Samples(at_s=np.empty(0), power_w=np.empty(0))


def _moments(start_s: float, end_s: float, period_s: float) -> Floats:
    """Every `period_s` from start to end, both included [s]."""
    regular: Floats = start_s + period_s * np.arange(int((end_s - start_s) / period_s) + 1, dtype=np.float64)
    return regular if regular[-1] >= end_s else np.append(regular, end_s)
