"""Power meters: one small interface, whatever stands behind it.

A meter answers for ONE board (one UUID). It is read for

- power [W], as the "instant" field (short averaging window) or the "average" field (about one second on most GPUs);
- energy [J], a counter since an arbitrary moment;
- the state of the board (temperature, clocks, limit, throttle reasons, other processes).

A field that the device lacks is an error that names it, never 0.0. `AbsentMeter` stands for a host where power is not measured.
Implementations: `NvmlMeter`, `ReplayMeter`, `SimulatedMeter`, each in the module of its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Literal, TypeVar, get_args

from typing_extensions import override

from pie_p.errors import DeviceError

PowerField = Literal["instant", "average"]
Field = Literal["instant", "average", "counter"]
FIELDS: Final[tuple[Field, ...]] = get_args(Field)
Scope = Literal["gpu", "module", "memory"]
Origin = Literal["measured", "replayed", "simulated", "absent"]
AnyMeter = TypeVar("AnyMeter", bound="Meter")


class MissingFieldError(DeviceError):
    """The device or its driver does not have the field that was asked for."""


class LostGpuError(DeviceError):
    """The board fell off the bus or needs a reset: nothing read after that can be trusted."""


class MeterPermissionError(DeviceError):
    """The user may not read this meter."""


class DriverError(DeviceError):
    """The driver or its library is missing, of another version, or failed."""


class ClosedMeterError(DeviceError):
    """A meter that was closed, or a recording that has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterIdentity:
    """What is being measured, and by what."""

    kind: str  # "nvml", "replay", "simulated", "absent"
    origin: Origin
    uuid: str  # of the board; a MIG instance carries its board's
    name: str  # product name
    scope: Scope = "gpu"
    driver: str = ""  # version; empty where there is none
    mig_uuids: tuple[str, ...] = ()  # instances that share the board, and therefore its power


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardState:
    """The board at one moment; a figure the device does not tell is None, which means "not measured"."""

    temperature_c: float | None = None  # [degC]
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    limit_w: float | None = None  # power limit in force
    utilization: float | None = None  # share of the last sample period with a kernel running, 0..1
    throttle_reasons: tuple[str, ...] = ()  # "sw_power_cap", "hw_thermal_slowdown", ...
    process_ids: tuple[int, ...] = field(default=())  # of every process with a context on the board

    @property
    def is_overheated(self) -> bool:
        """Whether heat or a power brake slows the board; a software power cap is no fault and does not count."""
        return any(reason in OVERHEATED for reason in self.throttle_reasons)


OVERHEATED: Final = frozenset({"hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown"})


class Meter(ABC):
    """The power meter of one board. Use it as a context manager, or call `close` when done."""

    identity: MeterIdentity
    fields: frozenset[Field]  # what this device can answer

    @abstractmethod
    def read_power_w(self, power_field: PowerField = "instant") -> float:
        """Power [W] as the device publishes it now.

        Raises:
            MissingFieldError: the device lacks the field.
            LostGpuError, MeterPermissionError, DriverError, ClosedMeterError: as their names say.
        """

    @abstractmethod
    def read_energy_j(self) -> float:
        """Energy counter [J]; only differences over a second or more mean anything. Raises as `read_power_w`."""

    @abstractmethod
    def read_state(self) -> BoardState:
        """Temperature, clocks, limit, throttle reasons and processes. Raises as `read_power_w`."""

    def close(self) -> None:  # noqa: B027 - a meter that holds no device has nothing to release
        """Release the device. May be called twice; reading afterwards is a `ClosedMeterError`."""

    def __enter__(self: AnyMeter) -> AnyMeter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def missing(self, wanted: Field) -> MissingFieldError:
        """The error for a field that this meter lacks: what came, what there is, what to do."""
        has = ", ".join(name for name in FIELDS if name in self.fields) or "no field at all"
        who = f"{self.identity.name} ({self.identity.uuid}, scope {self.identity.scope})"
        return MissingFieldError(f"{who} has no {wanted!r} power field; it answers: {has}. Choose one of those or another scope")


class AbsentMeter(Meter):
    """The meter of a host without one: every reading is an error, so nothing can take "not measured" for zero."""

    def __init__(self, name: str = "host without a power meter") -> None:
        self.identity = MeterIdentity(kind="absent", origin="absent", uuid="none", name=name)
        self.fields = frozenset()

    @override
    def read_power_w(self, power_field: PowerField = "instant") -> float:
        raise self.missing(power_field)

    @override
    def read_energy_j(self) -> float:
        raise self.missing("counter")

    @override
    def read_state(self) -> BoardState:
        return BoardState()
