"""What `pie-p watch` shows: figures of the last window beside the sums, and what to be careful about."""

from __future__ import annotations

import pytest
from rich.console import Console
from simulated_server import Counts, vllm_page

from pie_p.operating_points import operating_points
from pie_p.watch.watcher import Watcher
from pie_p.watch_view import moment_line, watch_footer, watch_table


@pytest.fixture(scope="module")
def watcher() -> Watcher:
    made = Watcher(operating_points({"llm": "llama-3.1-8b", "gpu": "h100-sxm-80gb"}, predictor="physics"))
    for second in (0, 5):
        counts = Counts(output_tokens=1000 * second, steps=100 * second, running=10, itl_sum_s=50.0 * second, itl_count=1000 * second)
        made.take("http://a", vllm_page(counts), now_s=second, wall_s=1.8e9 + second)
    made.take("http://b", vllm_page(Counts()), now_s=0, wall_s=1.8e9)
    made.miss("http://b", "refused", now_s=5)
    return made


def shown(watcher: Watcher) -> str:
    console = Console(width=200, record=True, file=None)
    with console.capture() as capture:
        console.print(watch_table(watcher))
    return capture.get()


def test_the_table_names_scope_and_predictor_and_shows_unknown_power_as_unknown(watcher: Watcher) -> None:
    text = shown(watcher)
    assert "GPU boards only" in text
    assert "predictor physics" in text
    [line] = [line for line in text.splitlines() if line.startswith("http://b")]
    assert "unknown" in line
    [line] = [line for line in text.splitlines() if line.startswith("http://a")]
    assert "100.0 %" in line  # 5000 tokens at 50 ms each fill the window


def test_the_footer_warns_of_what_does_not_answer_and_of_times_that_do_not_fit(watcher: Watcher) -> None:
    lines = watch_footer(watcher)
    assert "warning: http://b does not answer: refused" in lines
    assert any("times the predicted time; is it the deployment you named?" in line for line in lines)


def test_a_moment_is_one_line(watcher: Watcher) -> None:
    [moment] = watcher.servers["http://a"].moments.values()
    line = moment_line(moment)
    assert line.startswith("08:00:05Z http://a engine 0: ")
    assert "batch 10.0" in line
