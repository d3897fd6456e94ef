"""ONE measurement: time and power of one piece of work, and how far to trust them.

    cool down   warm up     block block .. block ~ block .. block            pause    next trial
    ─────────▶ ▒▒▒▒▒▒▒▒▒ ▶ ████ █████ .. █████   █████ .. █████ ▶ (random) ─────▶ ▒▒▒ ████ ..
    board      clocks,     │rise│ updates whose window lies inside are kept │
    settles    caches      │drop│                └ phase-shifting delay, as long as the window

    trial := 32 blocks of 5 s / 32, or, where one call is longer than that, single calls until 5 s or 32 calls
    power := mean of the kept updates, each moved back by the meter's lag, weighted so that every part of a call counts for as long
             as it lasts;  energy := power x time, per call
    round := 4 trials in a row; spread := (largest - smallest) / median of their energies
    above 5 % another round; then the 4 trials nearest to the median; still above: rejected, with the reason
    beside it: the energy counter over the same stretch, as a ratio to the integrated power

The calls of a block run back to back, so the board is busy throughout. The delays are there where a meter that looks 25 of every
100 ms could look at the same part of every call: calls much shorter than the window have no parts that it can tell apart, and get none,
because after each delay the board has to rise again. Protocol: arXiv 2312.02741, which cut the error of NVML from 39 % to 4.9 %.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from pie_p.errors import InputError
from pie_p.profiling.clocks import Clock
from pie_p.profiling.environment import Environment, read_environment
from pie_p.profiling.meters import BoardState, Meter
from pie_p.profiling.samples import Floats, Samples
from pie_p.profiling.sampling import Sampler
from pie_p.profiling.window import MeterTiming

LEAST_UPDATES: Final = 5  # kept meter updates below which a trial's power is not believed
COUNTER_LEAST_S: Final = 1.0  # a counter is differenced over at least this
SHORT_CALL: Final = 0.2  # of the window: below it an update averages over five calls or more, and phases do not matter


OnState = Callable[[float, str], None]


class Workload(Protocol):
    """Something that can be run again and again; equal signatures mean equal work, which is measured once."""

    @property
    def signature(self) -> str:
        """What is run, in full: kind, sizes, dtype, device."""

    def run(self, calls: int) -> float:
        """Run `calls` calls back to back and wait for them; the time they took on the device [s]."""

    def time_each(self, calls: int) -> Floats:
        """Time of each of `calls` single calls [s]: their spread is what makes ranks wait for each other."""


# Beyond these a number is a slip of the pen: one point would take days.
MOST: Final[dict[str, float]] = {
    "cool_down_s": 600, "warm_up_s": 600, "enough_s": 3600, "enough_iterations": 100_000, "delays": 1000, "trials": 100, "rounds": 10,
    "longest_pause_s": 600, "rise_s": 60, "settle_s": 60, "most_spread": 100,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    """How a measurement is made; the defaults are the published protocol."""

    cool_down_s: float = 2.0
    warm_up_s: float = 1.0
    enough_s: float = 5.0
    enough_iterations: int = 32
    delays: int = 8  # phase-shifting delays per trial
    trials: int = 4  # per round
    rounds: int = 2  # at most
    longest_pause_s: float = 0.5  # random, before each trial
    rise_s: float = 0.5  # dropped at the start of a trial
    settle_s: float = 0.02  # dropped after a delay
    most_spread: float = 0.05  # of the energy (the time, where power is not measured) over trials
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("enough_s", "enough_iterations", "trials", "rounds", "most_spread"):
            if not (value := getattr(self, name)) > 0:
                raise InputError(f"{name} is {value}; a measurement needs {name} > 0")
        for name, most in MOST.items():
            if not 0 <= (value := getattr(self, name)) <= most:
                raise InputError(f"{name} is {value}; a measurement needs {name} of 0 to {most:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where a measurement is made."""

    clock: Clock
    meter: Meter
    sampler: Sampler
    timing: MeterTiming | None  # of the sampled field; None where power is not measured
    on_state: OnState | None = None  # of a simulated board: told from when on (s) it does what


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One stretch of repeated work."""

    calls: int
    time_s: float  # of one call
    power_w: float | None  # None: not measured
    updates: int  # of the meter, kept
    counter_ratio: float | None  # energy counter over integrated power; 1 where they agree
    state: BoardState  # at the end

    @property
    def energy_j(self) -> float | None:
        """Of one call [J]."""
        return None if self.power_w is None else self.power_w * self.time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Time and power of one call of a workload, with everything they rest on."""

    signature: str
    time_s: float
    spread_s: float  # standard deviation over single calls
    power_w: float | None  # None: not measured
    spread: float  # (largest - smallest) / median over the trials kept, 0..1
    counter_ratio: float | None  # energy counter over integrated power, median over trials
    trials: tuple[Trial, ...]  # the ones kept
    trials_made: int
    rejected_because: str  # empty: accepted
    environment: Environment
    samples: tuple[Samples, ...] = field(default=(), repr=False)

    @property
    def energy_j(self) -> float | None:
        """Of one call [J]; None where power was not measured."""
        return None if self.power_w is None else self.power_w * self.time_s


@dataclass(frozen=True, slots=True)
class _Marks:
    """What a trial did: busy stretches on the clock, calls, device time."""

    spans: list[tuple[float, float]]
    calls: int
    device_s: float
    state: BoardState


def measure(workload: Workload, bench: Bench, procedure: Procedure = Procedure(), *, keep_samples: bool = False) -> Measurement:
    """Measure one workload as drawn above.

    Raises:
        DeviceError: the meter or its sampler failed; nothing of the measurement is kept.
    """
    chance = random.Random(f"{procedure.seed} {workload.signature}")
    bench.clock.sleep(procedure.cool_down_s)
    call_s = _warm_up(workload, procedure)
    single_s = workload.time_each(procedure.enough_iterations)
    environment = read_environment(bench.meter)
    trials: list[Trial] = []
    recordings: list[Samples] = []
    for _ in range(procedure.rounds):
        bench.sampler.start()
        marks = [_trial(workload, bench, procedure, call_s, chance) for _ in range(procedure.trials)]
        recordings.append(bench.sampler.stop())
        trials += [_read_trial(mark, recordings[-1], bench.timing, procedure) for mark in marks]
        if _spread(_nearest(trials, procedure.trials)) <= procedure.most_spread:
            break
    kept = _nearest(trials, procedure.trials)
    ratios = [trial.counter_ratio for trial in kept if trial.counter_ratio is not None]
    return Measurement(
        signature=workload.signature,
        time_s=float(np.median([trial.time_s for trial in kept])),
        spread_s=float(np.std(single_s)),
        power_w=None if bench.timing is None else float(np.median([trial.power_w or np.nan for trial in kept])),
        spread=_spread(kept),
        counter_ratio=float(np.median(ratios)) if ratios else None,
        trials=tuple(kept),
        trials_made=len(trials),
        rejected_because=_fault(kept, procedure, metered=bench.timing is not None),
        environment=environment,
        samples=tuple(recordings) if keep_samples else (),
    )


def _warm_up(workload: Workload, procedure: Procedure) -> float:
    """Run until warm; the time of one call [s], from the last and longest run.

    It goes by what `run` answers and not by the clock, so that ranks whose `run` answers alike warm up alike and stay in step.
    """
    spent_s, calls = 0.0, 1
    while True:
        took_s = workload.run(calls)
        spent_s += max(took_s, 1e-9 * calls)
        if spent_s >= procedure.warm_up_s:
            return max(took_s / calls, 1e-9)
        calls = min(2 * calls, max(1, int(calls * procedure.warm_up_s / max(took_s, 1e-6))))


def _trial(workload: Workload, bench: Bench, procedure: Procedure, call_s: float, chance: random.Random) -> _Marks:
    """Repeat the work in blocks, with phase-shifting delays between groups of them."""
    bench.clock.sleep(chance.uniform(0.0, procedure.longest_pause_s))
    block_calls = max(1, round(procedure.enough_s / procedure.enough_iterations / call_s))
    blocks = max(1, min(procedure.enough_iterations, round(procedure.enough_s / (block_calls * call_s))))
    delay_s = _delay_s(bench.timing, call_s)
    group = max(1, blocks // (procedure.delays + 1)) if delay_s and procedure.delays else blocks
    spans: list[tuple[float, float]] = []
    device_s = 0.0
    for first in range(0, blocks, group):
        if spans:
            bench.clock.sleep(delay_s)
        start_s = bench.clock.now_s()
        for _ in range(first, min(first + group, blocks)):
            device_s += workload.run(block_calls)
        spans.append((start_s, bench.clock.now_s()))
    return _Marks(spans, blocks * block_calls, device_s, bench.meter.read_state())


def _delay_s(timing: MeterTiming | None, call_s: float) -> float:
    """Length of a phase-shifting delay [s]: the window, where the meter does not see all of the time; else none is needed."""
    if timing is None or timing.window_s > 0.95 * timing.period_s or call_s < SHORT_CALL * timing.window_s:
        return 0.0
    return timing.window_s


def _read_trial(marks: _Marks, samples: Samples, timing: MeterTiming | None, procedure: Procedure) -> Trial:
    """Turn marks and samples into time and power."""
    power_w, kept, ratio = None, 0, None
    if timing is not None:
        ends_s, values_w = updates(samples, timing)
        start_s = _span_start(ends_s, timing.window_s, marks.spans, procedure)
        inside = np.isfinite(start_s)
        kept = int(inside.sum())
        call_s = sum(end_s - first_s for first_s, end_s in marks.spans) / marks.calls
        if kept:
            middle_s = ends_s[inside] - timing.window_s / 2 - start_s[inside]
            short = call_s < SHORT_CALL * timing.window_s
            power_w = float(np.mean(values_w[inside]) if short else phase_mean(middle_s / call_s, values_w[inside]))
        ratio = counter_ratio(samples, ends_s, values_w, marks.spans)
    return Trial(
        calls=marks.calls,
        time_s=marks.device_s / marks.calls,
        power_w=power_w,
        updates=kept,
        counter_ratio=ratio,
        state=marks.state,
    )


def phase_mean(phases: Floats, values: Floats) -> float:
    """Mean over one turn of a repeating thing, seen at uneven phases: each value counts for the arc that is nearest to it.

    >>> phase_mean(np.array([0.0, 1.0, 2.0, 0.5]), np.array([600.0, 600.0, 600.0, 200.0]))  # three of four looks at the same place
    400.0
    """
    turned = np.mod(phases, 1.0)
    places, which = np.unique(np.round(turned, 4) % 1.0, return_inverse=True)
    means = np.bincount(which, weights=values) / np.bincount(which)
    gaps = np.diff(np.append(places, places[0] + 1.0))
    return float(np.sum(means * (gaps + np.roll(gaps, 1)) / 2))


def updates(samples: Samples, timing: MeterTiming) -> tuple[Floats, Floats]:
    """End of the window [s] and value [W] of every update of the meter in a recording.

    The recording shows each update many times over; the moments of change tell the phase of the updates, circularly averaged.
    """
    if len(samples) < 2:
        return np.empty(0), np.empty(0)
    read_every_s = float(np.median(np.diff(samples.at_s)))
    changed = samples.at_s[1:][np.diff(samples.power_w) != 0] - read_every_s / 2
    angle = np.angle(np.mean(np.exp(2j * np.pi * changed / timing.period_s))) if len(changed) else 0.0
    phase_s = float(angle) / (2 * np.pi) * timing.period_s
    first = np.ceil((samples.at_s[0] - phase_s) / timing.period_s)
    ticks_s = np.arange(first * timing.period_s + phase_s, samples.at_s[-1] - timing.period_s / 2, timing.period_s)
    values_w = samples.power_w[np.searchsorted(samples.at_s, ticks_s + timing.period_s / 2, side="right") - 1]
    return ticks_s - timing.lag_s, values_w


def _span_start(ends_s: Floats, window_s: float, spans: Sequence[tuple[float, float]], procedure: Procedure) -> Floats:
    """Start of the busy stretch [s] that a window lies wholly inside of, its rise left out; NaN for a window that lies in none."""
    starts = np.full(len(ends_s), np.nan)
    for index, (start_s, end_s) in enumerate(spans):
        settled_s = start_s + (procedure.settle_s if index else procedure.rise_s)
        starts[(ends_s - window_s >= settled_s) & (ends_s <= end_s)] = start_s
    return starts


def counter_ratio(samples: Samples, ends_s: Floats, values_w: Floats, spans: Sequence[tuple[float, float]]) -> float | None:
    """Energy counter over integrated power, between the first and the last counter reading of the trial; None where there is none."""
    inside = (samples.counter_at_s >= spans[0][0]) & (samples.counter_at_s <= spans[-1][1])
    moments, energies = samples.counter_at_s[inside], samples.energy_j[inside]
    if len(moments) < 2 or moments[-1] - moments[0] < COUNTER_LEAST_S or len(ends_s) < 2:
        return None
    shown = Samples(at_s=ends_s - (ends_s[1] - ends_s[0]) / 2, power_w=values_w)  # each update stands for the period around it
    if shown.at_s[0] > moments[0]:
        return None
    return float((energies[-1] - energies[0]) / shown.integral_j(float(moments[0]), float(moments[-1])))


def _figure(trial: Trial) -> float:
    """What the spread is taken of: energy, or time where power is not measured."""
    return trial.time_s if trial.energy_j is None else trial.energy_j


def _nearest(trials: Sequence[Trial], count: int) -> list[Trial]:
    """The `count` trials nearest to the median."""
    middle = float(np.median([_figure(trial) for trial in trials]))
    return sorted(trials, key=lambda trial: abs(_figure(trial) - middle))[:count]


def _spread(trials: Sequence[Trial]) -> float:
    figures = [_figure(trial) for trial in trials]
    return float((max(figures) - min(figures)) / np.median(figures))


def _fault(trials: Sequence[Trial], procedure: Procedure, *, metered: bool) -> str:
    """Why the measurement is not to be used; empty where nothing is wrong."""
    if metered and any(trial.updates < LEAST_UPDATES for trial in trials):
        fewest = min(trial.updates for trial in trials)
        return f"only {fewest} meter updates fell inside the busy time, {LEAST_UPDATES} are needed; repeat for longer"
    if any(trial.state.is_overheated for trial in trials):
        reasons = sorted({reason for trial in trials for reason in trial.state.throttle_reasons})
        return f"the board was slowed by heat or its power brake ({', '.join(reasons)}); cool it"
    if (spread := _spread(trials)) > procedure.most_spread:
        return f"trials differ by {spread:.1%}, {procedure.most_spread:.1%} is allowed; is the board shared?"
    return ""
