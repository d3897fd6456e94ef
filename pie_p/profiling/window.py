"""Finding how an unknown meter updates and averages, by showing it square waves.

    load   ▄▄▄▄____▄▄▄▄____▄▄__▄▄__▄▄__▄_▄_▄_▄_      several periods, none a multiple of another
    shown  ──────┐     ┌──────┐                      steps: the distance between changes is the UPDATE PERIOD
                 └─────┘      └──                    heights: the share of "high" in the AVERAGING WINDOW before each update

1. The board is driven high and low in turns, and the meter is read much faster than it updates.
2. Changes of the reading happen at updates only, so their moments lie on a grid; its spacing is the update period.
3. For a supposed window and lag, the reading at each update must be `low + (high - low) * share of high in the window`.
   The pair that explains the readings with the least squared error is the answer; the load's own edges are the truth it is held to.

Method after arXiv 2312.02741, section 4 (there: only the window, by simplex search); here lag and window are searched together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from pie_p.errors import DeviceError
from pie_p.profiling.clocks import Clock
from pie_p.profiling.samples import Floats, Samples
from pie_p.profiling.sampling import Sampler

# Full periods of the load [s]: from below the shortest known window to above the longest, ratios far from whole numbers, so that no
# window is a multiple of them all and no update grid meets all at the same phase.
WAVE_PERIODS_S: Final = (0.0173, 0.0431, 0.0977, 0.1831, 0.3137, 0.7411, 1.6180)
WINDOWS_S: Final = np.geomspace(0.002, 2.0, 121)
READS_PER_UPDATE: Final = 4.7  # no whole number, so that the moments of change, averaged, tell the phase of the updates


# Instant field, by the beginning of NVML's product name: update period and averaging window [s] (arXiv 2312.02741, table 2). A GPU that is
# not here is to be measured with `find_timing`.
KNOWN_TIMINGS: Final[dict[str, tuple[float, float]]] = {
    "NVIDIA H100": (0.100, 0.025),
    "NVIDIA A100": (0.100, 0.025),
    "NVIDIA RTX A6000": (0.100, 0.100),
    "NVIDIA RTX 6000 Ada": (0.100, 0.100),
    "Tesla V100": (0.020, 0.010),
}


class SwitchedLoad(Protocol):
    """Something that can keep the board busy, or leave it alone, for a while."""

    def run_high(self, duration_s: float) -> None:
        """Keep the board as busy as can be for `duration_s` [s]."""

    def run_low(self, duration_s: float) -> None:
        """Leave the board idle for `duration_s` [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterTiming:
    """How a power field behaves in time."""

    period_s: float  # between updates
    window_s: float  # averaged before each update
    lag_s: float  # from the end of the window to the update
    residual: float  # share of the readings' variance that the fit leaves unexplained, 0..1; above 0.1 do not trust it
    updates: int  # readings that the fit rests on


def period_for(timing: MeterTiming) -> float:
    """How often to read a meter so that no update is missed and the workload hardly notices [s].

    >>> round(period_for(MeterTiming(period_s=0.1, window_s=0.025, lag_s=0.0, residual=0.0, updates=0)), 4)
    0.0213
    """
    return timing.period_s / READS_PER_UPDATE


def known_timing(name: str) -> MeterTiming:
    """Published timing of a product's instant field.

    Raises:
        DeviceError: not published; measure it.

    >>> known_timing("NVIDIA H100 80GB HBM3").window_s
    0.025
    """
    for beginning, (period_s, window_s) in KNOWN_TIMINGS.items():
        if name.startswith(beginning):
            return MeterTiming(period_s=period_s, window_s=window_s, lag_s=0.0, residual=0.0, updates=0)
    raise DeviceError(f"the meter's timing of {name!r} is not published; find it with find_timing. Known: {', '.join(KNOWN_TIMINGS)}")


def find_timing(load: SwitchedLoad, sampler: Sampler, clock: Clock, *, seconds_per_wave: float = 4.0) -> MeterTiming:
    """Update period, averaging window and lag of a meter; takes about `7 * seconds_per_wave` [s].

    The sampler must read much faster than the meter updates (every 1-2 ms).

    Raises:
        DeviceError: the readings never changed, or no window explains them.
    """
    sampler.start()
    edges = _drive(load, clock, seconds_per_wave)
    samples = sampler.stop()
    return fit_timing(samples, edges)


def fit_timing(samples: Samples, edges: Floats) -> MeterTiming:
    """The same from a recording. `edges` are the moments [s] at which the load went high, low, high, ... low."""
    period_s, phase_s = fit_period(samples)
    ticks = np.arange(phase_s, samples.at_s[-1], period_s)
    ticks = ticks[(ticks > edges[0] + WINDOWS_S[-1]) & (ticks < edges[-1])]
    shown = samples.power_w[np.searchsorted(samples.at_s, ticks + period_s / 2, side="right") - 1]
    window_s, lag_s, residual = _search(ticks, shown, edges, period_s)
    if residual > 0.5:
        raise DeviceError(f"no averaging window explains the readings (best leaves {residual:.0%} of their variance); is the GPU shared?")
    return MeterTiming(period_s=period_s, window_s=window_s, lag_s=lag_s, residual=residual, updates=len(ticks))


def _drive(load: SwitchedLoad, clock: Clock, seconds_per_wave: float) -> Floats:
    """Run every wave in turn; the edges as they really happened [s]."""
    edges = []
    load.run_low(0.2)
    for wave_s in WAVE_PERIODS_S:
        for _ in range(max(2, round(seconds_per_wave / wave_s))):
            edges.append(clock.now_s())
            load.run_high(wave_s / 2)
            edges.append(clock.now_s())
            load.run_low(wave_s / 2)
    return np.array(edges)


def fit_period(samples: Samples) -> tuple[float, float]:
    """Update period [s] and the moment of one update [s], from the moments at which the reading changed.

    Some updates bring the same value and leave a gap of several periods, so the period is the spacing that makes every gap a
    whole number: the median of the single gaps, then a straight line through (number, moment).

    Raises:
        DeviceError: fewer than ten changes.
    """
    changed = np.flatnonzero(np.diff(samples.power_w)) + 1
    if len(changed) < 10:
        raise DeviceError(f"the power reading changed {len(changed)} times in {len(samples)} samples; is the load running on this board?")
    moments = samples.at_s[changed]
    gaps = np.diff(moments)
    period_s = float(np.median(gaps[gaps < 1.5 * np.quantile(gaps, 0.2)]))
    for _ in range(5):
        numbers = np.concatenate(([0.0], np.cumsum(np.maximum(1.0, np.round(gaps / period_s)))))
        period_s, phase_s = (float(value) for value in np.polyfit(numbers, moments, 1))
    read_every_s = float(np.median(np.diff(samples.at_s)))
    return period_s, phase_s - read_every_s / 2  # a change is seen half a reading late, on average


def _search(ticks: Floats, shown: Floats, edges: Floats, period_s: float) -> tuple[float, float, float]:
    """Window [s], lag [s] and unexplained share of variance: a grid, then two finer ones around its best point."""
    windows, lags = WINDOWS_S, np.linspace(0.0, max(0.05, 1.5 * period_s), 31)
    best = (0.0, 0.0, np.inf)
    for _ in range(4):
        for window_s in windows:
            residuals = _unexplained(ticks, shown, edges, window_s, lags)
            least = int(np.argmin(residuals))
            if residuals[least] < best[2]:
                best = (float(window_s), float(lags[least]), float(residuals[least]))
        ratio, step_s = windows[1] / windows[0], lags[1] - lags[0]
        windows = best[0] * np.geomspace(1 / ratio, ratio, 11)
        lags = np.clip(best[1] + step_s * np.linspace(-1, 1, 11), 0.0, None)
        if lags[1] == lags[0]:
            lags = np.linspace(0.0, step_s, 11)
    return best


def _unexplained(ticks: Floats, shown: Floats, edges: Floats, window_s: float, lags: Floats) -> Floats:
    """Share of the variance of `shown` that a straight line through the expected share of high leaves, 0..1, for each lag."""
    ends = ticks - lags[:, None]
    share = (_high_before_s(ends, edges) - _high_before_s(ends - window_s, edges)) / window_s
    share -= share.mean(axis=1, keepdims=True)
    off = shown - shown.mean()
    both, own = share @ off, (share**2).sum(axis=1) * float(off @ off)
    flat = np.ptp(share, axis=1) < 1e-9
    return np.asarray(np.where(flat, 1.0, np.clip(1.0 - both**2 / np.where(flat, 1.0, own), 0.0, 1.0)))


def _high_before_s(moments: Floats, edges: Floats) -> Floats:
    """Time spent high [s] before each moment: rises by one second per second between an even edge and the odd one after it."""
    high = np.zeros(len(edges))
    high[1::2] = edges[1::2] - edges[0::2]
    return np.interp(moments, edges, np.cumsum(high))
