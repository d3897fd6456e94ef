"""A simulated meter: a known power law seen through what NVML does to it.

    true power ──▶ mean over [tick - lag - window, tick - lag] ──▶ x gain ──▶ rounded to the quantum ──▶ held until the next tick
                                                                                            (ticks: phase, phase + period, ...)

The energy counter integrates the true power, with the same gain, up to its own last tick.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from pie_p.errors import InputError
from pie_p.profiling.clocks import Clock
from pie_p.profiling.laws import PowerLaw
from pie_p.profiling.meters import FIELDS, BoardState, ClosedMeterError, Field, Meter, MeterIdentity, PowerField
from pie_p.profiling.samples import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefacts:
    """What a meter does to the truth. The default is the instant field of an H100 (arXiv 2312.02741, table 2)."""

    period_s: float = 0.100  # between updates
    window_s: float = 0.025  # averaged before each update
    lag_s: float = 0.0  # from the end of the window to the update
    phase_s: float = 0.0  # of the updates against the clock's zero
    quantum_w: float = 0.001  # NVML publishes milliwatts
    gain: float = 1.0  # board error is about +-5 % and proportional
    average_window_s: float = 1.0  # of the "average" field
    counter_period_s: float = 0.100

    def __post_init__(self) -> None:
        for name in ("period_s", "window_s", "average_window_s", "counter_period_s", "gain"):
            if not (value := getattr(self, name)) > 0:
                raise InputError(f"{name} is {value}; a meter needs {name} > 0")

    def published_w(self, law: PowerLaw, at_s: float, *, window_s: float | None = None) -> float:
        """What the field shows at `at_s` [s] when the truth is `law` [W]."""
        width_s = window_s or self.window_s
        tick_s = last_tick_s(at_s, self.period_s, self.phase_s)
        end_s = tick_s - self.lag_s
        mean_w = law.energy_j(end_s - width_s, end_s) / width_s * self.gain
        return round(mean_w / self.quantum_w) * self.quantum_w if self.quantum_w else mean_w

    def counted_j(self, law: PowerLaw, start_s: float, at_s: float) -> float:
        """What the counter shows at `at_s` [s] after counting from `start_s` [s]; NVML publishes millijoules."""
        tick_s = max(start_s, last_tick_s(at_s, self.counter_period_s, self.phase_s))
        return round(law.energy_j(start_s, tick_s) * self.gain, 3)


def last_tick_s(at_s: float, period_s: float, phase_s: float = 0.0) -> float:
    """The last update at or before `at_s` [s].

    >>> round(last_tick_s(0.27, 0.1, 0.05), 9)
    0.25
    """
    return phase_s + math.floor((at_s - phase_s) / period_s + 1e-9) * period_s


class SimulatedMeter(Meter):
    """Meter of a board that draws `law`, on `clock`, with `artefacts`.

    `fields` may be narrowed to stand for a board that lacks some.
    """

    def __init__(
        self,
        law: PowerLaw,
        clock: Clock,
        *,
        artefacts: Artefacts | None = None,
        fields: frozenset[Field] = frozenset(FIELDS),
        uuid: str = "SIM-0",
        state: BoardState | None = None,
    ) -> None:
        self.law, self.clock = law, clock
        self.artefacts = artefacts or Artefacts()
        self.fields = fields
        self.identity = MeterIdentity(kind="simulated", origin="simulated", uuid=uuid, name="simulated board", driver="none")
        self.state = state or BoardState(temperature_c=50.0, sm_clock_hz=1.98e9, memory_clock_hz=2.6e9, limit_w=700.0)
        self._start_s = clock.now_s()
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
        return self.state

    @override
    def close(self) -> None:
        self._closed = True

    def power_at_w(self, at_s: float, power_field: PowerField = "instant") -> float:
        """What a reader would have seen at `at_s` [s], past moments included: a sampler on a simulated clock needs that."""
        self._check_open()
        if power_field not in self.fields:
            raise self.missing(power_field)
        window_s = self.artefacts.average_window_s if power_field == "average" else self.artefacts.window_s
        return self.artefacts.published_w(self.law, at_s, window_s=window_s)

    def powers_at_w(self, at_s: Floats, power_field: PowerField = "instant") -> Floats:
        """The same for many moments: readings between two updates are one."""
        updates = np.floor((at_s - self.artefacts.phase_s) / self.artefacts.period_s + 1e-9)
        _, first, again = np.unique(updates, return_index=True, return_inverse=True)
        return np.array([self.power_at_w(float(moment), power_field) for moment in at_s[first]])[again]

    def energy_at_j(self, at_s: float) -> float:
        """What the counter would have shown at `at_s` [s]."""
        self._check_open()
        if "counter" not in self.fields:
            raise self.missing("counter")
        return self.artefacts.counted_j(self.law, self._start_s, at_s)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedMeterError(f"the simulated meter of {self.identity.uuid} is closed; make a new SimulatedMeter")
