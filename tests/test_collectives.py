"""Collectives and waits over real processes with gloo, and the arithmetic of their moments by hand."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
sys.path.append(str(Path(__file__).parent))  # fresh processes look for the bodies there

import rank_bodies

from pie_p.errors import InputError
from pie_p.profiling.collectives import Meetings, make_collective, payloads
from pie_p.profiling.ranks import Rank, run_ranks


@pytest.fixture(scope="module")
def answers() -> list[dict[str, Any]]:
    return run_ranks(rank_bodies.everything, 2)


def test_every_collective_moves_bytes_after_the_last_arrival(answers: list[dict[str, Any]]) -> None:
    for kind, transfer_s in answers[0]["transfer_s"].items():
        receivers = transfer_s[:, 1:] if kind == "send_recv" else transfer_s  # a small send is buffered: it ends before it is received
        assert np.all(receivers > 0), kind
    assert answers[0]["sum"] == answers[1]["sum"] == 1.0


def test_every_rank_holds_the_same_moments(answers: list[dict[str, Any]]) -> None:
    for kind in answers[0]["transfer_s"]:
        assert np.array_equal(answers[0]["transfer_s"][kind], answers[1]["transfer_s"][kind])


def test_four_thousand_times_the_bytes_take_longer(answers: list[dict[str, Any]]) -> None:
    small_s, large_s = answers[0]["sizes"].values()
    assert large_s > small_s


def test_one_host_has_one_clock(answers: list[dict[str, Any]]) -> None:
    assert {answer["offset"].offset_s for answer in answers} == {0.0}


def test_waits_after_real_work_come_with_the_work_that_caused_them(answers: list[dict[str, Any]]) -> None:
    skew = answers[0]["skew"]
    assert (skew.preceding, skew.group_size, skew.payload_bytes) == ("linear", 2, 4096)
    assert skew.work.count == skew.wait.count == 16
    assert 0 <= skew.wait.p50_s <= skew.wait.p90_s <= skew.wait.p99_s
    assert np.all(skew.meetings.wait_s.min(axis=1) == 0)  # the last to arrive waits for nobody


def test_the_power_of_waiting_is_that_of_the_waiting_boards(answers: list[dict[str, Any]]) -> None:
    power = answers[0]["power"]
    assert power.mode == "blocking"
    assert power.power_w[0] is None  # the late rank does not wait
    assert power.power_w[1] == pytest.approx(181.0, rel=0.01)
    assert power.wait_s == pytest.approx(1.0, abs=0.5)


def test_waits_and_transfers_by_hand() -> None:
    met = Meetings(kind="all_reduce", payload_bytes=1.0, arrival_s=np.array([[1.0, 3.0, 2.0]]), end_s=np.array([[4.0, 4.0, 5.0]]))
    assert met.wait_s.tolist() == [[2.0, 0.0, 1.0]]
    assert met.transfer_s.tolist() == [[1.0, 1.0, 2.0]]


def test_partners_wait_for_each_other_and_not_for_other_pairs() -> None:
    met = Meetings(kind="send_recv", payload_bytes=1.0, arrival_s=np.array([[1.0, 3.0, 9.0, 8.0, 5.0]]), end_s=np.full((1, 5), 10.0))
    assert met.wait_s.tolist() == [[2.0, 0.0, 0.0, 1.0, 0.0]]


def test_payloads_cover_the_range_from_the_first() -> None:
    assert payloads(3) == [1 << 20, 1 << 10, 1 << 30]
    assert sorted(payloads(99)) == [1 << exponent for exponent in range(10, 31)]


def test_what_is_no_collective_is_refused_with_what_is() -> None:
    with pytest.raises(InputError, match="'linear' is no collective; allowed: all_gather, all_reduce"):
        make_collective(Rank(index=0, size=1, backend="gloo", device="cpu"), "linear", 1024)
