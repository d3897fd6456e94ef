"""Examples: rows of profiles as the columns a regressor learns from, beside what was measured.

The columns come from `pie_p.features`, as a prediction's do. What a profile knows beyond a prediction is the kernel that ran, how tokens
were spread over experts, and whether the host launched the kernel or a graph did.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pie_p.features import DTYPE_CODE, FAMILY_OF, KIND_CODE, MEETING, Columns, Family, compute_dtype_code, hardware_columns
from pie_p.hardware import Cluster, gpu_names, load_cluster
from pie_p.kernels import KernelBook, Use, make_book
from pie_p.physics import Floats, Roofline
from pie_p.regressors import picked
from pie_p.tables import Array, Table

COUNTS: Final = (
    "flops", "hbm_bytes", "weight_bytes", "kv_bytes", "payload_bytes", "group_size", "hosts", "tokens", "in_features", "out_features",
    "sequences", "context_tokens", "heads", "kv_heads", "head_dim", "experts", "top_k",
)  # fmt: skip
SKEWS: Final = {"balanced": 0.0}  # anything else carries its exponent in its name, "power_law_1.2"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Examples:
    """Rows of one family: columns as for a prediction, labels, and where they come from."""

    family: Family
    columns: Columns
    time_s: Floats
    power_w: Floats  # NaN: not measured
    label: Array  # of the kernel, "vllm==0.24.0 torch.nn.functional.linear bfloat16"
    gpu: Array

    def __len__(self) -> int:
        return len(self.time_s)

    def select(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Examples:
        """Some of the rows."""
        return Examples(
            family=self.family,
            columns=picked(self.columns, rows),
            time_s=self.time_s[rows],
            power_w=self.power_w[rows],
            label=self.label[rows],
            gpu=self.gpu[rows],
        )

    def with_book(self, book: KernelBook) -> Examples:
        """The same rows with the kernels' codes of a book."""
        names, inverse = np.unique(self.label.astype(str), return_inverse=True)
        columns = {**self.columns, "kernel_code": book.codes(names.tolist())[inverse]}
        return Examples(family=self.family, columns=columns, time_s=self.time_s, power_w=self.power_w, label=self.label, gpu=self.gpu)

    @property
    def share(self) -> Floats:
        """Measured share of the room between active idle and limit [-]."""
        idle_w = self.columns["active_idle_w"]
        return np.asarray((self.power_w - idle_w) / (self.columns["limit_w"] - idle_w))


def family_examples(table: Table, family: Family) -> Examples:
    """Rows of a profile's table that teach a family; rows of boards that are not in the catalogue are left out."""
    kinds = [kind for kind, own in FAMILY_OF.items() if own == family]
    wanted = np.isin(table["kind"], kinds) & np.isin(table["gpu"], gpu_names())
    if family in MEETING:
        wanted &= table["group_size"] > 1
    part = table.select(np.flatnonzero(wanted))
    columns: Columns = {name: part[name] for name in COUNTS}
    for name, codes, texts in (
        ("kind_code", KIND_CODE, part["kind"]), ("dtype_code", DTYPE_CODE, part["dtype"]), ("kv_dtype_code", DTYPE_CODE, part["kv_dtype"]),
    ):  # fmt: skip
        columns[name] = np.fromiter((codes[text] for text in texts), dtype=np.int64, count=part.rows)
    columns |= _hardware(part, columns)
    columns["skew"] = np.fromiter((_skew(text) for text in part["detail"]), dtype=np.float64, count=part.rows)
    for name, key in (("fan_out", "top_k"), ("comm_sms", "sms")):
        columns[name] = np.fromiter((_number(text, key) for text in part["detail"]), dtype=np.float64, count=part.rows)
    columns["windowed"] = np.fromiter((float("window=" in text) for text in part["detail"]), dtype=np.float64, count=part.rows)
    columns["eager"] = np.fromiter((float("eager" in text) for text in part["kernel_source"]), dtype=np.float64, count=part.rows)
    found = Examples(family=family, columns=columns, time_s=part["time_s"], power_w=part["power_w"], label=_labels(part), gpu=part["gpu"])
    return found.select(_once(found))


def _once(examples: Examples) -> NDArray[np.int64]:
    """Rows without those that repeat an earlier one in kernel, board, shape and time: two profiles may hold one file, one without power."""
    names = np.unique(examples.label.astype(str), return_inverse=True)[1], np.unique(examples.gpu.astype(str), return_inverse=True)[1]
    codes = [*names, *(examples.columns[name] for name in ("kind_code", "dtype_code", "kv_dtype_code"))]
    shape = (examples.columns[name] for name in (*COUNTS, "skew"))
    table = np.ascontiguousarray(np.column_stack([*codes, *shape, examples.time_s]), dtype=np.float64)
    as_bytes = table.view(f"V{8 * table.shape[1]}").ravel()
    return np.sort(np.unique(as_bytes, return_index=True)[1])


def _hardware(part: Table, columns: Columns) -> Columns:
    """The board's and the host's figures; several hosts only where ranks stand on several."""
    hosts = np.maximum(part["hosts"], 1.0).astype(np.int64)
    names = [f"{gpu} {count}" for gpu, count in zip(part["gpu"], hosts, strict=True)]
    keys, which = np.unique(np.array(names, dtype=str), return_inverse=True)
    clusters = [_cluster(*key.split()) for key in keys]
    return hardware_columns(clusters, which, compute_dtype_code(columns), columns["group_size"])


def _cluster(gpu: str, hosts: str) -> Cluster:
    one = load_cluster(gpu)
    return one if hosts == "1" else load_cluster(gpu, gpus=int(hosts) * one.gpus_per_host)


def _labels(part: Table) -> Array:
    rows = zip(part["engine"], part["engine_version"], part["kernel_source"], part["detail"], strict=True)
    return np.array([_label(*row) for row in rows], dtype=object)


@lru_cache(maxsize=65536)
def _label(engine: str, version: str, source: str, detail: str) -> str:
    """NCCL is a library of its own, whichever engine's container it was measured in."""
    return f"{'nccl' if source == 'NCCL' else engine}=={version} {source}{_format(detail)}"


@lru_cache(maxsize=65536)
def _format(detail: str) -> str:
    """What of a row's detail makes another kernel of it."""
    found = re.findall(r"(?:format|backend|mode|phase|part)=([^;]+)", detail)
    return "".join(f" {text.strip()}" for text in found)


@lru_cache(maxsize=65536)
def _skew(detail: str) -> float:
    """Exponent of the power law that spread tokens over experts; NaN when the row does not say [-]."""
    found = re.search(r"distribution=([^;]+)", detail)
    if found is None:
        return np.nan
    number = re.search(r"[\d.]+", found[1])
    return SKEWS.get(found[1].strip(), float(number[0]) if number else np.nan)


@lru_cache(maxsize=65536)
def _number(detail: str, key: str) -> float:
    """A number among a row's details; NaN when the row does not say."""
    found = re.search(rf"(?:^|; ){key}=([\d.]+)", detail)
    return float(found[1]) if found else np.nan


def learn_book(examples: Examples, roofline: Roofline) -> KernelBook:
    """The kernels of some examples, coded by their median log ratio to the base."""
    ratio = np.log(examples.time_s / roofline.time_s(examples.columns))
    kind, dtype, kv_dtype = (examples.columns[name] for name in ("kind_code", "dtype_code", "kv_dtype_code"))
    names, which = np.unique(examples.label.astype(str), return_inverse=True)
    ratios = {str(name): float(np.median(ratio[which == number])) for number, name in enumerate(names)}
    gpus, board = np.unique(examples.gpu.astype(str), return_inverse=True)
    key = np.stack([which, kind, board, dtype, kv_dtype])
    distinct, use_of = np.unique(key, axis=1, return_inverse=True)
    order = np.argsort(use_of.ravel(), kind="stable")
    bounds = np.searchsorted(use_of.ravel()[order], np.arange(distinct.shape[1] + 1))
    uses = []
    for number, (label, kind_code, gpu, dtype_code, kv_code) in enumerate(distinct.T.tolist()):
        times = examples.time_s[order[bounds[number] : bounds[number + 1]]]
        floor_s = float(np.quantile(times, 0.02))
        uses.append(
            Use(
                str(names[label]),
                _name(KIND_CODE, kind_code),
                str(gpus[gpu]),
                _name(DTYPE_CODE, dtype_code),
                _name(DTYPE_CODE, kv_code),
                len(times),
                floor_s,
            )
        )
    return make_book(uses, ratios)


def _name(codes: dict[str, int], code: int) -> str:
    return next(name for name, own in codes.items() if own == code)
