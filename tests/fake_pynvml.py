"""A stand-in for the `pynvml` module: boards in a list, answers and error codes as nvml.h has them.

A test changes `BOARDS`, `INIT_ERROR` and the boards' attributes. The names and constants are compared with the real module where
that is installed (tests/test_nvml_meter.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

NVML_FI_DEV_POWER_INSTANT = 186
NVML_FI_DEV_POWER_AVERAGE = 185
NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION = 83
NVML_POWER_SCOPE_GPU = 0
NVML_POWER_SCOPE_MODULE = 1
NVML_POWER_SCOPE_MEMORY = 2
NVML_VALUE_TYPE_UNSIGNED_INT = 1
NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3
NVML_CLOCK_SM = 1
NVML_CLOCK_MEM = 2
NVML_TEMPERATURE_GPU = 0
NVML_NVLINK_MAX_LINKS = 18
NVML_P2P_CAPS_INDEX_NVLINK = 2
NVML_TOPOLOGY_NODE = 40
NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_RESET_REQUIRED = 16
NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
NVML_ERROR_UNKNOWN = 999


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return {3: "Not Supported", 4: "Insufficient Permissions", 9: "Driver Not Loaded", 15: "GPU is lost"}.get(
            self.value, f"NVML Error with code {self.value}"
        )


@dataclass
class Board:
    uuid: str = "GPU-aaaa"
    name: str = "NVIDIA H200"
    power_mw: dict[tuple[int, int], int] = field(default_factory=lambda: {(186, 0): 350_000, (185, 0): 340_000})
    counter_mj: int | None = 5_000_000
    counter_is_a_field: bool = True
    field_error: int = 0  # nvmlReturn of every field
    call_error: int = 0  # raised by every call on the handle
    mig_uuids: tuple[str, ...] = ()
    reasons: int = 0x4
    pids: tuple[int, ...] = ()
    nvlinks: int = 0


BOARDS: list[Board] = [Board()]
INIT_ERROR = 0
OPEN = 0  # nvmlInit less nvmlShutdown


@dataclass(frozen=True)
class MigHandle:
    board: int
    uuid: str


def nvmlInit() -> None:
    global OPEN
    if INIT_ERROR:
        raise NVMLError(INIT_ERROR)
    OPEN += 1


def nvmlShutdown() -> None:
    global OPEN
    if not OPEN:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)
    OPEN -= 1


def _board(handle: int) -> Board:
    if not OPEN:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)
    board = BOARDS[handle]
    if board.call_error:
        raise NVMLError(board.call_error)
    return board


def nvmlDeviceGetCount() -> int:
    return len(BOARDS)


def nvmlSystemGetDriverVersion() -> str:
    return "570.86.15"


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    if not 0 <= index < len(BOARDS):
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    _board(index)
    return index


def nvmlDeviceGetHandleByUUID(uuid: str) -> int | MigHandle:
    for index, board in enumerate(BOARDS):
        if uuid == board.uuid:
            return index
        if uuid in board.mig_uuids:
            return MigHandle(index, uuid)
    raise NVMLError(NVML_ERROR_NOT_FOUND)


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: MigHandle) -> int:
    return handle.board


def nvmlDeviceGetMaxMigDeviceCount(handle: int) -> int:
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(handle: int, index: int) -> MigHandle:
    instances = _board(handle).mig_uuids
    if index >= len(instances):
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return MigHandle(handle, instances[index])


def nvmlDeviceGetUUID(handle: int | MigHandle) -> str:
    return handle.uuid if isinstance(handle, MigHandle) else _board(handle).uuid


def nvmlDeviceGetName(handle: int) -> str:
    return _board(handle).name


def nvmlDeviceGetFieldValues(handle: int, wanted: list[tuple[int, int]]) -> list[SimpleNamespace]:
    board = _board(handle)
    return [_value(board, *one) for one in wanted]


def _value(board: Board, field_id: int, scope: int) -> SimpleNamespace:
    value, kind = board.power_mw.get((field_id, scope)), NVML_VALUE_TYPE_UNSIGNED_INT
    if field_id == NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION and scope == 0 and board.counter_is_a_field:
        value, kind = board.counter_mj, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    code = board.field_error or (NVML_ERROR_NOT_SUPPORTED if value is None else 0)
    # A union: every member is readable, and the ones that were not meant are rubbish.
    union = SimpleNamespace(dVal=1e-310, uiVal=value if kind == 1 else 7, ullVal=value if kind == 3 else 7)
    return SimpleNamespace(fieldId=field_id, scopeId=scope, nvmlReturn=code, valueType=kind, value=union)


def nvmlDeviceGetTotalEnergyConsumption(handle: int) -> int:
    counter = _board(handle).counter_mj
    if counter is None:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return counter


def nvmlDeviceGetClockInfo(handle: int, clock: int) -> int:
    _board(handle)
    return 1980 if clock == NVML_CLOCK_SM else 3201


def nvmlDeviceGetPowerManagementLimit(handle: int) -> int:
    _board(handle)
    return 700_000


def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:
    _board(handle)
    return SimpleNamespace(gpu=42, memory=10)


def nvmlDeviceGetCurrentClocksEventReasons(handle: int) -> int:
    return _board(handle).reasons


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid) for pid in _board(handle).pids]


def nvmlDeviceGetTemperature(handle: int, sensor: int) -> int:
    _board(handle)
    return 61


def nvmlDeviceGetNvLinkState(handle: int, link: int) -> int:
    if not (links := _board(handle).nvlinks):
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return 1 if link < links else 0


def nvmlDeviceGetP2PStatus(one: int, other: int, index: int) -> int:
    return 0 if _board(one).nvlinks and _board(other).nvlinks else 4


def nvmlDeviceGetTopologyCommonAncestor(one: int, other: int) -> int:
    return NVML_TOPOLOGY_NODE
