"""The sampler: its own process, its own rate, its own failures brought home."""

import math
import os
import pickle
import time
from functools import partial

import numpy as np
import pytest

from pie_p.errors import DeviceError, InputError
from pie_p.profiling.clocks import MonotonicClock, SimulatedClock
from pie_p.profiling.laws import SquareWave
from pie_p.profiling.meters import FIELDS, ClosedMeterError, LostGpuError, MissingFieldError
from pie_p.profiling.replay_meter import ReplayMeter
from pie_p.profiling.samples import Samples
from pie_p.profiling.sampling import ProcessSampler, SimulatedSampler
from pie_p.profiling.simulated_meter import Artefacts, SimulatedMeter

WAVE = SquareWave(low_w=100.0, high_w=300.0, period_s=0.2)
make_wave_meter = partial(SimulatedMeter, WAVE, MonotonicClock(), artefacts=Artefacts(period_s=0.01, window_s=0.01))


def test_the_process_reads_the_law_on_the_workloads_clock() -> None:
    sampler = ProcessSampler(make_wave_meter, period_s=0.005)
    sampler.start()
    start_s = time.monotonic()
    time.sleep(1.0)
    end_s = time.monotonic()
    samples = sampler.stop()
    assert samples.at_s[0] <= start_s
    assert samples.at_s[-1] >= end_s
    assert len(samples) + samples.dropped >= 0.9 * (end_s - start_s) / 0.005
    assert 0 < samples.achieved_hz <= 201
    assert 0 < samples.processor_s < end_s - start_s + 1
    # held readings of a 10 ms window: late by half a period, so right within one window at each end
    assert samples.integral_j(start_s, end_s) == pytest.approx(WAVE.energy_j(start_s, end_s), rel=0.1)
    assert samples.counter_at_s[0] <= start_s + 0.05
    assert samples.energy_j[-1] > samples.energy_j[0]


def test_a_sampler_can_be_used_again_but_not_twice_at_once() -> None:
    sampler = ProcessSampler(make_wave_meter, period_s=0.01)
    with pytest.raises(InputError, match="was not started"):
        sampler.stop()
    for _ in range(2):
        sampler.start()
        with pytest.raises(InputError, match="runs already"):
            sampler.start()
        assert len(sampler.stop()) >= 2


def test_an_error_of_the_meter_is_raised_where_the_work_is() -> None:
    without = partial(SimulatedMeter, WAVE, MonotonicClock(), fields=frozenset({"counter"}))
    with pytest.raises(MissingFieldError, match="no 'instant' power field; it answers: counter"):
        ProcessSampler(without).start()


def test_a_sampler_that_dies_is_an_error_and_not_a_hang() -> None:
    with pytest.raises(DeviceError, match=r"died \(exit code 9\) before start"):
        ProcessSampler(partial(os._exit, 9)).start()


def test_a_meter_that_dies_midway_is_an_error_at_the_end() -> None:
    short = Samples(at_s=np.arange(0.0, 0.3, 0.01), power_w=np.ones(30))
    sampler = ProcessSampler(partial(ReplayMeter, short, MonotonicClock()), period_s=0.01)
    sampler.start()
    time.sleep(0.6)
    with pytest.raises(ClosedMeterError, match=r"the recording of 0.290 s has ended"):
        sampler.stop()


def test_late_readings_are_counted_as_dropped() -> None:
    samples = Samples(at_s=np.array([0.0, 0.1, 0.5]), power_w=np.ones(3), wanted_period_s=0.1, dropped=3)
    assert samples.dropped_share == 0.5


def test_a_simulated_sampler_reads_every_moment_that_passed() -> None:
    clock = SimulatedClock(7.0)
    sampler = SimulatedSampler(SimulatedMeter(WAVE, clock, fields=frozenset(FIELDS)), clock, period_s=0.01)
    sampler.start()
    clock.sleep(2.005)
    samples = sampler.stop()
    assert samples.at_s[0] == 7.0
    assert samples.at_s[-1] == pytest.approx(9.005)
    assert len(samples) == 202
    assert samples.counter_at_s.tolist() == pytest.approx([7.0, 8.0, 9.0, 9.005])
    assert math.isclose(samples.energy_j[-1], 400.0, rel_tol=0.06)


def test_a_lost_gpu_keeps_its_kind_across_the_process_border() -> None:
    assert isinstance(pickle.loads(pickle.dumps(LostGpuError("gone"))), LostGpuError)
