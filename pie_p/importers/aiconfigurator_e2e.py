"""aiconfigurator's serving runs: TTFT and TPOT [ms] of whole deployments, no power (PyPI aiconfigurator-core, Apache-2.0).

`silicon_sample.csv` has one row per run at a fixed concurrency. `tp_size` of the rows with expert parallelism is often a product of
degrees; such a row is kept when its own id says `tp<n>_ep<n>`, or when the degrees agree by themselves. Rows with attention-DP, whose
number of GPUs cannot be told, and disaggregated runs are left out and counted.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import numpy as np

from pie_p.importers.gathering import GPU_NAMES, Gathered, csv_columns, needed_columns
from pie_p.tables import Array
from pie_p.units import KILO

FORMATS: Final[dict[str, str]] = {"fp8": "fp8", "fp4": "nvfp4", "bf16": "bf16"}
MOST_GPUS: Final = 8  # of one host
DEGREES_IN_ID: Final = re.compile(r"_tp(\d+)_ep(\d+)(?:_|$)")


def gather(gathered: Gathered) -> None:
    """Read the table of serving runs below the path."""
    files = gathered.files("silicon_sample.csv*")
    for done, path in enumerate(files, start=1):
        content = gathered.read(path, what="table of serving runs")
        columns = needed_columns(csv_columns(content, what=str(path)), what=str(path), needed=_COLUMNS)
        if not gathered.is_repeat(path, content, len(columns["id"])):
            gathered.add_rows("end_to_end", _rows(gathered, path, columns))
        gathered.step(path, done, len(files))


def _rows(gathered: Gathered, path: Path, columns: dict[str, Array]) -> list[dict[str, Any]]:
    kept, reasons, seen = [], [], set()
    for index in range(len(columns["id"])):
        run = {name: values[index] for name, values in columns.items()}
        reason = _why_not(run)
        key = tuple(str(value) for name, value in run.items() if name != "id")
        if not reason and key in seen:
            reason = "repeats another run"
        seen.add(key)
        if reason:
            reasons.append(reason)
        else:
            kept.append(_row(gathered.source, run))
    for reason in sorted(set(reasons)):
        gathered.reject(path, reason, reasons.count(reason))
    return kept


def _why_not(run: dict[str, Any]) -> str:
    if run["mode"] != "agg":
        return "disaggregated: prefill and decode on different GPUs"
    if _or_one(run["attention_dp_size"]) > 1:
        return "attention-DP: the number of GPUs cannot be told"
    if run["system"] not in GPU_NAMES:
        return "its GPU is not in the catalogue"
    if _degrees(run) is None:
        return "expert parallelism: the number of GPUs cannot be told"
    if not (run["batch_size"] > 0 and run["silicon_ttft_ms"] > 0 and run["silicon_tpot_ms"] > 0):
        return "batch or times not above 0"
    return ""


def _degrees(run: dict[str, Any]) -> tuple[int, int] | None:
    """(tp, ep) of the run, or None when the row does not say."""
    told = DEGREES_IN_ID.search(run["id"])
    if told:
        return int(told[1]), int(told[2])
    tp, moe_tp, moe_ep = (int(_or_one(run[name])) for name in ("tp_size", "moe_tp_size", "moe_ep_size"))
    if tp > MOST_GPUS or (moe_tp > 1 and moe_ep > 1) or moe_ep not in (1, tp):
        return None
    return tp, moe_ep


def _row(source: str, run: dict[str, Any]) -> dict[str, Any]:
    tp, ep = _degrees(run) or (1, 1)
    ttft_s, tpot_s, outputs = run["silicon_ttft_ms"] / KILO, run["silicon_tpot_ms"] / KILO, run["osl"]
    return {
        "llm": run["model_path"],
        "gpu": GPU_NAMES[run["system"]],
        "workload": f"fixed {run['isl']:g} in, {outputs:g} out",
        "mode": "steady",
        "tp": tp,
        "pp": _or_one(run["pp_size"]),
        "ep": ep,
        "dtype": _dtype(run),
        "batch": run["batch_size"],
        "max_batch": run["batch_size"],
        "prompt_tokens": run["isl"],
        "output_tokens": outputs,
        "output_second_moment": outputs**2,
        "time_per_token_s": (ttft_s + (outputs - 1) * tpot_s) / outputs,
        "ttft_s": ttft_s,
        "tpot_s": tpot_s,
        "meter_scope": "none",
        "assumed": "lengths as configured, the same for every request; KV cache bf16; ttft may hold queueing",
        "engine": run["backend"],
        "engine_version": run["backend_version"],
        "origin": "imported",
        "source": source,
    }


def _dtype(run: dict[str, Any]) -> str:
    named = FORMATS.get(run["precision"]) or {"nvfp4": "nvfp4", "": ""}.get(run["gemm_quant_mode"], "fp8")
    return named or ("fp8" if "fp8" in run["model_path"].lower() else "bf16")


def _or_one(value: float) -> float:
    return 1.0 if np.isnan(value) else float(value)


_COLUMNS: Final = (
    "id",
    "backend",
    "backend_version",
    "model_path",
    "system",
    "precision",
    "mode",
    "isl",
    "osl",
    "gemm_quant_mode",
    "batch_size",
    "tp_size",
    "pp_size",
    "attention_dp_size",
    "moe_tp_size",
    "moe_ep_size",
    "silicon_ttft_ms",
    "silicon_tpot_ms",
)
