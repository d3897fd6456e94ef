"""The contract of a power meter, run over every meter there is; NVML's is met by its stand-in."""

import importlib.util
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pie_p.errors import DeviceError
from pie_p.profiling.clocks import SimulatedClock
from pie_p.profiling.laws import SquareWave
from pie_p.profiling.meters import FIELDS, AbsentMeter, ClosedMeterError, Field, Meter, MissingFieldError
from pie_p.profiling.nvml_meter import NvmlMeter
from pie_p.profiling.replay_meter import ReplayMeter
from pie_p.profiling.samples import Samples
from pie_p.profiling.simulated_meter import SimulatedMeter

Make = Callable[[frozenset[Field]], Meter]


def stand_in() -> ModuleType:
    """A fresh copy of the stand-in, so that no test sees another's boards."""
    spec = importlib.util.spec_from_file_location("pynvml", Path(__file__).with_name("fake_pynvml.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["pynvml"] = module  # where dataclasses look for it; the fixture puts the real one back
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "pynvml", ModuleType("pynvml"))
    return stand_in()


@pytest.fixture(params=["nvml", "replay", "simulated", "absent"])
def make(request: pytest.FixtureRequest) -> Make:
    def nvml_meter(fields: frozenset[Field]) -> Meter:
        board = request.getfixturevalue("nvml").BOARDS[0]
        board.power_mw = {(number, 0): 350_000 for name, number in (("instant", 186), ("average", 185)) if name in fields}
        board.counter_mj = 5_000_000 if "counter" in fields else None
        return NvmlMeter()

    def replay_meter(fields: frozenset[Field]) -> Meter:
        counter = np.array([0.0, 1.0]) if "counter" in fields else np.empty(0)
        samples = Samples(at_s=np.array([0.0, 1.0]), power_w=np.array([300.0, 310.0]), counter_at_s=counter, energy_j=counter)
        return ReplayMeter(samples, SimulatedClock(), power_field="average" if "average" in fields else "instant")

    def simulated_meter(fields: frozenset[Field]) -> Meter:
        return SimulatedMeter(SquareWave(low_w=100.0, high_w=300.0, period_s=0.2), SimulatedClock(5.0), fields=fields)

    makers: dict[str, Make] = {"nvml": nvml_meter, "replay": replay_meter, "simulated": simulated_meter, "absent": lambda _: AbsentMeter()}
    maker = makers[request.param]
    maker.__dict__["kind"] = request.param
    return maker


def readings(meter: Meter) -> dict[Field, Callable[[], float]]:
    return {
        "instant": lambda: meter.read_power_w("instant"),
        "average": lambda: meter.read_power_w("average"),
        "counter": meter.read_energy_j,
    }


@pytest.mark.parametrize("fields", [frozenset(FIELDS), frozenset({"instant"}), frozenset({"average", "counter"}), frozenset()])
def test_every_field_is_either_a_finite_number_or_an_error_that_names_it(make: Make, fields: frozenset[Field]) -> None:
    with make(fields) as meter:
        for name, read in readings(meter).items():
            if name in meter.fields:
                assert math.isfinite(read())
                assert read() >= 0.0
            else:
                with pytest.raises(MissingFieldError, match=f"no '{name}' power field; it answers: "):
                    read()


def test_a_meter_claims_no_field_that_its_device_lacks(make: Make) -> None:
    with make(frozenset({"instant"})) as meter:
        assert meter.fields <= {"instant"}


def test_the_counter_never_runs_backwards(make: Make) -> None:
    with make(frozenset(FIELDS)) as meter:
        if "counter" in meter.fields:
            first = meter.read_energy_j()
            assert meter.read_energy_j() >= first


def test_identity_names_kind_origin_and_board(make: Make) -> None:
    with make(frozenset(FIELDS)) as meter:
        assert meter.identity.kind == make.__dict__["kind"]
        assert (meter.identity.origin == "measured") == (meter.identity.kind == "nvml")
        assert meter.identity.uuid
        assert meter.identity.name


def test_closing_twice_is_fine_and_reading_afterwards_is_an_error(make: Make) -> None:
    meter = make(frozenset({"instant"}))
    meter.close()
    meter.close()
    with pytest.raises((ClosedMeterError, MissingFieldError), match=r"is closed; make a new|no 'instant' power field"):
        meter.read_power_w("instant")


def test_the_state_holds_si_units_or_not_measured(make: Make) -> None:
    with make(frozenset({"instant"})) as meter:
        state = meter.read_state()
        assert state.temperature_c is None or 0 < state.temperature_c < 120
        assert state.sm_clock_hz is None or 1e8 < state.sm_clock_hz < 1e10
        assert state.limit_w is None or 10 < state.limit_w < 2000
        assert state.utilization is None or 0 <= state.utilization <= 1


def test_a_host_without_a_meter_is_an_object_whose_every_reading_says_so() -> None:
    meter = AbsentMeter()
    assert meter.fields == frozenset()
    with pytest.raises(DeviceError, match="host without a power meter"):
        meter.read_energy_j()
