"""aiconfigurator's files, wherever they lie: `<system>/<family>/<engine>/<version>/<table>.parquet` below any root.

The same layout stands in the repository (`.../systems/data`), in the wheel `aiconfigurator-core` and in partial copies; older trees
lack the family. What ran is what the rows say (`framework`, `version`), not the folder: some folders repeat another engine's file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from pie_p.errors import ProfileError
from pie_p.importers.gathering import GPU_NAMES, Gathered
from pie_p.tables import Array
from pie_p.units import KILO, Dtype

Columns = dict[str, Array]

# Names of number formats in the tables; block-wise fp8 and plain fp8 store one byte per weight alike, and `detail` keeps the difference.
DTYPES: Final[dict[str, Dtype]] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "fp8_static": "fp8",
    "int8_wo": "int8",
    "sq": "int8",
    "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
    "nvfp4": "nvfp4",
}

ENGINES: Final[dict[str, str]] = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm", "nccl": "nccl", "oneccl": "oneccl"}

# How the ranks of a host are joined, by the catalogue's names, and how many there are (the systems' own *.yaml).
LINKS: Final[dict[str, str]] = {
    "a100_sxm": "nvlink3-nvswitch",
    "h100_sxm": "nvlink4-nvswitch",
    "h200_sxm": "nvlink4-nvswitch",
    "b200_sxm": "nvlink5-nvswitch",
    "b300_sxm": "nvlink5-nvswitch",
    "gb200": "nvlink5-nvswitch",
    "gb300": "nvlink5-nvswitch",
    "l40s": "pcie4-x16",
    "rtx_pro_6000_server": "pcie5-x16",
}
GPUS_PER_HOST: Final[dict[str, int]] = {"gb200": 4, "gb300": 4}
USUAL_GPUS_PER_HOST: Final = 8


def as_dtypes(names: Array, known: Mapping[str, Dtype] = DTYPES) -> Array:
    """Our names of number formats."""
    return np.array([known[name] for name in names], dtype=object)


def system_of(path: Path) -> str | None:
    """The system a file belongs to: the nearest folder above it that is one; None when it is none we know."""
    return next((part for part in reversed(path.parts[:-1]) if part in LINKS), None)


def per_host(path: Path) -> int:
    """GPUs of one host of the file's system [-]."""
    return GPUS_PER_HOST.get(system_of(path) or "", USUAL_GPUS_PER_HOST)


def known_files(gathered: Gathered, names: frozenset[str]) -> list[Path]:
    """Tables an importer reads, of GPUs in the catalogue; the others are accounted for.

    Raises:
        ProfileError: there is none.
    """
    kept = []
    for path in gathered.files("*_perf.parquet"):
        if path.name not in names:
            gathered.skip(path, "no importer reads this table")
        elif system_of(path) is None:
            gathered.skip(path, "its GPU is not in the catalogue")
        else:
            kept.append(path)
    if not kept:
        raise ProfileError(f"no table that {gathered.source!r} reads lies below {gathered.root}; systems: {', '.join(LINKS)}")
    return kept


def usable(
    gathered: Gathered, path: Path, columns: Columns, *, formats: str, known: Mapping[str, Dtype] = DTYPES, clock: str = "latency"
) -> Columns:
    """Rows with a time above 0 and a number format we know; the others are accounted for.

    Args:
        gathered: the account.
        path: the file.
        columns: its columns.
        formats: column that names the number format; empty: none does.
        known: number formats, as ours.
        clock: column that holds the time.
    """
    timed = columns[clock] > 0  # NaN is not
    gathered.reject(path, f"{clock} not above 0", int((~timed).sum()))
    named = np.array([name in known for name in columns[formats]], dtype=bool) if formats else np.ones(len(timed), dtype=bool)
    strange = timed & ~named
    if strange.any():
        gathered.reject(path, f"number format {columns[formats][strange][0]!r} not known", int(strange.sum()))
    keep = timed & named
    return columns if keep.all() else {name: values[keep] for name, values in columns.items()}


def measured(columns: Columns) -> Columns:
    """Time and power in SI; a power that was not read stays NaN."""
    taken = {"time_s": columns["latency"] / KILO}
    for given, ours in (("power", "power_w"), ("power_limit", "power_limit_w")):
        if given in columns:
            taken[ours] = np.where(columns[given] > 0, columns[given], np.nan)
    return taken


def place(gathered: Gathered, path: Path, columns: Columns, rows: int) -> dict[str, Any]:
    """Where the rows come from: GPU, engine, version and kernel."""
    system = system_of(path) or ""
    unknown = np.full(rows, "", dtype=object)
    return {
        "gpu": GPU_NAMES[system],
        "link": LINKS[system],
        "engine": np.array([_engine(name, path) for name in columns.get("framework", unknown)], dtype=object),
        "engine_version": columns.get("version", np.full(rows, path.parts[-2], dtype=object)),
        "kernel_source": columns["kernel_source"],
        "origin": "imported",
        "source": gathered.source,
    }


def _engine(framework: str, path: Path) -> str:
    if path.name.startswith("nccl"):
        return "nccl"  # the rows name the engine whose image brought it, and NCCL's own version
    lowered = framework.lower() or path.parts[-3].lower()
    return ENGINES.get(lowered, lowered)


def measurements(path: Path, columns: Columns) -> bytes:
    """What a file measured, without saying where: equal bytes are one measurement under two names."""
    told = {"framework", "version", "device", "kernel_source"}
    return path.name.encode() + b"".join(name.encode() + _bytes(columns[name]) for name in sorted(columns) if name not in told)


def _bytes(values: Array) -> bytes:
    return "\n".join(values).encode() if values.dtype == object else values.tobytes()
