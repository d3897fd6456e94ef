"""Campaigns: the time box, resuming, kills, failures, and a profile that gives the simulated law back."""

import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))  # fresh processes look for the worker there

import campaign_worker

from pie_p.errors import MissingExtraError, ProfileError
from pie_p.operators import Operator
from pie_p.profiles import load_profile, verify_profile
from pie_p.profiling.campaign import CampaignPlan, remaining, run_campaign
from pie_p.profiling.measurement import Procedure
from pie_p.profiling.meters import LostGpuError
from pie_p.profiling.processes import fresh_context
from pie_p.profiling.progress import Progress
from pie_p.profiling.samples import Samples
from pie_p.profiling.simulated_host import SimulatedGpu, SimulatedKernel, simulated_bench
from pie_p.profiling.torch_kernels import UnsupportedKernelError

GPU = SimulatedGpu()
QUICK = Procedure(enough_s=1.6, enough_iterations=8, trials=2, rise_s=0.2, cool_down_s=0.1, warm_up_s=0.1)
Fails = dict[str, Exception]
PLAN = CampaignPlan(name="quick", gpu="h100-sxm-80gb", kernels={"linear": 8, "norm": 4, "attention_decode": 4}, procedure=QUICK)


def campaign(plan: CampaignPlan, folder: Path, *, budget_s: float | None = None, fails: Fails | None = None) -> list[Progress]:
    bench, clock, board = simulated_bench(GPU)
    seen: list[Progress] = []

    def make(operator: Operator) -> SimulatedKernel:
        if fails and operator.kind in fails:
            raise fails[operator.kind]
        return SimulatedKernel(operator, GPU, clock, board)

    run_campaign(plan, folder, bench, make, budget_s=budget_s, on_progress=seen.append)
    return seen


def test_a_profile_gives_the_simulated_law_back_through_the_meters_artefacts(tmp_path: Path) -> None:
    campaign(PLAN, tmp_path)
    profile = load_profile(tmp_path)
    assert profile.manifest.origin == "simulated"
    assert len(profile.operators) == 16
    points = {(operator.kind, operator.flops, operator.hbm_bytes): operator for operator in PLAN.points()}
    for row in profile.operators.iter_rows():
        operator = points[row["kind"], row["flops"], row["hbm_bytes"]]
        assert row["time_s"] * row["power_w"] == pytest.approx(GPU.time_s(operator) * GPU.power_w(operator), rel=0.02)
        assert row["spread_s"] == pytest.approx(GPU.jitter * GPU.time_s(operator), rel=0.8)
        assert "uuid=SIM," in row["detail"]


def test_kinds_take_turns_so_that_an_early_end_has_covered_all() -> None:
    assert [operator.kind for operator in PLAN.points()[:6]] == ["linear", "norm", "attention_decode"] * 2


def test_the_time_box_holds_and_the_rest_comes_with_the_next_run(tmp_path: Path) -> None:
    bench, clock, board = simulated_bench(GPU)
    make = partial(SimulatedKernel, gpu=GPU, clock=clock, board=board)
    first = run_campaign(PLAN, tmp_path, bench, make, budget_s=30.0)
    assert clock.now_s() <= 30.0
    assert 2 <= first.done < 16
    assert len(list(remaining(PLAN, tmp_path))) == 16 - first.done
    assert campaign(PLAN, tmp_path)[-1].done == 16
    assert len(load_profile(tmp_path).operators) == 16


def test_progress_tells_points_and_time_left(tmp_path: Path) -> None:
    seen = campaign(PLAN, tmp_path)
    assert [progress.done for progress in seen] == list(range(1, 17))
    assert seen[7].left_s == pytest.approx(seen[0].left_s * 8 / 15, rel=0.3)  # type: ignore[operator]
    assert str(seen[-1]).startswith("16/16 points, 0 rejected, 0.0 min left: kind=")


def test_what_does_not_run_is_kept_with_its_reason_and_not_tried_again(tmp_path: Path) -> None:
    fails = {"norm": UnsupportedKernelError("no such kernel here"), "linear": RuntimeError("CUDA out of memory")}
    assert campaign(PLAN, tmp_path, fails=fails)[-1].rejected == 12
    reasons = Counter(item.reason for item in load_profile(tmp_path).manifest.rejected)
    assert reasons == {
        "did not run: UnsupportedKernelError: no such kernel here": 4,
        "did not run: RuntimeError: CUDA out of memory": 8,
    }
    assert campaign(PLAN, tmp_path) == []  # nothing is left to do


def test_a_measurement_that_cannot_be_trusted_is_kept_with_its_figures(tmp_path: Path) -> None:
    shaky = PLAN.model_copy(update={"kernels": {"norm": 2}, "procedure": Procedure(enough_s=0.4, rise_s=0.2, trials=2)})
    campaign(shaky, tmp_path)
    manifest = verify_profile(tmp_path)
    assert len(manifest.rejected) == 2
    assert "meter updates fell inside the busy time" in manifest.rejected[0].reason
    assert "time_s=" in manifest.rejected[0].reason


def test_a_board_lost_midway_ends_the_campaign_and_what_was_measured_is_safe(tmp_path: Path) -> None:
    with pytest.raises(LostGpuError, match="gone"):
        campaign(PLAN, tmp_path, fails={"norm": LostGpuError("gone")})
    assert len(load_profile(tmp_path).operators) == 1
    assert campaign(PLAN, tmp_path)[-1].done == 16


def test_samples_are_kept_when_asked_for(tmp_path: Path) -> None:
    campaign(PLAN.model_copy(update={"kernels": {"norm": 1}, "keep_samples": True}), tmp_path)
    [path] = (tmp_path / "samples").glob("*.parquet")
    assert len(Samples.load(path)) > 100


def test_samples_are_kept_within_a_bound_that_may_change_when_the_campaign_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("pysz", reason="pysz is not installed: pip install 'pie_p[lossy]'")
    plan = PLAN.model_copy(update={"kernels": {"norm": 3}, "samples_bound_w": 2.0})
    campaign(plan, tmp_path, budget_s=10.0)
    first = {path.name for path in (tmp_path / "samples").glob("*.parquet")}
    campaign(plan.model_copy(update={"samples_bound_w": 0.5}), tmp_path)
    bounds_w = {path.name: Samples.load(path).bound_w for path in (tmp_path / "samples").glob("*.parquet")}
    assert len(bounds_w) == 3
    assert bounds_w == {name: 2.0 if name in first else 0.5 for name in bounds_w}
    assert 0 < len(first) < 3


def test_a_missing_codec_is_told_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pysz", None)
    with pytest.raises(MissingExtraError, match="'pysz' is not installed"):
        campaign(PLAN.model_copy(update={"samples_bound_w": 1.0}), tmp_path)
    assert not list(tmp_path.iterdir())


def test_another_plan_does_not_go_into_the_same_folder(tmp_path: Path) -> None:
    campaign(PLAN, tmp_path, budget_s=10.0)
    with pytest.raises(ProfileError, match="was begun with another plan"):
        campaign(PLAN.model_copy(update={"dtypes": ("fp8",)}), tmp_path)


def test_a_read_only_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ProfileError, match="cannot write into"):
        campaign(PLAN, tmp_path / "file" / "profile")


def test_a_full_disk_leaves_a_profile_that_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign(PLAN, tmp_path, budget_s=20.0)
    before = verify_profile(tmp_path)

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(ProfileError, match="No space left on device"):
            campaign(PLAN, tmp_path)
    assert verify_profile(tmp_path) == before
    assert not list(tmp_path.glob(".*.part"))


@pytest.fixture
def start() -> Iterator[Callable[[Path, float], tuple[int, Connection]]]:
    """Starts campaigns in processes forked from one that has imported everything, so that twenty starts are quick; their ids."""
    context = fresh_context()
    ours, theirs = context.Pipe()
    starter = context.Process(target=campaign_worker.starter, args=(theirs,))
    starter.start()
    theirs.close()

    def start_one(folder: Path, pause_s: float) -> tuple[int, Connection]:
        told, tells = context.Pipe(duplex=False)
        ours.send((tells, str(folder), pause_s))
        identity = ours.recv()
        tells.close()
        return identity, told

    yield start_one
    ours.send(None)
    starter.join(timeout=30)
    starter.kill()


def told(pipe: Connection) -> Iterator[object]:
    with contextlib.suppress(EOFError):
        while True:
            yield pipe.recv()


@pytest.mark.parametrize("seed", [7, 8])
def test_killed_at_ten_moments_it_resumes_and_loses_at_most_the_point_in_flight(
    tmp_path: Path, start: Callable[[Path, float], tuple[int, Connection]], seed: int
) -> None:
    """Twenty moments in two campaigns of ten, because every start reads and checks all that was measured before."""
    chance, folder, before = random.Random(seed), tmp_path / "profile", 0
    for _ in range(10):
        worker, pipe = start(folder, 0.01)
        first = pipe.recv()  # it is at work
        assert first == before + 1
        time.sleep(chance.uniform(0.0, 0.1))
        os.kill(worker, signal.SIGKILL)
        last = max([first, *told(pipe)])  # type: ignore[type-var]
        before = verify_profile(folder).rows("operators")  # checks every hash
        assert before in (last, last + 1)  # the point in flight may have been committed and not told
    _, pipe = start(folder, 0.0)
    assert list(told(pipe))[-1] == "finished"
    profile = load_profile(folder)
    assert len(profile.operators) == len(set(profile.operators["detail"])) == len(campaign_worker.PLAN.points()) > before
    assert len(profile.manifest.parts) == 1  # compacted


def test_simulated_waits_grow_with_the_group_as_order_statistics_say() -> None:
    """E[max of g] of a normal: 0.564 spreads for two, 1.029 for four (Harter 1961)."""
    operator = PLAN.points()[0]
    for group_size, expected in ((2, 0.5642), (4, 1.0294)):
        waits_s = GPU.waits_s(operator, group_size, meetings=20000)
        assert np.mean(waits_s) == pytest.approx(expected * GPU.jitter * GPU.time_s(operator), rel=0.05)
