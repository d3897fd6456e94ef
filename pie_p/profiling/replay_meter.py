"""A meter that plays a recording back: analysis and tests without the device that was measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from typing_extensions import override

from pie_p.errors import InputError
from pie_p.profiling.clocks import Clock
from pie_p.profiling.meters import BoardState, ClosedMeterError, Field, Meter, MeterIdentity, PowerField
from pie_p.profiling.samples import Floats, Samples


class ReplayMeter(Meter):
    """Shows, at `t` seconds after it was made, what the recording showed `t` seconds after its first sample.

    Raises:
        InputError: an empty recording.
        ProfileError: a path that holds none.
    """

    def __init__(self, recording: Samples | Path, clock: Clock, *, power_field: PowerField = "instant", uuid: str = "REPLAY-0") -> None:
        self.samples = recording if isinstance(recording, Samples) else Samples.load(recording)
        if not len(self.samples):
            raise InputError("the recording holds no power sample; record for longer")
        fields: set[Field] = {power_field}
        if len(self.samples.counter_at_s):
            fields.add("counter")
        self.fields = frozenset(fields)
        self.identity = MeterIdentity(kind="replay", origin="replayed", uuid=uuid, name="recording")
        self.clock = clock
        self._offset_s = float(self.samples.at_s[0]) - clock.now_s()
        self._closed = False

    @override
    def read_power_w(self, power_field: PowerField = "instant") -> float:
        return self.power_at_w(self.clock.now_s(), power_field)

    @override
    def read_energy_j(self) -> float:
        return self.energy_at_j(self.clock.now_s())

    @override
    def read_state(self) -> BoardState:
        self._check_open()
        return BoardState()

    @override
    def close(self) -> None:
        self._closed = True

    def power_at_w(self, at_s: float, power_field: PowerField = "instant") -> float:
        """What was shown at `at_s` [s] of this meter's clock."""
        self._check_open()
        if power_field not in self.fields:
            raise self.missing(power_field)
        return self._held(self.samples.at_s, self.samples.power_w, at_s)

    def powers_at_w(self, at_s: Floats, power_field: PowerField = "instant") -> Floats:
        """The same for many moments."""
        return np.array([self.power_at_w(float(moment), power_field) for moment in at_s])

    def energy_at_j(self, at_s: float) -> float:
        """What the counter showed at `at_s` [s] of this meter's clock."""
        self._check_open()
        if "counter" not in self.fields:
            raise self.missing("counter")
        return self._held(self.samples.counter_at_s, self.samples.energy_j, at_s)

    def _held(self, moments: Floats, values: Floats, at_s: float) -> float:
        recorded_s = at_s + self._offset_s
        if recorded_s > self.samples.at_s[-1] + self.samples.wanted_period_s:
            length_s = float(self.samples.at_s[-1] - self.samples.at_s[0])
            raise ClosedMeterError(f"the recording of {length_s:.3f} s has ended; replay it within that time or record for longer")
        index = max(0, int(np.searchsorted(moments, recorded_s + 1e-9, side="right")) - 1)
        return float(values[index])

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedMeterError(f"the replay meter of {self.identity.uuid} is closed; make a new ReplayMeter")
