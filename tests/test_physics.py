"""The physical base of time: bounds no kernel can break, wire bytes as NCCL counts them, and a clock that falls.

The priors are fitted and may move; what is tested here holds for any of them.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p import operators as ops
from pie_p.features import Columns, featurize
from pie_p.hardware import Cluster, Link, load_cluster, load_gpu
from pie_p.operators import Operator
from pie_p.physics import Roofline, is_collective, smooth_max, soft_cap, wire_bytes

PHYSICS = Roofline()
TOKENS = st.integers(1, 20_000)
WIDTH = st.sampled_from([64, 1024, 4096, 16_384])
HEADS: dict[str, Any] = {"heads": 32, "kv_heads": 8, "head_dim": 128}


def columns_of(*operators: Operator, cluster: Cluster | str = "h100-sxm-80gb") -> Columns:
    return featurize(operators, [load_cluster(cluster)], np.zeros(len(operators), dtype=np.int64))


def linear(tokens: float, width: float = 4096, **more: object) -> Operator:
    return ops.linear("l", tokens=tokens, in_features=width, out_features=width, **more)  # type: ignore[arg-type]


def collective(kind: str, *, group: int, tokens: float = 1000, width: int = 4096, hosts: int = 1) -> Operator:
    if kind == "send_recv":
        return ops.send_recv("s", tokens=tokens, width=width, hosts=hosts)
    return getattr(ops, kind)("c", tokens=tokens, width=width, group_size=group, hosts=hosts)  # type: ignore[no-any-return]


KERNELS = st.one_of(
    st.builds(linear, TOKENS, WIDTH),
    st.builds(
        lambda n, context: ops.attention_decode("d", sequences=n, context_tokens=context, heads=32, kv_heads=8, head_dim=128),
        TOKENS,
        TOKENS,
    ),
    st.builds(
        lambda n, cached: ops.attention_prefill("p", sequences=1, new_tokens=n, cached_tokens=cached, heads=32, kv_heads=8, head_dim=128),
        TOKENS,
        TOKENS,
    ),
    st.builds(lambda n, width: ops.norm("n", tokens=n, width=width), TOKENS, WIDTH),
    st.builds(
        lambda n: ops.experts("x", tokens=n, width=2048, intermediate=768, total_experts=128, local_experts=16, top_k=8, gated=True), TOKENS
    ),
)


# Time


@given(KERNELS)
def test_no_kernel_beats_the_roofline(op: Operator) -> None:
    """Williams et al., Roofline (CACM 52, 2009): at least FLOP over peak FLOP/s and bytes over peak bytes/s."""
    columns = columns_of(op)
    gpu = load_gpu("h100-sxm-80gb")
    least = max(op.flops / gpu.peak(op.kv_dtype if op.kv_bytes else op.dtype), op.hbm_bytes / gpu.hbm_bytes_per_s)
    assert PHYSICS.time_s(columns)[0] >= least


def test_a_decode_sized_product_is_bound_by_memory_and_a_prompt_sized_one_by_arithmetic() -> None:
    """H100 SXM: 989 TFLOP/s over 3.35 TB/s is 295 FLOP per byte; bf16 weights give about one FLOP per byte and token."""
    compute_s, memory_s = PHYSICS.compute_and_memory_s(columns_of(linear(16), linear(4096)))
    assert memory_s[0] > compute_s[0]
    assert compute_s[1] > memory_s[1]


def test_one_token_through_llama_70b_s_largest_matrix_takes_its_bytes_over_the_bandwidth() -> None:
    """8192 x 57344 bf16 weights, 0.94 GB: 0.28 ms at 3.35 TB/s, at most twice that in practice."""
    time_s = PHYSICS.time_s(columns_of(ops.linear("gate_up", tokens=1, in_features=8192, out_features=57_344)))[0]
    assert 0.28e-3 <= time_s <= 0.56e-3


@given(KERNELS, st.floats(1.1, 10))
def test_a_kernel_takes_as_much_longer_as_the_board_is_slower_beyond_its_floor(op: Operator, factor: float) -> None:
    gpu = load_gpu("h100-sxm-80gb")
    peaks = {dtype: peak / factor for dtype, peak in gpu.peak_flops_per_s.items()}
    slow = gpu.model_copy(update={"hbm_bytes_per_s": gpu.hbm_bytes_per_s / factor, "peak_flops_per_s": peaks})
    fast_s, slow_s = (PHYSICS.time_s(columns_of(op, cluster=Cluster(gpu=board)))[0] for board in (gpu, slow))
    floor_s = PHYSICS.floor_s(columns_of(op))[0]
    assert slow_s - floor_s == pytest.approx(factor * (fast_s - floor_s), rel=1e-9)


def test_a_kernel_of_almost_no_work_takes_its_floor() -> None:
    """A kernel takes microseconds however little it does: launch, scheduling and drain inside a graph."""
    columns = columns_of(linear(1, 8), ops.norm("n", tokens=1, width=8))
    assert PHYSICS.time_s(columns) == pytest.approx(PHYSICS.floor_s(columns), rel=1e-3)
    assert (PHYSICS.floor_s(columns) > 1e-7).all()


@given(low=st.floats(1e-9, 1e3), high=st.floats(1e-9, 1e3), power=st.floats(1, 20))
def test_overlapped_work_takes_at_least_the_longer_part_and_at_most_both(low: float, high: float, power: float) -> None:
    both = smooth_max(np.array([low]), np.array([high]), power=power)[0]
    assert max(low, high) * (1 - 1e-12) <= both <= (low + high) * (1 + 1e-12)


def test_a_smooth_maximum_of_nothing_is_nothing() -> None:
    assert smooth_max(np.zeros(1), np.zeros(1), power=3.0)[0] == pytest.approx(0, abs=1e-25)


# Collectives


@pytest.mark.parametrize("group", [2, 4, 8])
@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all_reduce", lambda n: 2 * (n - 1) / n),
        ("all_gather", lambda n: n - 1),  # of one rank's share, that is (n - 1) / n of the gathered whole
        ("reduce_scatter", lambda n: (n - 1) / n),
        ("all_to_all", lambda n: (n - 1) / n),
        ("send_recv", lambda n: 1),
    ],
)
def test_a_rank_puts_on_the_wire_what_nccl_tests_counts_as_bus_traffic(kind: str, factor, group: int) -> None:  # type: ignore[no-untyped-def]
    """nccl-tests, doc/PERFORMANCE.md: bus bandwidth over algorithm bandwidth, here on PCIe, without in-network reduction."""
    op = collective(kind, group=group)
    inside, between = wire_bytes(columns_of(op, cluster="a100-pcie-80gb"))
    assert inside[0] == pytest.approx(op.payload_bytes * factor(group), rel=1e-12)
    assert between[0] == 0


def test_a_reducing_switch_halves_the_wire_bytes_of_a_large_all_reduce() -> None:
    """NVLink SHARP: every rank sends its payload once (NVIDIA, NCCL 2.18 NVLS); a ring sends it nearly twice."""
    with_sharp, without = (
        load_cluster("h100-sxm-80gb"),
        Cluster(
            gpu=load_gpu("h100-sxm-80gb"),
            intra=Link(name="ring", bytes_per_s=450e9, latency_s=1e-6, switched=True),
            gpus_per_host=8,
            host_idle_w=1000,
            host_load_fraction=0.1,
        ),
    )
    assert with_sharp.intra.in_network_reduction
    sharp, ring = (wire_bytes(columns_of(collective("all_reduce", group=8), cluster=cluster))[0][0] for cluster in (with_sharp, without))
    assert ring / sharp == pytest.approx(2 * 7 / 8, rel=1e-12)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"])
def test_only_groups_over_several_hosts_use_the_links_between_them(kind: str) -> None:
    cluster = load_cluster("h100-sxm-80gb", gpus=16)
    assert wire_bytes(columns_of(collective(kind, group=8), cluster=cluster))[1][0] == 0
    assert wire_bytes(columns_of(collective(kind, group=16, hosts=2), cluster=cluster))[1][0] > 0


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"])
@given(tokens=TOKENS)
def test_a_collective_takes_at_least_its_bytes_over_the_link_and_grows_with_them(kind: str, tokens: int) -> None:
    small, large = collective(kind, group=4, tokens=tokens), collective(kind, group=4, tokens=2 * tokens)
    columns = columns_of(small, large)
    seconds = PHYSICS.collective_s(columns)
    assert (seconds >= wire_bytes(columns)[0] / columns["link_bytes_per_s"]).all()
    assert 0 < seconds[0] < seconds[1]


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_a_collective_is_slower_over_pcie_than_over_nvlink_and_slowest_between_hosts(kind: str) -> None:
    nvlink = PHYSICS.collective_s(columns_of(collective(kind, group=8), cluster="h100-sxm-80gb"))[0]
    pcie = PHYSICS.collective_s(columns_of(collective(kind, group=8), cluster="h100-pcie-80gb"))[0]
    two = PHYSICS.collective_s(columns_of(collective(kind, group=8, hosts=2), cluster=load_cluster("h100-sxm-80gb", gpus=16)))[0]
    assert nvlink < pcie
    assert nvlink < two


def test_a_collective_of_almost_nothing_still_takes_microseconds() -> None:
    """An 8-GPU all-reduce of a few bytes takes several us on NVLink hosts (nccl-tests, small sizes)."""
    seconds = PHYSICS.collective_s(columns_of(collective("all_reduce", group=8, tokens=1, width=8)))[0]
    assert 1e-6 < seconds < 1e-4


@given(KERNELS)
def test_kernels_are_no_collectives(op: Operator) -> None:
    columns = columns_of(op)
    assert not is_collective(columns)[0]
    assert PHYSICS.collective_s(columns)[0] == 0
    assert wire_bytes(columns)[0][0] == wire_bytes(columns)[1][0] == 0


# A clock that falls


@given(KERNELS, st.floats(0.1, 1))
def test_a_falling_clock_stretches_a_kernel_by_at_most_its_fall(op: Operator, clock: float) -> None:
    stretch = PHYSICS.stretch(columns_of(op), np.array([clock]))[0]
    assert 1 - 1e-12 <= stretch <= 1 / clock * (1 + 1e-12)


def test_a_falling_clock_hardly_slows_what_memory_bounds_and_fully_what_arithmetic_bounds() -> None:
    decode, prompt = PHYSICS.stretch(columns_of(linear(8), linear(16_384, 16_384)), np.array([0.7, 0.7]))
    assert decode < 1.05
    assert prompt == pytest.approx(1 / 0.7, rel=0.05)


def test_a_full_clock_stretches_nothing() -> None:
    columns = columns_of(linear(8), linear(8192), collective("all_reduce", group=8))
    assert PHYSICS.stretch(columns, np.ones(3)).tolist() == [1, 1, 1]
    assert PHYSICS.stretch(columns, np.full(3, 0.5))[2] == 1  # links have a clock of their own


@given(value=st.floats(0, 1e6), most=st.floats(0.01, 10), knee=st.floats(1, 20))
def test_a_soft_cap_is_below_the_value_and_the_cap_and_leaves_small_values_alone(value: float, most: float, knee: float) -> None:
    bent = soft_cap(np.array([value]), np.array([most]), knee=knee)[0]
    assert 0 <= bent <= min(value, most) * (1 + 1e-12)
    assert soft_cap(np.array([most / 1000]), np.array([most]), knee=4.0)[0] == pytest.approx(most / 1000, rel=1e-9)


# Constants


def test_every_share_of_a_peak_is_a_share() -> None:
    for entry in fields(Roofline):
        value = getattr(PHYSICS, entry.name)
        assert value > 0, entry.name
        if entry.name.endswith("_share"):
            assert value <= 1, entry.name


def test_other_constants_make_another_base() -> None:
    slow = replace(PHYSICS, weight_share=PHYSICS.weight_share / 2)
    columns = columns_of(linear(1, 16_384))
    floor_s = PHYSICS.floor_s(columns)[0]
    assert slow.time_s(columns)[0] - floor_s == pytest.approx(2 * (PHYSICS.time_s(columns)[0] - floor_s), rel=0.01)
