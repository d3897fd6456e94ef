"""A parallel plan says how many GPUs there are and refuses degrees that cannot be."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p.errors import InputError, PlanError
from pie_p.plan import ParallelPlan

DEGREES = st.integers(1, 64)


@given(tp=DEGREES, pp=DEGREES, dp=DEGREES)
def test_the_gpus_of_a_plan_are_tp_times_pp_times_dp(tp: int, pp: int, dp: int) -> None:
    assert ParallelPlan(tp=tp, pp=pp, dp=dp).gpus == tp * pp * dp


@given(tp=DEGREES, dp=DEGREES, ep=DEGREES)
def test_ep_is_one_or_a_divisor_of_tp_times_dp_and_never_multiplies(tp: int, dp: int, ep: int) -> None:
    if tp * dp % ep:
        with pytest.raises(PlanError, match=rf"^ep = {ep} does not divide tp \* dp = {tp * dp}; allowed: 1 or a divisor of {tp * dp}$"):
            ParallelPlan(tp=tp, dp=dp, ep=ep)
    else:
        assert ParallelPlan(tp=tp, dp=dp, ep=ep).gpus == tp * dp


def test_attention_dp_is_dp_and_ep_together() -> None:
    assert ParallelPlan(dp=8, ep=8).attention_dp
    assert not ParallelPlan(dp=8).attention_dp  # independent replicas
    assert not ParallelPlan(tp=8, ep=8).attention_dp


def test_a_pipeline_has_as_many_micro_batches_as_stages_unless_said_otherwise() -> None:
    assert ParallelPlan(pp=4).pipeline_pieces == 4
    assert ParallelPlan(pp=4, micro_batches=8).pipeline_pieces == 8


@pytest.mark.parametrize("name", ["tp", "pp", "dp", "ep", "micro_batches"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 65537, 1e300])
def test_a_degree_outside_its_bounds_is_refused_by_name_and_value(name: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"^{name} = .+ is not allowed; give a finite number of at least 1 and at most 65536$") as caught:
        ParallelPlan(**{name: value})
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("name", ["tp", "pp", "dp", "ep", "micro_batches"])
@pytest.mark.parametrize("value", [True, "2", [2], {}])
def test_a_degree_that_is_no_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"^{name} = .+ is not a number; give one of at least 1 and at most 65536$"):
        ParallelPlan(**{name: value})  # type: ignore[arg-type]


def test_half_a_rank_is_refused() -> None:
    with pytest.raises(InputError, match=r"^tp = 1\.5 is not a whole number"):
        ParallelPlan(tp=1.5)  # type: ignore[arg-type]


def test_numpy_degrees_become_plain_ints() -> None:
    plan = ParallelPlan(tp=np.int64(4), pp=np.float64(2.0))  # type: ignore[arg-type]
    assert plan == ParallelPlan(tp=4, pp=2)
    assert type(plan.tp) is int
    assert type(plan.pp) is int


def test_a_plan_is_written_by_its_degrees_above_one() -> None:
    assert str(ParallelPlan()) == "one GPU"
    assert str(ParallelPlan(tp=8, pp=2, dp=2, ep=16)) == "TP8 PP2 DP2 EP16"


def test_a_plan_is_frozen_hashable_and_survives_copy_and_pickle() -> None:
    plan = ParallelPlan(tp=4, dp=2, ep=8, micro_batches=3)
    with pytest.raises(AttributeError):
        plan.tp = 8  # type: ignore[misc]
    assert len({plan, copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))}) == 1
