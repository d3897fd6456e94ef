"""The square-wave routine must find what the simulated meter was built with: the published pairs, and others."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_p.errors import DeviceError
from pie_p.profiling.clocks import SimulatedClock
from pie_p.profiling.laws import Timeline
from pie_p.profiling.samples import Samples
from pie_p.profiling.sampling import SimulatedSampler
from pie_p.profiling.simulated_meter import Artefacts, SimulatedMeter
from pie_p.profiling.window import MeterTiming, find_timing, fit_period


class SimulatedLoad:
    def __init__(self, clock: SimulatedClock, law: Timeline, high_w: float = 600.0) -> None:
        self.clock, self.law, self.high_w = clock, law, high_w

    def run_high(self, duration_s: float) -> None:
        self.law.set_level(self.clock.now_s(), self.high_w)
        self.clock.sleep(duration_s)
        self.law.set_level(self.clock.now_s(), self.law.idle_w)

    def run_low(self, duration_s: float) -> None:
        self.clock.sleep(duration_s)


def timing_of(artefacts: Artefacts, *, rise_s: float = 0.0) -> MeterTiming:
    clock, law = SimulatedClock(100.0), Timeline(idle_w=75.0, rise_s=rise_s)
    meter = SimulatedMeter(law, clock, artefacts=artefacts)
    return find_timing(SimulatedLoad(clock, law), SimulatedSampler(meter, clock, period_s=0.0015), clock)


@pytest.mark.parametrize(
    ("period_s", "window_s"),
    [(0.100, 0.025), (0.100, 0.100), (0.100, 1.000), (0.020, 0.010)],  # H100 and A100; Ada and A6000; their average field; Volta
)
@pytest.mark.parametrize("lag_s", [0.0, 0.012])
def test_published_pairs_are_found(period_s: float, window_s: float, lag_s: float) -> None:
    found = timing_of(Artefacts(period_s=period_s, window_s=window_s, lag_s=lag_s, phase_s=0.0137, gain=0.95, quantum_w=0.1))
    assert found.period_s == pytest.approx(period_s, rel=0.005)
    assert found.window_s == pytest.approx(window_s, rel=0.10)
    assert found.lag_s == pytest.approx(lag_s, abs=0.005)
    assert found.residual < 0.02


def test_a_board_that_is_slow_to_rise_does_not_change_the_answer_much() -> None:
    found = timing_of(Artefacts(), rise_s=0.005)
    assert found.period_s == pytest.approx(0.100, rel=0.005)
    assert found.window_s == pytest.approx(0.025, rel=0.25)


@settings(max_examples=10, deadline=None)
@given(period_s=st.floats(0.015, 0.2), share=st.floats(0.25, 3.0), phase=st.floats(0.0, 1.0))
def test_any_pair_is_found(period_s: float, share: float, phase: float) -> None:
    found = timing_of(Artefacts(period_s=period_s, window_s=period_s * share, phase_s=phase * period_s))
    assert found.period_s == pytest.approx(period_s, rel=0.01)
    assert found.window_s == pytest.approx(period_s * share, rel=0.15, abs=0.002)


def test_a_reading_that_never_changes_is_an_error() -> None:
    samples = Samples(at_s=np.arange(1000) * 0.001, power_w=np.full(1000, 75.0))
    with pytest.raises(DeviceError, match="changed 0 times in 1000 samples; is the load running on this board"):
        fit_period(samples)
