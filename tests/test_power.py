"""The physical base of power: between active idle and limit, more for faster work, and bent by the limit alone.

The priors are fitted and may move; what is tested here holds for any of them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p import operators as ops
from pie_p.features import Columns, featurize
from pie_p.hardware import load_cluster, load_gpu
from pie_p.operators import Operator
from pie_p.physics import Roofline
from pie_p.power import PowerLaw

LAW, PHYSICS = PowerLaw(), Roofline()
TOKENS = st.integers(1, 20_000)
WIDTH = st.sampled_from([64, 1024, 4096, 16_384])
HEADS: dict[str, Any] = {"heads": 32, "kv_heads": 8, "head_dim": 128}
OPERATORS = st.one_of(
    st.builds(lambda n, width: ops.linear("l", tokens=n, in_features=width, out_features=width), TOKENS, WIDTH),
    st.builds(lambda n, seen: ops.attention_decode("d", sequences=n, context_tokens=seen, **HEADS), TOKENS, TOKENS),
    st.builds(lambda n, seen: ops.attention_prefill("p", sequences=1, new_tokens=n, cached_tokens=seen, **HEADS), TOKENS, TOKENS),
    st.builds(lambda n, width: ops.norm("n", tokens=n, width=width), TOKENS, WIDTH),
    st.builds(lambda n, width: ops.all_reduce("r", tokens=n, width=width, group_size=8), TOKENS, WIDTH),
)
BOARDS = ["h100-sxm-80gb", "l4-24gb", "v100-sxm-32gb", "b200-sxm-180gb", "a100-pcie-80gb"]


def columns_of(*operators: Operator, gpu: str = "h100-sxm-80gb") -> Columns:
    return featurize(operators, [load_cluster(gpu)], np.zeros(len(operators), dtype=np.int64))


@pytest.mark.parametrize("name", BOARDS)
@given(op=OPERATORS)
def test_a_board_that_repeats_an_operator_draws_between_active_idle_and_its_limit(name: str, op: Operator) -> None:
    columns, gpu = columns_of(op, gpu=name), load_gpu(name)
    assert gpu.active_idle_w < LAW.power_w(columns, PHYSICS.time_s(columns))[0] < gpu.limit_w


@given(OPERATORS, st.floats(1.01, 100))
def test_the_same_work_in_more_time_draws_less(op: Operator, factor: float) -> None:
    columns = columns_of(op)
    time_s = PHYSICS.time_s(columns)
    assert LAW.demand(columns, factor * time_s)[0] < LAW.demand(columns, time_s)[0]
    assert LAW.power_w(columns, factor * time_s)[0] <= LAW.power_w(columns, time_s)[0]


@given(OPERATORS)
def test_working_asks_for_more_than_waiting(op: Operator) -> None:
    columns = columns_of(op)
    assert LAW.demand(columns, PHYSICS.time_s(columns))[0] > LAW.wait > 0


def test_a_large_matrix_product_takes_an_h100_to_its_limit_and_a_tiny_one_does_not() -> None:
    """Large dense GEMMs throttle an H100 at 700 W (for instance Patel et al., arXiv 2308.12908, on A100 at its limit)."""
    columns = columns_of(
        ops.linear("l", tokens=8192, in_features=8192, out_features=8192), ops.linear("l", tokens=1, in_features=64, out_features=64)
    )
    large, tiny = LAW.power_w(columns, PHYSICS.time_s(columns))
    assert large > 0.9 * 700
    assert tiny < 0.5 * 700


@given(low=st.floats(0, 50), high=st.floats(0, 50))
def test_a_limit_bends_demand_without_changing_its_order(low: float, high: float) -> None:
    limit_w, idle_w = np.array([700.0, 700.0]), np.array([120.0, 120.0])
    shares = LAW.settled(np.array([min(low, high), max(low, high)]), limit_w=limit_w, idle_w=idle_w)
    assert 0 <= shares[0] <= shares[1] <= (LAW.ceiling * 700 - 120) / 580


def test_far_below_the_limit_a_board_draws_what_is_asked() -> None:
    share = LAW.settled(np.array([0.05]), limit_w=np.array([700.0]), idle_w=np.array([120.0]))[0]
    assert share == pytest.approx(0.05, rel=1e-3)


def test_every_constant_is_positive_and_the_ceiling_is_below_the_limit() -> None:
    assert all(getattr(LAW, entry.name) > 0 for entry in fields(LAW))
    assert LAW.ceiling <= 1
