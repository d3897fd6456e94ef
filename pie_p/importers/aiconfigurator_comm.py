"""aiconfigurator's communication tables as collectives: NCCL, custom all-reduce, expert all-to-all, DeepEP.

Units differ per table and are converted here: `message_size` counts elements; NCCL and all-reduce latencies are ms, `moe_a2a` is us, DeepEP
tables have `*_us` columns. nccl-tests call the buffer of ALL ranks the size of an all-gather, so one rank hands over size / ranks.
Payloads of experts' exchanges are one copy of a token per chosen expert, as in the operator tree.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from pie_p.importers.aiconfigurator_files import DTYPES, Columns, as_dtypes, measured, per_host, place, usable
from pie_p.importers.counting import counted, details
from pie_p.importers.gathering import Gathered
from pie_p.operators import ACTIVATION_BYTES, Kind, collective
from pie_p.tables import Array, Table
from pie_p.units import BYTES_PER_VALUE, KILO, Dtype

KINDS: Final[dict[str, Kind]] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}


# Number formats of payloads. "default" is what the library sends unless told otherwise, taken as 16 bits.
FORMATS: Final[dict[str, Dtype]] = {**DTYPES, "half": "fp16", "int8": "int8", "fp4": "nvfp4", "default": "bf16"}


class CommReader(NamedTuple):
    """How one communication table is read."""

    needed: tuple[str, ...]
    rows: Callable[[Gathered, Path, Columns], list[dict[str, Any]]]


def comm_tables(gathered: Gathered, path: Path, columns: Columns) -> list[Table]:
    """The collectives of one file."""
    parts = COMM_READERS[path.name].rows(gathered, path, columns)
    return [Table.from_columns("collectives", part) for part in parts if len(part["time_s"])]


def _message(gathered: Gathered, path: Path, columns: Columns) -> list[dict[str, Any]]:
    """NCCL and custom all-reduce: one message size per row."""
    formats = "allreduce_dtype" if "allreduce_dtype" in columns else "nccl_dtype"
    columns = usable(gathered, path, columns, formats=formats, known=FORMATS)
    kinds = np.array([KINDS.get(name, "") for name in columns["op_name"]], dtype=object)
    payload = columns["message_size"] * _bytes_per_value(columns[formats])
    payload = np.where(kinds == "all_gather", payload / columns["num_gpus"], payload)
    note = details(
        format=columns[formats],
        backend=columns.get("backend", columns.get("implementation", np.full(len(kinds), "", dtype=object))),
    )
    rows = _exchange(path, kinds, payload / ACTIVATION_BYTES, np.ones_like(payload), columns["num_gpus"])
    return [{**rows, **measured(columns), **place(gathered, path, columns, len(kinds)), "detail": note}]


def _all_to_all(gathered: Gathered, path: Path, columns: Columns) -> list[dict[str, Any]]:
    """`moe_a2a`: dispatch or combine of one rank's tokens; `latency` is us."""
    columns = usable(gathered, path, columns, formats="comm_dtype", known=FORMATS)
    count = len(columns["latency"])
    rows = _experts_exchange(path, columns, columns["num_tokens"], columns["topk"], columns["ep_size"], columns["comm_dtype"])
    note = details(
        phase=columns["phase"],
        backend=columns["comm_backend"],
        format=columns["comm_dtype"],
        top_k=columns["topk"],
        total_experts=columns["num_experts"],
        sms=columns["sms"],
    )
    time = {"time_s": columns["latency"] / KILO**2}
    return [{**rows, **time, **place(gathered, path, columns, count), "detail": note}]


def _trtllm_all_to_all(gathered: Gathered, path: Path, columns: Columns) -> list[dict[str, Any]]:
    """TensorRT-LLM's exchange over NVLink: prepare (no tokens move), dispatch and combine, in ms."""
    columns = usable(gathered, path, columns, formats="moe_dtype", known=FORMATS)
    names, count = columns["op_name"], len(columns["latency"])
    back = np.array([name == "alltoall_combine" for name in names], dtype=bool)  # results come back in 16 bits
    formats = np.where(back, "bfloat16", columns["moe_dtype"]).astype(object)
    rows = _experts_exchange(path, columns, columns["num_tokens"], columns["topk"], columns["moe_ep_size"], formats)
    prepare = names == "alltoall_prepare"
    rows["kind"] = np.where(prepare, "all_to_all_prepare", rows["kind"]).astype(object)
    rows["payload_bytes"] = np.where(prepare, 0.0, rows["payload_bytes"])
    note = details(
        phase=np.array([name.removeprefix("alltoall_") for name in names], dtype=object),
        format=columns["moe_dtype"],
        top_k=columns["topk"],
        total_experts=columns["num_experts"],
        distribution=columns["distribution"],
    )
    return [{**rows, **measured(columns), **place(gathered, path, columns, count), "detail": note}]


def _deepep_low_latency(gathered: Gathered, path: Path, columns: Columns) -> list[dict[str, Any]]:
    return [_deepep(gathered, path, columns, phase, "ll", columns[f"{phase}_avg_t_us"]) for phase in ("dispatch", "combine")]


def _deepep_normal(gathered: Gathered, path: Path, columns: Columns) -> list[dict[str, Any]]:
    """High-throughput kernels: the notification that goes ahead, then the transfer."""
    both = {phase: columns[f"{phase}_transmit_us"] + columns[f"{phase}_notify_us"] for phase in ("dispatch", "combine")}
    return [_deepep(gathered, path, columns, phase, "ht", time) for phase, time in both.items()]


def _deepep(gathered: Gathered, path: Path, columns: Columns, phase: str, mode: str, time_us: Array) -> dict[str, Any]:
    columns = usable(gathered, path, {**columns, "time_us": time_us}, formats="", clock="time_us")
    count = len(columns["time_us"])
    ranks = columns["node_num"] * per_host(path)
    formats = np.full(count, "bfloat16", dtype=object)
    rows = _experts_exchange(path, columns, columns["num_token"], columns["num_topk"], ranks, formats)
    note = details(
        phase=np.full(count, phase, dtype=object),
        backend=np.full(count, f"deepep_{mode}", dtype=object),
        top_k=columns["num_topk"],
        total_experts=columns["num_experts"],
        sms=columns.get(f"{phase}_sms", np.full(count, np.nan)),
    )
    where = {**place(gathered, path, columns, count), "hosts": columns["node_num"]}
    return {**rows, "time_s": columns["time_us"] / KILO**2, **where, "detail": note}


def _experts_exchange(path: Path, columns: Columns, tokens: Array, top_k: Array, ranks: Array, formats: Array) -> Columns:
    kinds = np.full(len(tokens), "all_to_all", dtype=object)
    rows = _exchange(path, kinds, tokens * top_k, columns["hidden_size"], ranks)
    rows["payload_bytes"] = rows["payload_bytes"] / ACTIVATION_BYTES * _bytes_per_value(formats)
    return {**rows, "dtype": _width_name(formats)}


def _exchange(path: Path, kinds: Array, tokens: Array, width: Array, ranks: Array) -> Columns:
    each = {"tokens": tokens, "width": width, "group_size": ranks, "hosts": np.ceil(ranks / per_host(path))}
    return counted(lambda **by: collective("", **by), same={"kind": kinds}, each=each)


def _bytes_per_value(formats: Array) -> Array:
    return np.array([BYTES_PER_VALUE[name] for name in as_dtypes(formats, FORMATS)], dtype=np.float64)


def _width_name(formats: Array) -> Array:
    """Every 16-bit payload counts as bf16: the same bytes cross the wire."""
    return np.array(["bf16" if name == "fp16" else name for name in as_dtypes(formats, FORMATS)], dtype=object)


_MESSAGE: Final = ("op_name", "num_gpus", "message_size", "latency")
_A2A: Final = (
    "phase",
    "comm_backend",
    "comm_dtype",
    "ep_size",
    "hidden_size",
    "topk",
    "num_experts",
    "num_tokens",
    "sms",
    "latency",
)
_TRTLLM: Final = ("op_name", "moe_dtype", "num_tokens", "hidden_size", "topk", "num_experts", "moe_ep_size", "distribution", "latency")
_DEEPEP: Final = ("node_num", "hidden_size", "num_token", "num_topk", "num_experts")
_LL: Final = (*_DEEPEP, "dispatch_avg_t_us", "combine_avg_t_us")
_HT: Final = (*_DEEPEP, "dispatch_transmit_us", "dispatch_notify_us", "combine_transmit_us", "combine_notify_us")

COMM_READERS: Final[dict[str, CommReader]] = {
    "nccl_perf.parquet": CommReader((*_MESSAGE, "nccl_dtype"), _message),
    "custom_allreduce_perf.parquet": CommReader((*_MESSAGE, "allreduce_dtype"), _message),
    "moe_a2a_perf.parquet": CommReader(_A2A, _all_to_all),
    "trtllm_alltoall_perf.parquet": CommReader(_TRTLLM, _trtllm_all_to_all),
    "wideep_deepep_ll_perf.parquet": CommReader(_LL, _deepep_low_latency),
    "wideep_deepep_normal_perf.parquet": CommReader(_HT, _deepep_normal),
}
