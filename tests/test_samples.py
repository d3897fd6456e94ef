"""Samples: integrals by hand, files that come back the same, recordings that cannot be."""

from pathlib import Path

import numpy as np
import pytest

from pie_p.errors import InputError, ProfileError
from pie_p.profiling.clocks import SimulatedClock
from pie_p.profiling.meters import ClosedMeterError
from pie_p.profiling.replay_meter import ReplayMeter
from pie_p.profiling.samples import Samples

RECORDING = Samples(
    at_s=np.array([10.0, 10.5, 11.0]),
    power_w=np.array([100.0, 300.0, 200.0]),
    counter_at_s=np.array([10.0, 11.0]),
    energy_j=np.array([1000.0, 1200.0]),
    wanted_period_s=0.5,
    dropped=1,
)


def test_each_reading_holds_until_the_next() -> None:
    assert RECORDING.integral_j(10.25, 11.5) == 0.25 * 100 + 0.5 * 300 + 0.5 * 200


def test_an_integral_before_the_first_sample_is_refused() -> None:
    with pytest.raises(InputError, match=r"no power sample at or before 9.0 s; start the sampler before the work"):
        RECORDING.integral_j(9.0, 11.0)


def test_rate_and_dropped_share_are_told() -> None:
    assert RECORDING.achieved_hz == 2.0
    assert RECORDING.dropped_share == 0.25
    with pytest.raises(InputError, match="two samples or more, there are 1"):
        _ = RECORDING.between(10.0, 10.4).achieved_hz


def test_a_file_comes_back_the_same_and_a_torn_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "samples.parquet"
    RECORDING.save(path)
    again = Samples.load(path)
    assert again.power_w.tolist() == RECORDING.power_w.tolist()
    assert again.energy_j.tolist() == RECORDING.energy_j.tolist()
    assert (again.wanted_period_s, again.dropped) == (0.5, 1)
    assert again.bound_w == 0.0
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ProfileError, match="holds no power samples"):
        Samples.load(path)


def test_samples_out_of_order_are_refused() -> None:
    with pytest.raises(InputError, match="run backwards"):
        Samples(at_s=np.array([1.0, 0.0]), power_w=np.array([1.0, 1.0]))


def test_a_replay_shows_the_recording_on_the_readers_clock_and_then_ends() -> None:
    clock = SimulatedClock(500.0)
    meter = ReplayMeter(RECORDING, clock)
    assert (meter.read_power_w(), meter.read_energy_j()) == (100.0, 1000.0)
    clock.sleep(0.6)
    assert meter.read_power_w() == 300.0
    clock.sleep(0.4)
    assert meter.read_energy_j() == 1200.0
    clock.sleep(1.0)
    with pytest.raises(ClosedMeterError, match=r"recording of 1.000 s has ended"):
        meter.read_power_w()
