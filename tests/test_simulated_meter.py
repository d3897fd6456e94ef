"""The simulated meter and its laws, against numbers worked out by hand and against numerical integration."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from pie_p.errors import InputError
from pie_p.profiling.clocks import SimulatedClock
from pie_p.profiling.laws import SquareWave, Timeline
from pie_p.profiling.simulated_meter import Artefacts, SimulatedMeter

WAVE = SquareWave(low_w=100.0, high_w=300.0, period_s=1.0)  # high in [0, 0.5)


def meter_at(at_s: float, **artefacts: float) -> SimulatedMeter:
    clock = SimulatedClock()
    meter = SimulatedMeter(WAVE, clock, artefacts=Artefacts(**artefacts))
    clock.sleep(at_s)
    return meter


def test_a_window_across_an_edge_shows_the_share_it_saw() -> None:
    # last update at 0.5; the window [0.45, 0.55] - lag 0.05 -> [0.35, 0.45]: high only
    assert meter_at(0.57, period_s=0.1, window_s=0.1, lag_s=0.05).read_power_w() == pytest.approx(300.0)
    # last update at 0.6; window [0.45, 0.55]: half and half
    assert meter_at(0.67, period_s=0.1, window_s=0.1, lag_s=0.05).read_power_w() == pytest.approx(200.0)


def test_between_updates_nothing_changes() -> None:
    assert meter_at(0.61).read_power_w() == meter_at(0.699).read_power_w() == 100.0


def test_gain_and_quantum() -> None:
    assert meter_at(0.45, gain=1.05, quantum_w=10.0).read_power_w() == pytest.approx(320.0)  # 315 rounds to even 32 x 10


def test_the_counter_stands_still_between_its_updates() -> None:
    # 0.5 s at 300 W and 0.2 s at 100 W by the update at 0.7
    assert meter_at(0.75).read_energy_j() == pytest.approx(170.0)


def test_a_meter_without_width_is_refused_with_the_value() -> None:
    with pytest.raises(InputError, match=r"window_s is 0.0; a meter needs window_s > 0"):
        Artefacts(window_s=0.0)


@given(
    levels=st.lists(st.tuples(st.floats(0.001, 1.0), st.floats(0.0, 700.0)), min_size=1, max_size=5),
    rise_s=st.sampled_from([0.0, 0.01, 0.2]),
    start_s=st.floats(-1.0, 5.0),
    length_s=st.floats(0.0, 3.0),
)
def test_a_timelines_energy_is_the_integral_of_its_power(
    levels: list[tuple[float, float]], rise_s: float, start_s: float, length_s: float
) -> None:
    law, at_s = Timeline(idle_w=70.0, rise_s=rise_s), 0.0
    edges = []
    for gap_s, level_w in levels:
        at_s += gap_s
        edges.append(at_s)
        law.set_level(at_s, level_w)
    cuts = np.array([start_s, *[edge for edge in edges if start_s < edge < start_s + length_s], start_s + length_s])
    expected = sum(quad(law.power_w, left, right - 1e-12, limit=200)[0] for left, right in pairwise(cuts) if right - left > 1e-9)
    assert law.energy_j(start_s, start_s + length_s) == pytest.approx(expected, rel=1e-6, abs=1e-5)


@given(st.floats(0.0, 10.0), st.floats(0.0, 3.0))
def test_a_square_wave_adds_up_over_neighbouring_intervals(start_s: float, length_s: float) -> None:
    middle_s, end_s = start_s + length_s / 3, start_s + length_s
    whole = WAVE.energy_j(start_s, end_s)
    assert whole == pytest.approx(WAVE.energy_j(start_s, middle_s) + WAVE.energy_j(middle_s, end_s), abs=1e-6)
    assert 100.0 * length_s - 1e-6 <= whole <= 300.0 * length_s + 1e-6
