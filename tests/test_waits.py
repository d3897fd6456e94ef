"""Waits, held against delays that were put in on purpose, and distributions by hand."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
sys.path.append(str(Path(__file__).parent))  # fresh processes look for the bodies there

import rank_bodies

from pie_p.errors import InputError
from pie_p.profiling.ranks import run_ranks
from pie_p.profiling.waits import Distribution, Skew


@pytest.fixture(scope="module")
def skew() -> Skew:
    return run_ranks(rank_bodies.injected, 4)[0]


@pytest.mark.parametrize(("turn", "delay_s"), [(1, 0.005), (2, 0.020), (3, 0.050)])
def test_a_late_rank_shows_as_wait_on_the_others(skew: Skew, turn: int, delay_s: float) -> None:
    others_s = np.delete(skew.meetings.wait_s[turn::4], 2, axis=1)
    really_s = skew.late_s[turn::4, None]  # a sleep is never shorter than asked, and longer on a busy machine
    assert np.median(others_s - really_s) == pytest.approx(0.0, abs=max(0.1 * delay_s, 0.001))


@pytest.mark.parametrize(("turn", "delay_s"), [(1, 0.005), (2, 0.020), (3, 0.050)])
def test_a_late_rank_does_not_show_as_transfer(skew: Skew, turn: int, delay_s: float) -> None:
    usual_s, delayed_s = skew.meetings.transfer_s[0::4], skew.meetings.transfer_s[turn::4]
    # A busy machine blurs both medians; what cannot be told from that blur is no transfer.
    blur_s = 3 * 1.25 * np.hypot(usual_s.mean(axis=1).std(), delayed_s.mean(axis=1).std()) / np.sqrt(len(usual_s))
    assert np.median(delayed_s) - np.median(usual_s) < max(0.1 * delay_s, 0.001) + blur_s


def test_the_late_rank_itself_hardly_waits(skew: Skew) -> None:
    assert np.median(skew.meetings.wait_s[3::4, 2]) < 0.001


def test_a_distribution_by_hand() -> None:
    times = Distribution.of(np.array([[0.0, 1.0], [2.0, 3.0]]))
    assert (times.mean_s, times.p50_s, times.count) == (1.5, 1.5, 4)
    assert times.p90_s == pytest.approx(2.7)
    assert times.spread_s == pytest.approx(1.25**0.5)
    with pytest.raises(InputError, match="needs one value or more, there are 0"):
        Distribution.of(np.empty(0))
