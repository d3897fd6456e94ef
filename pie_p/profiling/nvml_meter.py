"""NVML: the power meter inside an NVIDIA board, read through `pynvml`.

Fields (nvml.h): 186 `POWER_INSTANT`, 185 `POWER_AVERAGE` [mW], 83 `TOTAL_ENERGY_CONSUMPTION` [mJ]. `nvmlDeviceGetPowerUsage` is not
used where these exist: it is a one-second average on Hopper and on Ampere other than GA100, and instant elsewhere.
The scope is 0 the GPU, 1 the module (on Grace Hopper that contains the CPU), 2 the memory. MIG instances all report the
power of the whole board, so a meter is always the board's and `nvml_boards` lists every board once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from typing_extensions import override

from pie_p import units
from pie_p.errors import DeviceError
from pie_p.extras import require
from pie_p.profiling.meters import (
    FIELDS,
    BoardState,
    ClosedMeterError,
    DriverError,
    Field,
    LostGpuError,
    Meter,
    MeterIdentity,
    MeterPermissionError,
    MissingFieldError,
    PowerField,
    Scope,
)

FIELD_IDS: Final[dict[Field, int]] = {"instant": 186, "average": 185, "counter": 83}
SCOPE_IDS: Final[dict[Scope, int]] = {"gpu": 0, "module": 1, "memory": 2}
# NVML_VALUE_TYPE_*: which member of the union holds the value
VALUE_MEMBERS: Final = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}

# nvmlClocksEventReason* bits (nvml.h)
THROTTLE_BITS: Final = {
    0x1: "gpu_idle",
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clocks",
}

NOT_SUPPORTED: Final = frozenset({2, 3, 6, 13, 21})  # invalid argument, not supported, not found, function not found, no data
NO_PERMISSION: Final = 4
LOST: Final = frozenset({15, 16})  # GPU is lost, reset required
DRIVER_ADVICE: Final = {
    9: "load the NVIDIA driver (modprobe nvidia)",
    12: "install the NVIDIA driver, which brings libnvidia-ml.so.1",
    18: "reboot: the loaded driver and its library differ in version",
}


def nvml_boards() -> list[MeterIdentity]:
    """Every board of this host, once, in NVML's order; MIG instances are listed under their board.

    Raises:
        MissingExtraError: `pynvml` is not installed.
        DriverError, MeterPermissionError: NVML did not start.
    """
    nvml = _load()
    with _session(nvml):
        count = _asked("count the GPUs", nvml.nvmlDeviceGetCount)
        boards = [_identify(nvml, _find(nvml, index), "gpu") for index in range(count)]
    return list({board.uuid: board for board in boards}.values())


class NvmlMeter(Meter):
    """Meter of the board with this index (NVML's order, not CUDA's) or UUID; a MIG UUID opens its board.

    Raises:
        MissingExtraError: `pynvml` is not installed.
        DriverError, LostGpuError, MeterPermissionError: NVML did not start or the board did not answer.
        DeviceError: no such board.
    """

    def __init__(self, board: int | str = 0, *, scope: Scope = "gpu") -> None:
        self._nvml: Any = _load()
        self._open = False
        _asked("start NVML", self._nvml.nvmlInit)
        self._open = True
        try:
            self._handle = _find(self._nvml, board)
            self.identity = _identify(self._nvml, self._handle, scope)
            self.fields = frozenset(name for name in FIELDS if self._has(name))
        except BaseException:
            self.close()
            raise

    @override
    def read_power_w(self, power_field: PowerField = "instant") -> float:
        return units.from_milli(self._read(power_field))

    @override
    def read_energy_j(self) -> float:
        return units.from_milli(self._read("counter"))

    @override
    def read_state(self) -> BoardState:
        self._check_open()
        nvml, handle = self._nvml, self._handle
        celsius = _optional(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        sm_mhz = _optional(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
        memory_mhz = _optional(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM)
        limit_mw = _optional(nvml.nvmlDeviceGetPowerManagementLimit, handle)
        rates = _optional(nvml.nvmlDeviceGetUtilizationRates, handle)
        reasons = _optional(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0
        processes = _optional(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
        return BoardState(
            temperature_c=None if celsius is None else float(celsius),
            sm_clock_hz=None if sm_mhz is None else sm_mhz * units.MEGA,
            memory_clock_hz=None if memory_mhz is None else memory_mhz * units.MEGA,
            limit_w=None if limit_mw is None else units.from_milli(limit_mw),
            utilization=None if rates is None else rates.gpu / 100,
            throttle_reasons=tuple(name for bit, name in THROTTLE_BITS.items() if reasons & bit),
            process_ids=tuple(sorted(process.pid for process in processes)),
        )

    @override
    def close(self) -> None:
        if self._open:
            self._open = False
            _optional(self._nvml.nvmlShutdown)

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedMeterError(f"the NVML meter of {self.identity.uuid} is closed; make a new NvmlMeter")

    def _has(self, name: Field) -> bool:
        try:
            self._read(name)
        except MissingFieldError:
            return False
        return True

    def _read(self, name: Field) -> float:
        """The raw value [mW or mJ] of one field at this meter's scope."""
        self._check_open()
        wanted = [(FIELD_IDS[name], SCOPE_IDS[self.identity.scope])]
        value = _asked(f"read {name}", self._nvml.nvmlDeviceGetFieldValues, self._handle, wanted)[0]
        if value.nvmlReturn in NOT_SUPPORTED:
            if name == "counter" and self.identity.scope == "gpu":
                return self._read_counter_call()
            raise self._missing(name)
        if value.nvmlReturn != 0:
            raise _explained(f"read {name}", self._nvml.NVMLError(value.nvmlReturn))
        return float(getattr(value.value, VALUE_MEMBERS[value.valueType]))

    def _read_counter_call(self) -> float:
        """The counter [mJ] by its own call: drivers before 530 do not have it as a field."""
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        except self._nvml.NVMLError as error:
            if error.value in NOT_SUPPORTED:
                raise self._missing("counter") from error
            raise _explained("read counter", error) from error

    def _missing(self, name: Field) -> MissingFieldError:
        self.fields = getattr(self, "fields", frozenset()) - {name}
        return self.missing(name)


def peers(boards: list[MeterIdentity]) -> dict[str, dict[str, str]]:
    """How each pair of boards is joined, by UUID: "nvlink x18" or the nearest common ancestor on PCIe ("pcie switch", "numa", ...)."""
    nvml = _load()
    with _session(nvml):
        handles = {board.uuid: _find(nvml, board.uuid) for board in boards}
        return {one: {other: _join(nvml, handles[one], handles[other]) for other in handles if other != one} for one in handles}


PCIE_LEVELS: Final = {0: "same board", 10: "pcie switch", 20: "pcie switches", 30: "host bridge", 40: "numa", 50: "system"}


def _join(nvml: Any, one: Any, other: Any) -> str:
    """Words for the path between two boards: active NVLinks when there are any, else the PCIe ancestor."""
    links = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        links += 1 if _optional(nvml.nvmlDeviceGetNvLinkState, one, link) else 0
    if links and _optional(nvml.nvmlDeviceGetP2PStatus, one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == 0:
        return f"nvlink x{links}"
    level = _optional(nvml.nvmlDeviceGetTopologyCommonAncestor, one, other)
    return "unknown" if level is None else PCIE_LEVELS.get(int(level), f"level {level}")


def _load() -> Any:
    return require("pynvml", extra="profile")


@contextmanager
def _session(nvml: Any) -> Iterator[None]:
    _asked("start NVML", nvml.nvmlInit)
    try:
        yield
    finally:
        _optional(nvml.nvmlShutdown)


def _find(nvml: Any, board: int | str) -> Any:
    """Handle of the board; the parent's where a MIG instance is named."""
    if isinstance(board, int):
        count = _asked("count the GPUs", nvml.nvmlDeviceGetCount)
        if not 0 <= board < count:
            raise DeviceError(f"no GPU {board} on this host: NVML counts {count}, numbered from 0. Mind that CUDA may number otherwise")
        return _asked(f"open GPU {board}", nvml.nvmlDeviceGetHandleByIndex, board)
    handle = _asked(f"open GPU {board!r}", nvml.nvmlDeviceGetHandleByUUID, board)
    if board.startswith("MIG"):
        return _asked("find the board of the MIG instance", nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
    return handle


def _identify(nvml: Any, handle: Any, scope: Scope) -> MeterIdentity:
    instances = []
    for index in range(_optional(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = _optional(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if instance is not None:
            instances.append(_text(_asked("name a MIG instance", nvml.nvmlDeviceGetUUID, instance)))
    return MeterIdentity(
        kind="nvml",
        origin="measured",
        uuid=_text(_asked("read the UUID", nvml.nvmlDeviceGetUUID, handle)),
        name=_text(_asked("read the name", nvml.nvmlDeviceGetName, handle)),
        scope=scope,
        driver=_text(_asked("read the driver version", nvml.nvmlSystemGetDriverVersion)),
        mig_uuids=tuple(instances),
    )


def _text(value: str | bytes) -> str:
    """Old bindings answer bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _asked(what: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML; its errors come back as ours, saying what was asked and what to do."""
    try:
        return call(*arguments)
    except Exception as error:
        if not hasattr(error, "value"):
            raise
        raise _explained(what, error) from error


def _optional(call: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None where this board or driver has none; a lost board is still an error."""
    try:
        return _asked("read the board's state", call, *arguments)
    except LostGpuError:
        raise
    except DeviceError:
        return None


def _explained(what: str, error: Exception) -> DeviceError:
    """Our error for one of NVML's codes."""
    code: int = getattr(error, "value", 0)
    text = f"NVML could not {what}: {error} (code {code})"
    if code in LOST:
        return LostGpuError(f"{text}. The board is off the bus or needs a reset (see dmesg for Xid errors); readings since then are void")
    if code == NO_PERMISSION:
        return MeterPermissionError(f"{text}. Ask for access to /dev/nvidia*, or start the container with the GPU's utility capability")
    if code in NOT_SUPPORTED:
        return MissingFieldError(f"{text}. This GPU or driver does not offer it, or there is no such board")
    return DriverError(f"{text}. To do: {DRIVER_ADVICE.get(code, 'see whether nvidia-smi works on this host')}")
