"""Units: SI inside, everything else converted at the door, and the number formats that storage and arithmetic use.

Names carry the unit as a suffix: `_s _w _j _hz _bytes _bytes_per_s _flops _flops_per_s`. Shares have none and lie in 0..1.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

KILO: Final = 1e3
MEGA: Final = 1e6
GIGA: Final = 1e9
TERA: Final = 1e12  # 1 TFLOPS = 1e12 FLOP/s, 1 TB/s = 1e12 B/s
GIB: Final = 1 << 30
J_PER_WH: Final = 3600.0
J_PER_KWH: Final = 3.6e6

Dtype = Literal["bf16", "fp16", "fp8", "int8", "int4", "mxfp4", "nvfp4"]
DTYPES: Final[tuple[Dtype, ...]] = get_args(Dtype)

# Stored bytes per value, scales included: int4 as AWQ/GPTQ with groups of 128 (one 16-bit scale and one 4-bit zero point per
# group); mxfp4 one 8-bit scale per 32 values (OCP MX v1.0, table 1); nvfp4 one fp8 scale per 16 values (NVIDIA, June 2025).
BYTES_PER_VALUE: Final[dict[Dtype, float]] = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5 + 2.5 / 128,
    "mxfp4": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}


def from_milli(value: float) -> float:
    """Milli-units to units: NVML's mW to W, mJ to J, a table's ms to s.

    >>> from_milli(350_000)  # nvmlDeviceGetPowerUsage, 350 W
    350.0
    """
    return value / KILO


def from_micro(value: float) -> float:
    """Micro-units to units: a table's us to s.

    >>> from_micro(25.0)
    2.5e-05
    """
    return value / MEGA


def to_watt_hours(energy_j: float) -> float:
    """Joules to watt-hours.

    >>> to_watt_hours(7200.0)
    2.0
    """
    return energy_j / J_PER_WH
