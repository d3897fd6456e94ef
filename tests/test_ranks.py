"""Ranks that die, fail or hang: a clear error that names the culprit, and nobody left behind."""

import multiprocessing
import sys
import time
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
sys.path.append(str(Path(__file__).parent))  # fresh processes look for the bodies there

import rank_bodies

from pie_p.errors import InputError
from pie_p.profiling.ranks import RankError, joined, run_ranks


def test_a_rank_that_dies_is_named_and_the_others_are_ended() -> None:
    with pytest.raises(RankError, match=r"rank 1 of 3 died \(exit code 9\); all others were ended"):
        run_ranks(partial(rank_bodies.die, which=1), 3)
    assert multiprocessing.active_children() == []


def test_a_rank_that_fails_is_named_rather_than_those_that_lost_it() -> None:
    with pytest.raises(RankError, match="rank 0 of 2 failed: ValueError: this rank has a bad day"):
        run_ranks(partial(rank_bodies.fail, which=0), 2)


def test_a_rank_that_hangs_is_named_when_the_time_is_up() -> None:
    started_s = time.monotonic()
    with pytest.raises(RankError, match=r"rank (0, )?1 of 2 did not answer in 3 s"):
        run_ranks(partial(rank_bodies.hang, which=1), 2, timeout_s=3.0)
    assert time.monotonic() - started_s < 500  # the rank would have slept for 600 s
    assert multiprocessing.active_children() == []


def test_a_collective_has_a_time_out_of_its_own() -> None:
    with pytest.raises(RankError, match=r"rank 0 of 2 failed: .*[Tt]im"):
        run_ranks(partial(rank_bodies.stay_away, which=1), 2, collective_timeout_s=3.0)


def test_without_a_launcher_the_error_says_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InputError, match="RANK is not set: start this with torchrun"), joined():
        pass
