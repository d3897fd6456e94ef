"""Windows: growth of counters between two scrapes, and what a restart of the server does to it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_server import Counts, sglang_page, trtllm_page, vllm_page

from pie_p.watch.dialects import SGLANG, VLLM
from pie_p.watch.readings import read_metrics
from pie_p.watch.windows import Window, between


def window(before: Counts, after: Counts, page: object = vllm_page) -> Window:
    first, last = (read_metrics(page(counts)) for counts in (before, after))  # type: ignore[operator]
    [[old], [new]] = [list(reading.series.values()) for reading in (first, last)]
    return between(old, new, seconds=5.0, dialect=last.dialect)


BEFORE = Counts(prompt_tokens=100, output_tokens=50, finished=2, steps=20, itl_sum_s=1.0, itl_count=45, ttft_count=5, running=4, waiting=1)
AFTER = Counts(
    prompt_tokens=400, output_tokens=150, finished=5, steps=40, itl_sum_s=3.0, itl_count=140, ttft_count=10, running=6, waiting=0
)


def test_counters_give_growth_and_gauges_both_ends() -> None:
    found = window(BEFORE, AFTER)
    assert (found.prompt_tokens, found.output_tokens, found.prompts, found.finished, found.steps) == (300, 100, 5, 3, 20)
    assert (found.itl_sum_s, found.itl_count, found.running, found.waiting) == (2.0, 95, (4, 6), (1, 0))
    assert (found.live_tokens, found.resets, found.busy_s) == (True, 0, None)


def test_after_a_restart_counters_count_from_zero_even_one_that_has_overtaken_its_old_value() -> None:
    found = window(AFTER, Counts(prompt_tokens=500, output_tokens=20, steps=3, itl_count=18, itl_sum_s=0.2, ttft_count=2))
    assert found.resets >= 1
    assert (found.prompt_tokens, found.output_tokens, found.prompts) == (500, 20, 2)


def test_sglang_tokens_are_live_through_latencies_and_tensorrt_llms_are_not() -> None:
    before = Counts(finished_output_tokens=10, itl_count=90, ttft_count=10)
    after = Counts(finished_output_tokens=10, itl_count=190, ttft_count=15, decode_steps=20)
    old = window(before, after, lambda counts: sglang_page(counts, new=False))
    assert (old.live_tokens, old.output_tokens, old.new_prompt_tokens) == (True, 105, None)
    assert window(before, after, sglang_page).step_tokens == 100
    tensorrt = window(before, after, trtllm_page)
    assert (tensorrt.live_tokens, tensorrt.output_tokens) == (False, 0)


def test_prefix_cache_hits_come_off_the_prompt_from_a_counter_or_a_rate() -> None:
    counted = between({"prompt_tokens": 0, "cached_tokens": 0}, {"prompt_tokens": 100, "cached_tokens": 140}, seconds=5, dialect=VLLM)
    assert (counted.cached_tokens, counted.new_prompt_tokens) == (100, 0)  # hits may count a prompt twice: never more than was read
    rated = between({"prompt_tokens": 0}, {"prompt_tokens": 100, "cache_hit_rate": 0.25}, seconds=5, dialect=SGLANG)
    assert rated.cached_tokens == 25


@given(st.lists(st.integers(0, 10**12), min_size=2, max_size=30), st.data())
def test_growth_is_never_negative_and_adds_up_when_nothing_was_reset(steps: list[int], data: st.DataObject) -> None:
    totals = [sum(steps[: i + 1]) for i in range(len(steps))]
    windows = [between({"output_tokens": a}, {"output_tokens": b}, seconds=1, dialect=VLLM) for a, b in pairwise(totals)]
    assert sum(one.output_tokens or 0 for one in windows) == pytest.approx(totals[-1] - totals[0])
    fallen = data.draw(st.integers(0, 10**9))
    reset = between({"output_tokens": fallen + 10**10}, {"output_tokens": fallen}, seconds=1, dialect=VLLM)
    assert (reset.output_tokens, reset.resets) == (fallen, 1)
