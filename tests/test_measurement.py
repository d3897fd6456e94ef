"""One measurement, held against the simulated board's true power, on a simulated clock."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_p.errors import InputError
from pie_p.profiling.clocks import SimulatedClock
from pie_p.profiling.laws import Timeline
from pie_p.profiling.measurement import Bench, Measurement, Procedure, measure, updates
from pie_p.profiling.meters import AbsentMeter, BoardState
from pie_p.profiling.samples import Floats, Samples
from pie_p.profiling.sampling import NoSampler, SimulatedSampler
from pie_p.profiling.simulated_meter import Artefacts, SimulatedMeter
from pie_p.profiling.window import MeterTiming

IDLE_W = 75.0
H100 = Artefacts()
PUBLISHED = Procedure()


class Phases:
    """A call made of phases, each with a length [s] and a power [W]; `drift` makes every run longer than the one before."""

    def __init__(self, clock: SimulatedClock, law: Timeline, phases: list[tuple[float, float]], *, drift: float = 0.0) -> None:
        self.clock, self.law, self.phases, self.drift, self.runs = clock, law, phases, drift, 0
        self.signature = f"phases {phases}"

    @property
    def call_s(self) -> float:
        return sum(length_s for length_s, _ in self.phases)

    @property
    def mean_w(self) -> float:
        return sum(length_s * power_w for length_s, power_w in self.phases) / self.call_s

    def run(self, calls: int) -> float:
        start_s = self.clock.now_s()
        stretch = 1.0 + self.drift * self.runs
        self.runs += 1
        lengths = [(length_s * stretch, power_w) for length_s, power_w in self.phases]
        repeats = [(sum(length for length, _ in lengths) * calls, lengths[0][1])] if len(lengths) == 1 else lengths * calls
        for length_s, power_w in repeats:
            self.law.set_level(self.clock.now_s(), power_w)
            self.clock.sleep(length_s)
        self.law.set_level(self.clock.now_s(), IDLE_W)
        return self.clock.now_s() - start_s

    def time_each(self, calls: int) -> Floats:
        return np.array([self.run(1) for _ in range(calls)])


def run(
    phases: list[tuple[float, float]],
    artefacts: Artefacts = H100,
    *,
    rise_s: float = 0.02,
    drift: float = 0.0,
    state: BoardState | None = None,
    procedure: Procedure = PUBLISHED,
    known_lag_s: float | None = None,
) -> tuple[Measurement, Phases]:
    clock, law = SimulatedClock(1000.0), Timeline(idle_w=IDLE_W, rise_s=rise_s)
    meter = SimulatedMeter(law, clock, artefacts=artefacts, state=state)
    lag_s = artefacts.lag_s if known_lag_s is None else known_lag_s
    timing = MeterTiming(period_s=artefacts.period_s, window_s=artefacts.window_s, lag_s=lag_s, residual=0.0, updates=100)
    bench = Bench(clock=clock, meter=meter, sampler=SimulatedSampler(meter, clock), timing=timing)
    workload = Phases(clock, law, phases, drift=drift)
    return measure(workload, bench, procedure), workload


@pytest.mark.parametrize("call_s", [20e-6, 3e-3, 0.04, 0.7])
@pytest.mark.parametrize(("period_s", "window_s"), [(0.1, 0.025), (0.1, 0.1), (0.1, 1.0), (0.02, 0.01)])
def test_a_steady_kernel_is_measured_through_every_published_meter(call_s: float, period_s: float, window_s: float) -> None:
    measured, workload = run([(call_s, 520.0)], Artefacts(period_s=period_s, window_s=window_s, phase_s=0.037))
    assert measured.rejected_because == ""
    assert measured.time_s == pytest.approx(call_s, rel=1e-6)
    assert measured.power_w == pytest.approx(520.0, rel=0.01)
    assert measured.energy_j == pytest.approx(workload.mean_w * call_s, rel=0.01)


@pytest.mark.parametrize("call_s", [0.1, 0.2, 0.4, 0.137])
def test_delays_let_a_meter_that_sees_a_quarter_of_the_time_see_all_of_a_call(call_s: float) -> None:
    phases = [(call_s / 4, 600.0), (3 * call_s / 4, 250.0)]  # in step with the meter's 100 ms, the worst case
    with_delays, workload = run(phases, rise_s=0.0)
    assert with_delays.power_w == pytest.approx(workload.mean_w, rel=0.04)


def test_without_the_delays_the_same_meter_is_wrong_which_is_why_they_are_there() -> None:
    phases = [(0.025, 600.0), (0.075, 250.0)]
    without, workload = run(phases, rise_s=0.0, procedure=Procedure(delays=0, trials=1, longest_pause_s=0.0))
    assert without.power_w is not None
    assert abs(without.power_w / workload.mean_w - 1) > 0.15


def test_the_rise_is_dropped() -> None:
    slow, _ = run([(0.001, 500.0)], rise_s=0.08)
    assert slow.power_w == pytest.approx(500.0, rel=0.02)
    kept, _ = run([(0.001, 500.0)], rise_s=0.08, procedure=Procedure(rise_s=0.0, settle_s=0.0))
    assert kept.power_w is not None
    assert slow.power_w is not None
    assert kept.power_w < slow.power_w


def test_the_lag_is_corrected() -> None:
    short = Procedure(enough_s=0.8, rise_s=0.0, settle_s=0.0, delays=0, most_spread=1.0)
    late = Artefacts(lag_s=0.3)
    corrected, _ = run([(0.01, 500.0)], late, rise_s=0.0, procedure=short)
    ignored, _ = run([(0.01, 500.0)], late, rise_s=0.0, procedure=short, known_lag_s=0.0)
    assert corrected.power_w == pytest.approx(500.0)
    assert ignored.power_w is not None
    assert ignored.power_w < 400.0


def test_gain_error_of_the_board_goes_into_power_and_not_into_the_ratio_of_counter_to_power() -> None:
    measured, _ = run([(0.01, 500.0)], Artefacts(gain=1.05))
    assert measured.power_w == pytest.approx(525.0, rel=0.01)
    assert measured.counter_ratio == pytest.approx(1.0, abs=0.03)


def test_a_counter_that_disagrees_shows() -> None:
    clock, law = SimulatedClock(), Timeline(idle_w=IDLE_W)
    meter = SimulatedMeter(law, clock)
    honest = meter.energy_at_j
    meter.energy_at_j = lambda at_s: 0.57 * honest(at_s)  # type: ignore[method-assign]
    bench = Bench(
        clock=clock,
        meter=meter,
        sampler=SimulatedSampler(meter, clock),
        timing=MeterTiming(period_s=0.1, window_s=0.025, lag_s=0.0, residual=0.0, updates=100),
    )
    assert measure(Phases(clock, law, [(0.01, 500.0)]), bench).counter_ratio == pytest.approx(0.57, abs=0.03)


def test_trials_that_drift_apart_are_rejected_with_the_figure() -> None:
    measured, _ = run([(0.05, 500.0)], drift=0.005)
    assert measured.trials_made == 8
    assert measured.rejected_because.startswith("trials differ by ")
    assert "5.0% is allowed" in measured.rejected_because


def test_heat_is_a_reason_and_a_power_cap_is_not() -> None:
    hot, _ = run([(0.01, 500.0)], state=BoardState(throttle_reasons=("hw_thermal_slowdown",)))
    assert "slowed by heat or its power brake (hw_thermal_slowdown)" in hot.rejected_because
    capped, _ = run([(0.01, 500.0)], state=BoardState(throttle_reasons=("sw_power_cap",)))
    assert capped.rejected_because == ""


def test_too_few_updates_are_a_reason() -> None:
    measured, _ = run([(0.01, 500.0)], procedure=Procedure(enough_s=0.6))
    assert "meter updates fell inside the busy time, 5 are needed" in measured.rejected_because


def test_without_a_meter_time_is_measured_and_power_is_not() -> None:
    clock, law = SimulatedClock(), Timeline(idle_w=IDLE_W)
    bench = Bench(clock=clock, meter=AbsentMeter(), sampler=NoSampler(), timing=None)
    measured = measure(Phases(clock, law, [(0.01, 500.0)]), bench)
    assert measured.time_s == pytest.approx(0.01)
    assert (measured.power_w, measured.energy_j, measured.counter_ratio) == (None, None, None)
    assert measured.rejected_because == ""


def test_the_same_seed_makes_the_same_measurement() -> None:
    first, _ = run([(0.01, 500.0)])
    second, _ = run([(0.01, 500.0)])
    assert dataclasses.astuple(first) == dataclasses.astuple(second)


def test_the_environment_is_recorded() -> None:
    measured, _ = run([(0.01, 500.0)], state=BoardState(process_ids=(4_000_000,), limit_w=700.0))
    assert measured.environment.foreign_process_ids == (4_000_000,)
    assert measured.environment.to_dict()["meter"]["kind"] == "simulated"


def test_a_procedure_that_cannot_be_is_refused_with_its_value() -> None:
    with pytest.raises(InputError, match=r"trials is 0; a measurement needs trials > 0"):
        Procedure(trials=0)


@settings(max_examples=25, deadline=None)
@given(
    call_s=st.floats(1e-5, 2.0),
    power_w=st.floats(80.0, 700.0),
    gain=st.floats(0.95, 1.05),
    phase=st.floats(0.0, 1.0),
)
def test_any_steady_call_comes_back_within_the_meters_gain(call_s: float, power_w: float, gain: float, phase: float) -> None:
    measured, _ = run([(call_s, power_w)], Artefacts(gain=gain, phase_s=0.1 * phase, quantum_w=0.1), rise_s=0.005)
    assert measured.power_w == pytest.approx(power_w * gain, rel=0.01)


def test_updates_are_found_under_many_readings_of_each() -> None:
    at_s = np.arange(0.0, 1.0, 0.01)
    shown = np.floor((at_s - 0.034) / 0.1) * 10 + 300.0  # a new value every 100 ms, at .034, .134, ...
    timing = MeterTiming(period_s=0.1, window_s=0.025, lag_s=0.004, residual=0.0, updates=10)
    ends_s, values_w = updates(Samples(at_s=at_s, power_w=shown), timing)
    assert ends_s == pytest.approx(0.03 + 0.1 * np.arange(len(ends_s)), abs=0.006)
    assert values_w.tolist() == [300.0 + 10 * number for number in range(len(values_w))]
