"""Hybrid clusters: the threshold curve, held against trying every threshold request by request."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_p.errors import InputError
from pie_p.hybrid import threshold_pairs, thresholds
from pie_p.systems import System
from pie_p.traces import RequestTrace, load_trace
from pie_p.workload_fits import WorkloadFit

DATA = Path(os.environ.get("PIE_P_SHARED", Path(__file__).parents[2] / "shared")) / "data"


def system(name: str, *, energy_j: tuple[float, float, float, float], time_s: tuple[float, float, float, float]) -> System:
    joules, seconds = (WorkloadFit(form="bilinear", method="relative", coefficients=each) for each in (energy_j, time_s))
    return System(name=name, llm="llm", energy_j=joules, time_s=seconds)


# The efficient one costs little at the start and much per token; they meet at 1 + 0.05 t = 3 + 0.01 t, t = 50 tokens.
EFFICIENT = system("efficient", energy_j=(1.0, 0.05, 0.05, 0.0), time_s=(0.0, 0.0, 0.10, 0.0))
FAST = system("fast", energy_j=(3.0, 0.01, 0.01, 0.0), time_s=(0.0, 0.0, 0.02, 0.0))


def trace_of(prompt: list[int], output: list[int]) -> RequestTrace:
    return RequestTrace(arrival_s=np.arange(len(prompt), dtype=float), prompt_tokens=np.array(prompt), output_tokens=np.array(output))


def by_hand(trace: RequestTrace, short: np.ndarray, weight: float) -> float:
    """Cost of a policy, request by request."""
    total = 0.0
    for prompt, output, here in zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), short.tolist(), strict=True):
        one = EFFICIENT if here else FAST
        total += weight * float(one.energy_j(prompt, output)) + (1 - weight) * float(one.time_s(prompt, output))
    return total


def test_the_best_threshold_is_where_the_two_systems_cost_the_same() -> None:
    trace = trace_of([10, 20, 24, 26, 40, 300], [10, 20, 24, 26, 40, 20])  # 20, 40, 48, 52, 80, 320 tokens
    curve = thresholds(trace, EFFICIENT, FAST)
    assert curve.threshold[curve.best_place] == 48
    assert curve.best.energy_j == pytest.approx(2.0 + 3.0 + 3.4 + 3.52 + 3.8 + 6.2)
    assert curve.efficient_requests[curve.best_place] == 3


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=12),
    weight=st.floats(0, 1),
    by=st.sampled_from(["prompt", "output", "total"]),
)
def test_every_threshold_costs_what_serving_request_by_request_does(tokens: list[tuple[int, int]], weight: float, by: str) -> None:
    trace = trace_of([each[0] for each in tokens], [each[1] for each in tokens])
    curve = thresholds(trace, EFFICIENT, FAST, by=by, weight=weight)  # type: ignore[arg-type]
    size = {"prompt": trace.prompt_tokens, "output": trace.output_tokens, "total": trace.prompt_tokens + trace.output_tokens}[by]
    expected = [by_hand(trace, size <= level, weight) for level in curve.threshold.tolist()]
    assert curve.cost.tolist() == pytest.approx(expected)
    tried = [by_hand(trace, size <= level, weight) for level in range(122)]
    assert curve.best.cost == pytest.approx(min(tried))  # no threshold between those of the curve does better


@settings(max_examples=25, deadline=None)
@given(tokens=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=8), weight=st.floats(0, 1))
def test_every_pair_of_thresholds_costs_what_serving_request_by_request_does(tokens: list[tuple[int, int]], weight: float) -> None:
    trace = trace_of([each[0] for each in tokens], [each[1] for each in tokens])
    curve = threshold_pairs(trace, EFFICIENT, FAST, weight=weight)
    assert curve.output_threshold is not None
    for place in range(len(curve)):
        short = (trace.prompt_tokens <= curve.threshold[place]) & (trace.output_tokens <= curve.output_threshold[place])
        assert curve.cost[place] == pytest.approx(by_hand(trace, short, weight))
        assert curve.efficient_requests[place] == short.sum()


def test_the_ends_of_the_curve_are_all_on_one_system() -> None:
    curve = thresholds(trace_of([5, 50, 500], [5, 50, 500]), EFFICIENT, FAST, weight=0.3)
    on_efficient, on_fast, *_ = curve.baselines
    assert curve.cost[0] == pytest.approx(on_fast.cost)
    assert curve.cost[-1] == pytest.approx(on_efficient.cost)
    assert all(share >= -1e-12 for name, share in curve.saving().items() if name.startswith("all on"))


def test_random_is_the_mean_of_both_and_round_robin_alternates() -> None:
    trace = trace_of([10, 100], [10, 100])
    on_efficient, on_fast, in_turn, random = thresholds(trace, EFFICIENT, FAST).baselines
    assert random.energy_j == pytest.approx((on_efficient.energy_j + on_fast.energy_j) / 2)
    assert in_turn.energy_j == pytest.approx(float(EFFICIENT.energy_j(10, 10) + FAST.energy_j(100, 100)))


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no public data at {DATA}; set PIE_P_SHARED")
def test_the_curve_of_a_slice_of_the_azure_trace_is_that_of_serving_request_by_request() -> None:
    trace = load_trace(DATA / "azure_llm_trace" / "AzureLLMInferenceTrace_conv.csv.gz").only(slice(0, 150))
    curve = thresholds(trace, EFFICIENT, FAST, by="prompt", weight=0.8)
    expected = [by_hand(trace, trace.prompt_tokens <= level, 0.8) for level in curve.threshold.tolist()]
    assert curve.cost.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"by": "words"}, r"^by = 'words' is not known; allowed: prompt, output, total; for both at once: threshold_pairs$"),
        ({"weight": 2}, r"^weight = 2 is not allowed; give a finite number of at least 0 and at most 1$"),
        ({"fast": EFFICIENT}, r"^two systems are called 'efficient'"),
    ],
)
def test_a_policy_that_cannot_be_is_one_clear_line(values: dict[str, object], text: str) -> None:
    arguments: dict[str, object] = {"efficient": EFFICIENT, "fast": FAST, **values}
    with pytest.raises(InputError, match=text):
        thresholds(trace_of([1], [1]), **arguments)  # type: ignore[arg-type]
