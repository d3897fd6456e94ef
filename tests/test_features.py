"""Operators and hardware as columns: the only place where a feature is made."""

from __future__ import annotations

import numpy as np
import pytest

from pie_p import operators as ops
from pie_p.features import COUNTED, HARDWARE, KIND_CODE, compute_dtype_code, counted_columns, featurize
from pie_p.hardware import Cluster, load_cluster, load_gpu
from pie_p.operators import COLLECTIVES, KINDS, Operator
from pie_p.units import DTYPES

OPERATORS = [
    ops.linear("l", tokens=4, in_features=8, out_features=16, dtype="fp8"),
    ops.attention_decode("d", sequences=2, context_tokens=10, heads=2, kv_heads=1, head_dim=8, kv_dtype="int8"),
    ops.all_reduce("r", tokens=4, width=8, group_size=2),
    ops.all_reduce("r", tokens=4, width=8, group_size=8),
]


def columns_on(*names: str) -> dict[str, np.ndarray]:
    """Every operator on every cluster."""
    clusters = [load_cluster(name) for name in names]
    which = np.repeat(np.arange(len(names)), len(OPERATORS))
    return featurize(OPERATORS * len(names), clusters, which)


def test_every_count_of_an_operator_is_a_column_and_keeps_its_value() -> None:
    columns = counted_columns(OPERATORS)
    for name in COUNTED:
        assert columns[name].tolist() == [getattr(op, name) for op in OPERATORS]
    assert set(COUNTED) | {"path", "kind", "dtype", "kv_dtype"} == set(Operator._fields)


def test_codes_name_the_kind_and_the_formats() -> None:
    columns = counted_columns(OPERATORS)
    assert [KINDS[code] for code in columns["kind_code"]] == ["linear", "attention_decode", "all_reduce", "all_reduce"]
    assert [DTYPES[code] for code in columns["dtype_code"]] == ["fp8", "bf16", "bf16", "bf16"]
    assert [DTYPES[code] for code in columns["kv_dtype_code"]] == ["bf16", "int8", "bf16", "bf16"]
    assert len(KIND_CODE) == len(KINDS)
    assert set(KIND_CODE) >= COLLECTIVES


def test_no_operators_give_empty_columns() -> None:
    assert all(len(column) == 0 for column in counted_columns([]).values())


def test_every_hardware_figure_is_a_column_of_the_cluster_the_operator_runs_on() -> None:
    columns = columns_on("h100-sxm-80gb", "l4-24gb")
    h100, l4 = load_gpu("h100-sxm-80gb"), load_gpu("l4-24gb")
    assert set(HARDWARE) <= columns.keys()
    assert columns["hbm_bytes_per_s"].tolist() == [h100.hbm_bytes_per_s] * 4 + [l4.hbm_bytes_per_s] * 4
    assert columns["limit_w"].tolist() == [h100.limit_w] * 4 + [l4.limit_w] * 4
    assert columns["active_idle_w"].tolist() == [h100.active_idle_w] * 4 + [l4.active_idle_w] * 4
    assert columns["sm_count"].tolist() == [132] * 4 + [58] * 4  # NVIDIA data sheets


def test_the_peak_is_that_of_the_format_the_board_computes_in() -> None:
    """H100 SXM: 989 TFLOPS bf16, 1979 TFLOPS fp8, 1979 TOPS int8, dense (data sheet)."""
    peaks = columns_on("h100-sxm-80gb")["peak_flops_per_s"] / 1e12
    assert peaks[0] == pytest.approx(1979, rel=1e-3)  # fp8 weights
    assert peaks[1] == pytest.approx(1979, rel=1e-3)  # attention computes in the format of its cache
    assert peaks[2] == pytest.approx(989, rel=1e-3)


def test_attention_computes_in_the_format_of_its_cache_and_all_else_in_that_of_its_weights() -> None:
    codes = compute_dtype_code(counted_columns(OPERATORS))
    assert [DTYPES[code] for code in codes] == ["fp8", "int8", "bf16", "bf16"]


def test_a_pair_meets_over_its_bridge_and_a_larger_group_over_the_common_link() -> None:
    """H100 NVL: 600 GB/s NVLink bridge between two boards (300 each way), PCIe 5.0 x16 beyond (data sheet)."""
    cluster = load_cluster("h100-nvl-94gb")
    assert cluster.pair is not None
    columns = columns_on("h100-nvl-94gb")
    assert columns["link_bytes_per_s"].tolist() == [cluster.intra.bytes_per_s] * 2 + [cluster.pair.bytes_per_s, cluster.intra.bytes_per_s]
    assert columns["link_latency_s"][2] == cluster.pair.latency_s
    assert cluster.pair.bytes_per_s == pytest.approx(300e9)


def test_links_between_hosts_are_the_cluster_s_own() -> None:
    one, two = (Cluster(gpu=load_gpu("h100-sxm-80gb"), hosts=hosts) for hosts in (1, 2))
    columns = featurize(OPERATORS[:1] * 2, [one, two], np.array([0, 1]))
    assert two.inter is not None
    assert columns["inter_bytes_per_s"].tolist() == [one.intra.bytes_per_s, two.inter.bytes_per_s]
    assert columns["ranks_per_host"].tolist() == [8, 8]


def test_no_column_is_absent_for_any_board_of_the_catalogue() -> None:
    from pie_p.hardware import gpu_names

    columns = columns_on(*gpu_names())
    for name, column in columns.items():
        assert len(column) == len(OPERATORS) * len(gpu_names()), name
        assert np.isfinite(column.astype(float)).all(), name
