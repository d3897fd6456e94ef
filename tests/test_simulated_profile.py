"""The simulated host's profile: complete, verified, and true to its law."""

import numpy as np
import pytest

from pie_p.operators import KINDS
from pie_p.profiles import Profile, load_profile
from pie_p.profiling.simulated_host import SimulatedGpu
from pie_p.profiling.simulated_profile import write_simulated_profile

GPU = SimulatedGpu()


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    folder = tmp_path_factory.mktemp("simulated") / "profile"
    write_simulated_profile(folder, points=3, payload_count=3)
    return load_profile(folder)


def test_every_kind_is_there_and_marked_as_simulated(profile: Profile) -> None:
    assert set(profile.operators["kind"]) | set(profile.collectives["kind"]) == set(KINDS)
    for table in (profile.operators, profile.collectives, profile.waits):
        assert set(table["origin"]) == {"simulated"}


def test_collectives_follow_their_law_through_the_meter(profile: Profile) -> None:
    rows = [row for row in profile.collectives.iter_rows() if row["kind"] == "all_reduce"]
    assert len(rows) == 12  # payloads and one and a half times each, groups
    for row in rows:
        others = row["group_size"] - 1
        truth_s = GPU.link_latency_s * others**0.7 + row["payload_bytes"] / GPU.link_bytes_per_s
        assert row["time_s"] == pytest.approx(truth_s, rel=0.03)
        reached = row["payload_bytes"] / GPU.link_bytes_per_s / truth_s
        assert row["power_w"] == pytest.approx(GPU.wait_w + 90 * reached**0.8, rel=0.02)


def test_waits_are_larger_in_larger_groups(profile: Profile) -> None:
    waits = profile.waits.select(profile.waits["cause"] == "skew")
    two, four = (waits["mean_s"][waits["group_size"] == size] / waits["preceding_s"][waits["group_size"] == size] for size in (2, 4))
    assert np.all(four > two)
    assert np.mean(two) == pytest.approx(0.5642 * GPU.jitter, rel=0.1)  # E[max of two] of a normal


def test_gaps_of_the_host_are_there_as_they_are(profile: Profile) -> None:
    gaps = {row["cause"]: row for row in profile.waits.iter_rows() if row["cause"] != "skew"}
    assert (gaps["launch_gap"]["mean_s"], gaps["host_gap"]["mean_s"]) == (GPU.gap_s, GPU.host_s)
    assert gaps["host_gap"]["power_w"] == GPU.wait_w
