"""NVML's own outcomes, against the stand-in; its fidelity is checked against the real bindings where they are installed."""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pie_p.errors import DeviceError, MissingExtraError
from pie_p.profiling.meters import DriverError, LostGpuError, MeterPermissionError, MissingFieldError
from pie_p.profiling.nvml_meter import NvmlMeter, nvml_boards, peers

FAKE = Path(__file__).with_name("fake_pynvml.py")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("pynvml", FAKE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    spec.loader.exec_module(module)
    return module


def test_the_stand_in_has_the_real_modules_names_constants_and_parameters(nvml: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pynvml")
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    for name, value in vars(nvml).items():
        if name == "NVML_NVLINK_MAX_LINKS":
            assert getattr(real, name) >= value  # it grows with the GPUs that are known
        elif name.startswith("NVML_"):
            assert getattr(real, name) == value, name
        elif name.startswith("nvml"):
            assert len(inspect.signature(value).parameters) == len(inspect.signature(getattr(real, name)).parameters), name
    for code in (3, 4, 9, 15):
        assert str(real.NVMLError(code)) == str(nvml.NVMLError(code))


def test_milliwatts_and_millijoules_become_watts_and_joules(nvml: ModuleType) -> None:
    with NvmlMeter() as meter:
        assert meter.read_power_w("instant") == 350.0
        assert meter.read_power_w("average") == 340.0
        assert meter.read_energy_j() == 5000.0
        state = meter.read_state()
    assert (state.sm_clock_hz, state.limit_w, state.utilization) == (1.98e9, 700.0, 0.42)
    assert state.throttle_reasons == ("sw_power_cap",)
    assert not state.is_overheated


def test_the_module_scope_is_read_apart_and_a_missing_scope_is_named(nvml: ModuleType) -> None:
    nvml.BOARDS[0].power_mw[(186, 1)] = 610_000  # Grace Hopper: the CPU is inside
    assert NvmlMeter(scope="module").read_power_w() == 610.0
    with pytest.raises(MissingFieldError, match="scope memory\\) has no 'instant' power field; it answers: no field at all"):
        NvmlMeter(scope="memory").read_power_w()


def test_an_old_driver_gives_the_counter_by_its_own_call(nvml: ModuleType) -> None:
    nvml.BOARDS[0].counter_is_a_field = False
    assert NvmlMeter().read_energy_j() == 5000.0


def test_mig_instances_are_one_board_and_one_record(nvml: ModuleType) -> None:
    nvml.BOARDS[:] = [nvml.Board(mig_uuids=("MIG-1", "MIG-2")), nvml.Board(uuid="GPU-bbbb")]
    assert [board.uuid for board in nvml_boards()] == ["GPU-aaaa", "GPU-bbbb"]
    assert nvml_boards()[0].mig_uuids == ("MIG-1", "MIG-2")
    assert NvmlMeter("MIG-2").identity.uuid == NvmlMeter("GPU-aaaa").identity.uuid == "GPU-aaaa"


@pytest.mark.parametrize("code", [15, 16])
def test_a_board_lost_midway_is_an_error_on_every_reading(nvml: ModuleType, code: int) -> None:
    meter = NvmlMeter()
    nvml.BOARDS[0].call_error = code
    for read in (meter.read_power_w, meter.read_energy_j, meter.read_state):
        with pytest.raises(LostGpuError, match=f"code {code}.*off the bus or needs a reset"):
            read()


def test_a_field_that_reports_a_lost_board_is_a_lost_board(nvml: ModuleType) -> None:
    meter = NvmlMeter()
    nvml.BOARDS[0].field_error = 15
    with pytest.raises(LostGpuError, match="could not read instant: GPU is lost"):
        meter.read_power_w()


def test_permission_and_driver_errors_say_what_to_do(nvml: ModuleType) -> None:
    nvml.BOARDS[0].field_error = 4
    with pytest.raises(MeterPermissionError, match=r"Insufficient Permissions.*Ask for access to /dev/nvidia"):
        NvmlMeter()
    for code, advice in ((9, "load the NVIDIA driver"), (12, "libnvidia-ml.so.1"), (18, "reboot"), (999, "nvidia-smi")):
        nvml.INIT_ERROR = code
        with pytest.raises(DriverError, match=f"code {code}.*{advice}"):
            NvmlMeter()


def test_a_failed_start_leaves_nvml_closed(nvml: ModuleType) -> None:
    with pytest.raises(DeviceError, match="no GPU 3 on this host: NVML counts 1"):
        NvmlMeter(3)
    assert nvml.OPEN == 0
    with pytest.raises(MissingFieldError, match="open GPU 'GPU-zzzz'"):
        NvmlMeter("GPU-zzzz")
    assert nvml.OPEN == 0


def test_without_the_bindings_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MissingExtraError, match=r"pie_p\[profile\]"):
        NvmlMeter()


def test_peers_tell_nvlink_from_pcie(nvml: ModuleType) -> None:
    nvml.BOARDS[:] = [nvml.Board(nvlinks=18), nvml.Board(uuid="GPU-bbbb", nvlinks=18), nvml.Board(uuid="GPU-cccc")]
    joined = peers(nvml_boards())
    assert joined["GPU-aaaa"] == {"GPU-bbbb": "nvlink x18", "GPU-cccc": "numa"}


@pytest.mark.gpu
def test_a_real_board_reads_between_zero_and_twice_its_limit() -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    try:
        meter = NvmlMeter()
    except DeviceError as error:
        pytest.skip(f"no NVIDIA board: {error}")
    with meter:
        assert 0 < meter.read_power_w() < 2 * (meter.read_state().limit_w or 1e4)
