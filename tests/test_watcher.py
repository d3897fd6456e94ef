"""Watcher: restarts, gaps, several engines and servers; sums never fall, and nothing unknown is estimated as zero."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from simulated_server import Counts, vllm_page

from pie_p.errors import InputError
from pie_p.operating_points import OperatingPoints, operating_points
from pie_p.watch.ledger import Place
from pie_p.watch.watcher import LONGEST_BRIDGE_S, Watcher
from pie_p.watch_view import watch_footer

DEPLOYMENT = {"llm": "llama-3.1-8b", "gpu": "h100-sxm-80gb"}
IDLE_W = 120.4


@pytest.fixture(scope="module")
def points() -> OperatingPoints:
    return operating_points(DEPLOYMENT, predictor="physics")


def busy(seconds: float) -> Counts:
    """A server that has made 1000 tokens a second at batch 10 for so long."""
    tokens = int(1000 * seconds)
    return Counts(
        prompt_tokens=tokens, output_tokens=tokens, finished=tokens // 100, ttft_count=tokens // 100, steps=tokens // 10,
        itl_sum_s=10 * seconds, itl_count=tokens, running=10,
    )  # fmt: skip


def take(watcher: Watcher, counts: Counts, at_s: float, *, server: str = "a", engine: str = "0") -> None:
    watcher.take(server, vllm_page(counts, engine=engine), now_s=at_s, wall_s=1e9 + at_s)


def test_the_first_scrape_is_a_start_and_estimates_nothing(points: OperatingPoints) -> None:
    watcher = Watcher(points)
    take(watcher, busy(1000), 0.0)
    assert watcher.totals().total_j == 0.0
    take(watcher, busy(1005), 5.0)
    assert watcher.totals().output_tokens == 5000
    assert 5 * IDLE_W < watcher.totals().total_j < 5 * 700


def test_a_restart_of_the_server_is_counted_and_the_sums_do_not_fall(points: OperatingPoints) -> None:
    watcher = Watcher(points)
    take(watcher, busy(1000), 0.0)
    take(watcher, busy(1005), 5.0)
    before_j = watcher.totals().total_j
    take(watcher, busy(2), 10.0)
    assert watcher.totals().resets == 1
    assert watcher.totals().output_tokens == 5000 + 2000
    assert watcher.totals().total_j > before_j


def test_a_gap_over_which_counters_went_on_is_bridged_and_counted(points: OperatingPoints) -> None:
    watcher, steady = Watcher(points), Watcher(points)
    for at_s in range(0, 65, 5):
        take(steady, busy(at_s), at_s)
    take(watcher, busy(0), 0.0)
    for at_s in range(5, 60, 5):
        watcher.miss("a", "connection refused", now_s=at_s)
        assert not watcher.servers["a"].moments  # no power is shown while nobody knows
    take(watcher, busy(60), 60.0)
    assert watcher.totals().bridged_s == 60.0
    assert watcher.totals().unknown_s == 0.0
    assert watcher.totals().total_j == pytest.approx(steady.totals().total_j, rel=0.02)
    assert watcher.servers["a"].failures == 11


def test_a_gap_with_a_restart_in_it_is_unknown_not_zero(points: OperatingPoints) -> None:
    watcher = Watcher(points)
    take(watcher, busy(1000), 0.0)
    watcher.miss("a", "connection refused", now_s=5.0)
    take(watcher, busy(3), 100.0)
    assert (watcher.totals().unknown_s, watcher.totals().seconds) == (100.0, 0.0)
    take(watcher, busy(8), 105.0)
    assert (watcher.totals().unknown_s, watcher.totals().seconds) == (100.0, 5.0)


def test_time_of_a_server_that_stays_away_is_counted_as_it_passes(points: OperatingPoints) -> None:
    watcher = Watcher(points)
    take(watcher, busy(0), 0.0)
    for at_s in range(60, 3600, 60):
        watcher.miss("a", "timed out", now_s=at_s)
    assert 3600 - 60 - LONGEST_BRIDGE_S <= watcher.totals().unknown_s <= 3600
    take(watcher, busy(3600), 3600.0)
    assert watcher.totals().unknown_s + watcher.totals().seconds == pytest.approx(3600.0)


def test_an_engine_that_vanishes_from_the_page_shows_no_power_and_its_time_is_unknown(points: OperatingPoints) -> None:
    two = replace(points, deployment=operating_points({**DEPLOYMENT, "dp": 2}, predictor="physics").deployment)
    watcher = Watcher(two)
    both = vllm_page(busy(0), engine="0") + vllm_page(busy(0), engine="1")
    watcher.take("a", both, now_s=0.0, wall_s=0.0)
    watcher.take("a", both, now_s=5.0, wall_s=0.0)
    assert len(watcher.servers["a"].moments) == 2
    for at_s in (10.0, 400.0):
        watcher.take("a", vllm_page(busy(at_s), engine="0"), now_s=at_s, wall_s=0.0)
    assert [place.engine for place in watcher.servers["a"].moments] == ["0"]
    assert watcher.ledger.of(Place("a", "meta-llama/Llama-3.1-8B-Instruct", "1")).unknown_s == pytest.approx(395.0)


def test_engines_and_servers_add_up(points: OperatingPoints) -> None:
    one, two = Watcher(points), Watcher(points)
    for at_s in (0.0, 5.0):
        take(one, busy(at_s), at_s)
        take(two, busy(at_s), at_s)
        take(two, busy(at_s), at_s, server="b")
    assert two.totals().total_j == pytest.approx(2 * one.totals().total_j)
    parallel = Watcher(operating_points({**DEPLOYMENT, "dp": 2}, predictor="physics"))
    for at_s in (0.0, 5.0):
        parallel.take("a", vllm_page(busy(at_s), engine="0") + vllm_page(busy(at_s), engine="1"), now_s=at_s, wall_s=0.0)
    assert parallel.totals().total_j == pytest.approx(two.totals().total_j, rel=0.02)


def test_more_engines_than_ranks_is_one_clear_line(points: OperatingPoints) -> None:
    pages = "".join(vllm_page(Counts(), engine=str(number)) for number in range(3))
    with pytest.raises(InputError, match=r"^a shows 3 engines, but dp = 1; give dp = 3, or a multiple of it$"):
        Watcher(points).take("a", pages, now_s=0.0, wall_s=0.0)


def test_sums_go_on_over_a_restart_of_the_watcher_and_the_time_in_between_is_unknown(points: OperatingPoints, tmp_path: Path) -> None:
    state, seen = tmp_path / "state.json", []
    for start in range(5):
        watcher = Watcher(points, state=state, wall_s=1e9 + 100.0 * start)
        for at_s in (0.0, 5.0, 10.0):
            take(watcher, busy(100 * start + at_s), 100.0 * start + at_s)
            seen.append(watcher.totals().total_j)  # as an exporter would show it
        del watcher  # killed: nothing is said at the end
    assert seen == sorted(seen)
    last = Watcher(points, state=state, wall_s=1e9 + 410.0)
    assert last.totals().total_j == seen[-1]
    assert last.totals().seconds == pytest.approx(50.0)
    assert last.totals().unknown_s == pytest.approx(4 * 90.0)


def test_a_disk_that_refuses_is_no_fault_of_the_server_and_the_sums_go_on(points: OperatingPoints, tmp_path: Path) -> None:
    folder = tmp_path / "states"
    folder.mkdir()
    watcher, sound = Watcher(points, state=folder / "state.json"), Watcher(points)
    folder.rename(tmp_path / "moved")
    for at_s in (0.0, 5.0, 10.0):
        take(watcher, busy(at_s), at_s)
        take(sound, busy(at_s), at_s)
    assert watcher.servers["a"].up
    assert watcher.servers["a"].failures == 0
    assert watcher.totals() == sound.totals()
    assert watcher.not_kept.startswith(f"cannot write {folder}/state.json")
    assert f"warning: {watcher.not_kept}; the sums go on, and are lost when the watcher ends" in watch_footer(watcher)
    (tmp_path / "moved").rename(folder)
    take(watcher, busy(15.0), 15.0)
    assert watcher.not_kept == ""
    with pytest.raises(InputError, match=r"^cannot write "):
        Watcher(points, state=tmp_path / "none" / "state.json", wall_s=1e9)


def test_a_scrape_twice_in_the_same_moment_counts_once(points: OperatingPoints) -> None:
    watcher = Watcher(points)
    for at_s in (0.0, 5.0, 5.0):
        take(watcher, busy(at_s), at_s)
    assert watcher.totals().seconds == 5.0


def test_what_a_server_does_not_give_is_named_with_what_is_lost(points: OperatingPoints) -> None:
    watcher = Watcher(points)
    page = "\n".join(line for line in vllm_page(busy(1)).splitlines() if "iteration_tokens" not in line and "inter_token" not in line)
    watcher.take("a", page + "\n", now_s=0.0, wall_s=0.0)
    lost = {metric: what for _, metric, what in watcher.losses()}
    assert lost["vllm:iteration_tokens_total_count"].startswith("bursts shorter than the time between scrapes")
    assert lost["vllm:inter_token_latency_seconds_sum"] == "the correction of predicted by measured time"
    assert "vllm:prompt_tokens_total" not in lost


def test_the_sums_as_plain_data_name_what_they_are_for(points: OperatingPoints) -> None:
    watcher = Watcher(points)
    for at_s in (0.0, 5.0):
        take(watcher, busy(at_s), at_s)
    sums = watcher.to_dict()
    assert (sums["llm"], sums["gpu"], sums["scope"], sums["predictor"]["name"]) == ("llama-3.1-8b", "h100-sxm-80gb", "gpu", "physics")
    assert sums["total_j"] == pytest.approx(sum(sums["energy_j"].values()))
    assert sums["energy_per_output_token_j"] == pytest.approx((sums["total_j"] - sums["energy_j"]["idle"]) / 5000)
