"""Features: operators as columns, beside the figures of the hardware that runs them. The only place where a feature is made.

A `Columns` is a mapping from a column's name to a numpy array with one value per operator. Prediction and training both come through
`featurize`, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from pie_p.hardware import Cluster
from pie_p.operators import KINDS, Operator
from pie_p.units import DTYPES

Columns = dict[str, NDArray[Any]]

TEXT_COLUMNS: Final = ("path", "kind", "dtype", "kv_dtype")
COUNTED: Final[tuple[str, ...]] = tuple(name for name in Operator._fields if name not in TEXT_COLUMNS)
_COUNTED_OF: Final = attrgetter(*COUNTED)
HARDWARE: Final[tuple[str, ...]] = (
    "peak_flops_per_s",
    "hbm_bytes_per_s",
    "link_bytes_per_s",
    "link_latency_s",
    "link_switched",
    "link_reduces",
    "inter_bytes_per_s",
    "inter_latency_s",
    "ranks_per_host",
    "limit_w",
    "active_idle_w",
    "sm_count",
)

KIND_CODE: Final[dict[str, int]] = {kind: code for code, kind in enumerate(KINDS)}
DTYPE_CODE: Final[dict[str, int]] = {dtype: code for code, dtype in enumerate(DTYPES)}


def counted_columns(operators: Sequence[Operator]) -> Columns:
    """Operators as columns; texts become codes (`kind_code`, `dtype_code`, `kv_dtype_code`).

    >>> from pie_p.operators import linear
    >>> counted_columns([linear("l", tokens=1, in_features=2, out_features=3)])["flops"]
    array([12.])
    """
    numbers = chain.from_iterable(map(_COUNTED_OF, operators))
    table = np.fromiter(numbers, dtype=np.float64, count=len(operators) * len(COUNTED)).reshape(-1, len(COUNTED))
    columns: Columns = dict(zip(COUNTED, np.ascontiguousarray(table.T), strict=True))
    columns["kind_code"] = np.array([KIND_CODE[operator.kind] for operator in operators], dtype=np.int64)
    columns["dtype_code"] = np.array([DTYPE_CODE[operator.dtype] for operator in operators], dtype=np.int64)
    columns["kv_dtype_code"] = np.array([DTYPE_CODE[operator.kv_dtype] for operator in operators], dtype=np.int64)
    return columns


@lru_cache(maxsize=256)
def _hardware_row(cluster: Cluster) -> tuple[tuple[float, ...], tuple[float, ...]]:
    gpu, intra, pair = cluster.gpu, cluster.intra, cluster.pair or cluster.intra
    inter = cluster.inter or intra
    peaks = tuple(gpu.peak(dtype) for dtype in DTYPES)
    figures = (
        gpu.hbm_bytes_per_s,
        intra.bytes_per_s,
        intra.latency_s,
        float(intra.switched),
        float(intra.in_network_reduction),
        inter.bytes_per_s,
        inter.latency_s,
        float(cluster.gpus_per_host),
        gpu.limit_w,
        gpu.active_idle_w,
        float(gpu.sm_count),
        pair.bytes_per_s,
        pair.latency_s,
        float(cluster.pair_gpus),
    )
    return peaks, figures


def hardware_columns(
    clusters: Sequence[Cluster], which: NDArray[np.int64], dtype_code: NDArray[np.int64], group_size: NDArray[np.float64]
) -> Columns:
    """Figures of the cluster that each operator runs on; `which` indexes `clusters`.

    A group that fits a bridged pair (H100 NVL, A40) meets over the bridge.

    Returns:
        One array per name of `HARDWARE`; bandwidths in B/s, latencies in s, powers in W.
    """
    rows = [_hardware_row(cluster) for cluster in clusters]
    peaks = np.array([peak for peak, _ in rows], dtype=np.float64).reshape(len(rows), len(DTYPES))
    figures = np.array([figure for _, figure in rows], dtype=np.float64).reshape(len(rows), len(HARDWARE) + 2)
    columns: Columns = {name: figures[which, number] for number, name in enumerate(HARDWARE[1:])}
    pair_bytes_per_s, pair_latency_s, pair_gpus = (figures[which, number] for number in (-3, -2, -1))
    bridged = (group_size > 1) & (group_size <= pair_gpus)
    columns["link_bytes_per_s"] = np.where(bridged, pair_bytes_per_s, columns["link_bytes_per_s"])
    columns["link_latency_s"] = np.where(bridged, pair_latency_s, columns["link_latency_s"])
    columns["peak_flops_per_s"] = peaks[which, dtype_code]
    return columns


def featurize(
    operators: Sequence[Operator], clusters: Sequence[Cluster], which: NDArray[np.int64], places: NDArray[np.int64] | None = None
) -> Columns:
    """Counted columns and hardware columns of operators that run on given clusters.

    Args:
        operators: one per row, or those that occur.
        clusters: the clusters that occur.
        which: for each row the index into `clusters`.
        places: for each row the index into `operators`; default one row per operator.
    """
    columns = counted_columns(operators)
    if places is not None:
        columns = {name: values[places] for name, values in columns.items()}
    return columns | hardware_columns(clusters, which, compute_dtype_code(columns), columns["group_size"])


def compute_dtype_code(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Format an operator computes in: the weights' for matrix products, the cache's for attention."""
    attention = (columns["kind_code"] == KIND_CODE["attention_decode"]) | (columns["kind_code"] == KIND_CODE["attention_prefill"])
    return np.where(attention, columns["kv_dtype_code"], columns["dtype_code"])


# Inputs of the learned regressors

Family = Literal["linear", "attention_decode", "attention_prefill", "experts", "collective", "exchange"]
FAMILIES: Final[tuple[Family, ...]] = get_args(Family)
FAMILY_OF: Final[dict[str, Family]] = {
    "linear": "linear",
    "lm_head": "linear",
    "router": "linear",
    "attention_decode": "attention_decode",
    "attention_prefill": "attention_prefill",
    "experts": "experts",
    "all_reduce": "collective",
    "all_gather": "collective",
    "reduce_scatter": "collective",
    "send_recv": "collective",
    "all_to_all": "exchange",
}
MEETING: Final[frozenset[Family]] = frozenset({"collective", "exchange"})  # families in which ranks meet
TILE: Final = 128.0  # rows and columns of the output block that one multiprocessor computes at a time, the common choice of GEMM kernels


FAMILY_CODE: Final[NDArray[np.int64]] = np.array([FAMILIES.index(FAMILY_OF[kind]) if kind in FAMILY_OF else -1 for kind in KINDS])


def _log(values: NDArray[Any]) -> NDArray[np.float64]:
    """Octaves: log2, so that a tree's step and a range are shares; 0 lies far below every count."""
    return np.asarray(np.log2(np.maximum(values, 1e-12)))


def _compute_s(columns: Columns) -> NDArray[Any]:
    return np.asarray(columns["flops"] / columns["peak_flops_per_s"])


def _memory_s(columns: Columns) -> NDArray[Any]:
    return np.asarray(columns["hbm_bytes"] / columns["hbm_bytes_per_s"])


def _assignments(columns: Columns) -> NDArray[Any]:
    """Rows that the rank's experts multiply: tokens times experts per token, from the FLOPs of three matrices [-]."""
    return np.asarray(columns["flops"] / np.maximum(6.0 * columns["in_features"] * columns["out_features"], 1.0))


def _total_experts(columns: Columns) -> NDArray[Any]:
    return np.asarray(columns["tokens"] * columns["top_k"] * columns["experts"] / np.maximum(_assignments(columns), 1e-9))


def _waves(columns: Columns) -> NDArray[Any]:
    """Rounds in which the multiprocessors work off the output's blocks [-]."""
    return np.asarray(np.ceil(columns["tokens"] / TILE) * np.ceil(columns["out_features"] / TILE) / columns["sm_count"])


def _tile_fill(columns: Columns) -> NDArray[Any]:
    """Share of the last half-tile of rows that is used [-]."""
    rows = np.maximum(columns["tokens"], 1.0)
    return np.asarray(rows / (np.ceil(rows / (TILE / 2)) * TILE / 2))


def _aligned(values: NDArray[Any], most: float) -> NDArray[Any]:
    """Largest power of two, at most `most`, that divides a width: kernels are faster on round ones [octaves].

    A mean over a running batch is no whole number; engines pad such a batch to a multiple of 8, the sizes they captured.
    """
    padded = np.where(values == np.floor(values), values, np.ceil(values / 8.0) * 8.0)
    whole = np.maximum(padded, 1.0).astype(np.int64)
    return np.log2(np.minimum((whole & -whole).astype(np.float64), most))


def _plain_format(columns: Columns) -> NDArray[Any]:
    """Code of the stored format; fp16 runs as bf16 does."""
    return np.where(columns["dtype_code"] == DTYPE_CODE["fp16"], DTYPE_CODE["bf16"], columns["dtype_code"])


INPUTS: Final[dict[str, Callable[[Columns], NDArray[Any]]]] = {
    # which software: set by the caller, NaN where not known
    "kernel_code": lambda c: c["kernel_code"],  # rank of the kernel among those profiled
    "skew": lambda c: c["skew"],  # exponent of the power law that spreads tokens over experts [-]
    "fan_out": lambda c: c["fan_out"],  # experts per token in an exchange [-]
    "comm_sms": lambda c: c["comm_sms"],  # multiprocessors an exchange takes [-]
    "windowed": lambda c: c["windowed"],  # 1: the kernel was told of a sliding window
    # number formats and kinds, as codes
    "dtype_code": _plain_format,
    "kv_dtype_code": lambda c: np.where(c["kv_dtype_code"] == DTYPE_CODE["fp16"], DTYPE_CODE["bf16"], c["kv_dtype_code"]),
    "kind_code": lambda c: c["kind_code"],
    # the board [octaves]
    "peak_flops_per_s": lambda c: _log(c["peak_flops_per_s"]),
    "hbm_bytes_per_s": lambda c: _log(c["hbm_bytes_per_s"]),
    "sm_count": lambda c: _log(c["sm_count"]),
    "link_bytes_per_s": lambda c: _log(c["link_bytes_per_s"]),
    "link_reduces": lambda c: c["link_reduces"],
    "inter_bytes_per_s": lambda c: np.where(c["hosts"] > 1, _log(c["inter_bytes_per_s"]), 0.0),
    # work over the board's peaks [octaves of s]
    "compute_s": lambda c: _log(_compute_s(c)),
    "memory_s": lambda c: _log(_memory_s(c)),
    "intensity": lambda c: _log(_compute_s(c)) - _log(_memory_s(c)),
    "wire_s": lambda c: _log(c["payload_bytes"] / c["link_bytes_per_s"]),
    # shape [octaves]
    "tokens": lambda c: _log(c["tokens"]),
    "in_features": lambda c: _log(c["in_features"]),
    "out_features": lambda c: _log(c["out_features"]),
    "weight_bytes": lambda c: _log(c["weight_bytes"]),
    "waves": lambda c: _log(_waves(c)),
    "wave_fill": lambda c: _waves(c) / np.maximum(np.ceil(_waves(c)), 1.0),  # share of the last round that is used [-]
    "tile_fill": _tile_fill,
    "aligned_tokens": lambda c: _aligned(c["tokens"], 256.0),
    "aligned_out": lambda c: _aligned(c["out_features"], 4096.0),
    "sequences": lambda c: _log(c["sequences"]),
    "context_tokens": lambda c: _log(c["context_tokens"]),
    "heads": lambda c: _log(c["heads"]),
    "queries_per_kv": lambda c: _log(c["heads"] / np.maximum(c["kv_heads"], 1.0)),
    "head_dim": lambda c: _log(c["head_dim"]),
    "kv_bytes": lambda c: _log(c["kv_bytes"]),
    "kv_streams": lambda c: _log(c["sequences"] * c["kv_heads"]),  # independent KV streams: what fills the board [octaves]
    "query_streams": lambda c: _log(c["sequences"] * c["heads"]),
    "experts": lambda c: _log(c["experts"]),
    "top_k": lambda c: c["top_k"],
    "total_experts": lambda c: _log(_total_experts(c)),
    "assignments": lambda c: _log(_assignments(c)),
    "tokens_per_expert": lambda c: _log(_assignments(c) / np.maximum(c["experts"], 1e-9)),
    "payload_bytes": lambda c: _log(c["payload_bytes"]),
    "group_size": lambda c: _log(c["group_size"]),
    "hosts": lambda c: _log(c["hosts"]),
    # rates reached, for power [-]
    "flop_rate": lambda c: _compute_s(c) / c["time_s"],
    "byte_rate": lambda c: _memory_s(c) / c["time_s"],
}

_LINK: Final = ("link_bytes_per_s", "link_reduces", "inter_bytes_per_s", "hbm_bytes_per_s", "sm_count")
_BOARD: Final = ("peak_flops_per_s", "hbm_bytes_per_s", "sm_count")
_SHAPE: Final[dict[Family, tuple[str, ...]]] = {
    "linear": (
        "dtype_code", "tokens", "in_features", "out_features", "weight_bytes", "waves", "wave_fill", "tile_fill", "aligned_tokens",
        "aligned_out",
    ),
    "attention_decode": (
        "kv_dtype_code", "windowed", "sequences", "context_tokens", "heads", "queries_per_kv", "head_dim", "kv_bytes", "kv_streams",
        "query_streams",
    ),
    "attention_prefill": (
        "dtype_code", "kv_dtype_code", "windowed", "tokens", "sequences", "context_tokens", "heads", "queries_per_kv", "head_dim",
        "kv_bytes", "kv_streams", "query_streams",
    ),
    "experts": (
        "dtype_code", "skew", "tokens", "in_features", "out_features", "weight_bytes", "experts", "top_k", "total_experts", "assignments",
        "tokens_per_expert",
    ),
    "collective": ("kind_code", "payload_bytes", "group_size", "hosts", "wire_s", *_LINK),
    "exchange": ("tokens", "payload_bytes", "fan_out", "comm_sms", "group_size", "hosts", "wire_s", *_LINK),
}  # fmt: skip
_WORK: Final = ("compute_s", "memory_s", "intensity")
_RATES: Final = ("flop_rate", "byte_rate", "intensity", "hbm_bytes_per_s", "peak_flops_per_s")


def _time_features(family: Family) -> tuple[str, ...]:
    own = ("kernel_code", *_SHAPE[family])
    return own if family in MEETING else (*own, *_WORK, *_BOARD)


FEATURES: Final[dict[str, tuple[str, ...]]] = {
    **{f"{family}/time": _time_features(family) for family in FAMILIES},
    **{f"{family}/power": ("kernel_code", *_SHAPE[family], *_RATES) for family in FAMILIES if family not in MEETING},
}


def inputs(columns: Columns, names: Sequence[str], *, made: Mapping[str, NDArray[Any]] | None = None) -> NDArray[np.float32]:
    """The matrix a regressor reads: one row per operator, one column per name of `INPUTS`, in that order.

    Args:
        columns: of the operators.
        names: inputs wanted.
        made: inputs of the same operators that were made before.

    >>> columns = {"tokens": np.array([8.0]), "in_features": np.array([4096.0])}
    >>> inputs(columns, ("tokens", "in_features")).tolist()
    [[3.0, 12.0]]
    """
    rows, ready = len(next(iter(columns.values()))), made or {}
    matrix = np.empty((len(names), rows), dtype=np.float32)
    for number, name in enumerate(names):
        matrix[number] = ready[name] if name in ready else INPUTS[name](columns)
    return matrix.T
