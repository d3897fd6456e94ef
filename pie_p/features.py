"""Features: operators as columns, beside the figures of the hardware that runs them. The only place where a feature is made.

A `Columns` is a mapping from a column's name to a numpy array with one value per operator. Prediction and training both come through
`featurize`, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pie_p.hardware import Cluster
from pie_p.operators import COLLECTIVES, KINDS, Operator
from pie_p.units import DTYPES

Columns = dict[str, NDArray[Any]]

TEXT_COLUMNS: Final = ("path", "kind", "dtype", "kv_dtype")
COUNTED: Final[tuple[str, ...]] = tuple(name for name in Operator._fields if name not in TEXT_COLUMNS)
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
COLLECTIVE_CODES: Final[NDArray[np.int64]] = np.array(sorted(KIND_CODE[kind] for kind in COLLECTIVES))


def counted_columns(operators: Sequence[Operator]) -> Columns:
    """Operators as columns; texts become codes (`kind_code`, `dtype_code`, `kv_dtype_code`).

    >>> from pie_p.operators import linear
    >>> counted_columns([linear("l", tokens=1, in_features=2, out_features=3)])["flops"]
    array([12.])
    """
    fields = dict(zip(Operator._fields, zip(*operators, strict=True), strict=True)) if operators else dict.fromkeys(Operator._fields, ())
    columns: Columns = {name: np.array(fields[name], dtype=np.float64) for name in COUNTED}
    columns["kind_code"] = np.array([KIND_CODE[kind] for kind in fields["kind"]], dtype=np.int64)
    columns["dtype_code"] = np.array([DTYPE_CODE[dtype] for dtype in fields["dtype"]], dtype=np.int64)
    columns["kv_dtype_code"] = np.array([DTYPE_CODE[dtype] for dtype in fields["kv_dtype"]], dtype=np.int64)
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


def featurize(operators: Sequence[Operator], clusters: Sequence[Cluster], which: NDArray[np.int64]) -> Columns:
    """Counted columns and hardware columns of operators that run on given clusters.

    Args:
        operators: one per row.
        clusters: the clusters that occur.
        which: for each row the index into `clusters`.
    """
    columns = counted_columns(operators)
    return columns | hardware_columns(clusters, which, compute_dtype_code(columns), columns["group_size"])


def compute_dtype_code(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Format an operator computes in: the weights' for matrix products, the cache's for attention."""
    attention = (columns["kind_code"] == KIND_CODE["attention_decode"]) | (columns["kind_code"] == KIND_CODE["attention_prefill"])
    return np.where(attention, columns["kv_dtype_code"], columns["dtype_code"])
