"""A campaign of meetings over gloo: four real ranks, into a profile that verifies."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
sys.path.append(str(Path(__file__).parent))  # fresh processes look for the bodies there

import rank_bodies

from pie_p.errors import DeviceError
from pie_p.profiles import load_profile, verify_profile
from pie_p.profiling.benches import unmetered_bench
from pie_p.profiling.measurement import Procedure
from pie_p.profiling.meetings import MeetingPlan, run_meetings
from pie_p.profiling.meters import MissingFieldError
from pie_p.profiling.window import known_timing

PLAN = MeetingPlan(name="gloo", gpu="cpu", link="loopback", group_sizes=(4, 2), payload_count=2, most_payload_bytes=1 << 20, meetings=6)


def test_unmetered_ranks_give_times_and_waits_and_no_power(tmp_path: Path) -> None:
    run_meetings(PLAN, tmp_path)
    profile = load_profile(tmp_path)
    assert profile.manifest.origin == "measured"
    assert len(profile.collectives) == 2 * 4 + 2 * 5  # a pair is sent and received in the group of two alone
    assert len(profile.waits) == 2 * 2 * 2
    assert set(profile.collectives["group_size"]) == set(profile.waits["group_size"]) == {2.0, 4.0}
    assert set(profile.collectives["payload_bytes"]) == {1024.0, 32768.0}
    assert np.all(np.isnan(profile.collectives["power_w"]))
    assert np.all(profile.collectives["time_s"] > 0)
    run_meetings(PLAN, tmp_path)  # nothing is left to do
    assert verify_profile(tmp_path) == profile.manifest


def test_metered_ranks_stay_in_step_and_each_gives_its_power(tmp_path: Path) -> None:
    short = {"cool_down_s": 0.0, "warm_up_s": 0.05, "enough_s": 1.2, "rise_s": 0.05, "longest_pause_s": 0.05}
    quick = Procedure(**short, enough_iterations=6, trials=2, most_spread=10)
    small = {"payload_count": 1, "collectives": ("all_reduce",), "meetings": 4, "most_payload_bytes": 4096, "away_s": 0.8}
    plan = MeetingPlan(name="sim", gpu="h100-sxm-80gb", procedure=quick, **small)
    run_meetings(plan, tmp_path, make_bench=rank_bodies.metered)
    profile = load_profile(tmp_path)
    assert profile.manifest.origin == "simulated"
    assert profile.collectives["power_w"].tolist() == pytest.approx([120.0, 130.0])
    assert [re.findall(r"rank=.|uuid=SIM-.", detail) for detail in profile.collectives["detail"]] == [
        ["rank=0", "uuid=SIM-0"],
        ["rank=1", "uuid=SIM-1"],
    ]
    assert all("power_w_of_rank_1=130.00" in detail for detail in profile.waits["detail"])
    assert profile.waits["power_w"] == pytest.approx(np.full(4, 130.0))  # rank 0 is the one that stays away


def test_an_unmetered_bench_has_no_power_to_give() -> None:
    with pytest.raises(MissingFieldError, match="host without a power meter"):
        unmetered_bench().meter.read_power_w()


def test_an_unpublished_meter_is_an_error_that_says_how_to_find_its_timing() -> None:
    with pytest.raises(DeviceError, match="timing of 'NVIDIA H200' is not published; find it with find_timing"):
        known_timing("NVIDIA H200")
