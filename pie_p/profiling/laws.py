"""Known power laws of time: what a simulated board really draws, so that a measured figure can be held against the truth."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Protocol

from typing_extensions import override

from pie_p.errors import InputError


class PowerLaw(Protocol):
    """Power of a board as a function of time, exact."""

    def power_w(self, at_s: float) -> float:
        """True power [W] at `at_s` [s]."""

    def energy_j(self, start_s: float, end_s: float) -> float:
        """True energy [J] between two moments: the exact integral of `power_w`."""


class SquareWave(PowerLaw):
    """High in the first half of each period, low in the second.

    >>> wave = SquareWave(low_w=100.0, high_w=300.0, period_s=0.2)
    >>> wave.power_w(0.05), wave.power_w(0.15), round(wave.energy_j(0.0, 1.0), 9)
    (300.0, 100.0, 200.0)
    """

    def __init__(self, *, low_w: float, high_w: float, period_s: float) -> None:
        self.low_w, self.high_w, self.period_s = low_w, high_w, period_s

    @override
    def power_w(self, at_s: float) -> float:
        return self.high_w if at_s % self.period_s < self.period_s / 2 else self.low_w

    @override
    def energy_j(self, start_s: float, end_s: float) -> float:
        return self._since_zero_j(end_s) - self._since_zero_j(start_s)

    def _since_zero_j(self, at_s: float) -> float:
        whole, rest_s = divmod(at_s, self.period_s)
        half_s = self.period_s / 2
        high_s = whole * half_s + min(rest_s, half_s)
        return self.low_w * at_s + (self.high_w - self.low_w) * high_s


class Timeline(PowerLaw):
    """What a simulated workload draws: levels in the order they are set, each reached with time constant `rise_s` [s].

    Within a level the power is `level + (before - level) * exp(-t / rise_s)`; `rise_s=0` jumps.

    >>> board = Timeline(idle_w=70.0)
    >>> board.set_level(1.0, 500.0); board.set_level(3.0, 70.0)
    >>> board.power_w(0.5), board.power_w(2.0), board.energy_j(0.0, 4.0)
    (70.0, 500.0, 1140.0)
    """

    def __init__(self, *, idle_w: float, rise_s: float = 0.0) -> None:
        self.idle_w, self.rise_s = idle_w, rise_s
        self._starts_s = [-math.inf]
        self._levels_w = [idle_w]
        self._entered_w = [idle_w]  # power at the moment the level was set
        self._before_j = [0.0]  # energy from the first set level to this one

    def set_level(self, at_s: float, level_w: float) -> None:
        """From `at_s` [s] on the board heads for `level_w` [W]; moments must come in order."""
        if at_s < self._starts_s[-1]:
            raise InputError(f"level set at {at_s} s after one at {self._starts_s[-1]} s; set levels in the order of time")
        entered_w = self._power_w(len(self._starts_s) - 1, at_s)
        energy_j = 0.0 if len(self._starts_s) == 1 else self._before_j[-1] + self._within_j(len(self._starts_s) - 1, at_s)
        self._starts_s.append(at_s)
        self._levels_w.append(level_w)
        self._entered_w.append(entered_w)
        self._before_j.append(energy_j)

    @override
    def power_w(self, at_s: float) -> float:
        return self._power_w(self._level_at(at_s), at_s)

    def _power_w(self, index: int, at_s: float) -> float:
        """Power within level `index` [W]."""
        level_w = self._levels_w[index]
        if self.rise_s == 0 or index == 0:
            return level_w
        return level_w + (self._entered_w[index] - level_w) * math.exp(-(at_s - self._starts_s[index]) / self.rise_s)

    @override
    def energy_j(self, start_s: float, end_s: float) -> float:
        return self._since_first_j(end_s) - self._since_first_j(start_s)

    def _level_at(self, at_s: float) -> int:
        return bisect_right(self._starts_s, at_s) - 1

    def _since_first_j(self, at_s: float) -> float:
        """Energy since the first set level [J]; negative before it."""
        index = self._level_at(at_s)
        if index == 0:
            first_s = self._starts_s[1] if len(self._starts_s) > 1 else 0.0
            return self.idle_w * (at_s - first_s)
        return self._before_j[index] + self._within_j(index, at_s)

    def _within_j(self, index: int, at_s: float) -> float:
        """Energy of level `index` from its start to `at_s` [J]."""
        length_s = at_s - self._starts_s[index]
        steady_j = self._levels_w[index] * length_s
        if self.rise_s == 0:
            return steady_j
        return steady_j - (self._levels_w[index] - self._entered_w[index]) * self.rise_s * -math.expm1(-length_s / self.rise_s)
