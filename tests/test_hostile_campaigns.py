"""What careless and unlucky people do to campaigns: plans that cannot be, two at once, kills, full disks. One line each, nothing torn."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from pie_p.errors import DeviceError, InputError, PiePError, ProfileError
from pie_p.profiles import verify_profile
from pie_p.profiling.campaign import LOCK, CampaignPlan, run_campaign
from pie_p.profiling.measurement import Procedure
from pie_p.profiling.plans import checked_plan
from pie_p.profiling.progress import Progress
from pie_p.profiling.ranks import run_ranks
from pie_p.profiling.simulated_host import SimulatedGpu, SimulatedKernel, simulated_bench
from pie_p.profiling.start import load_any_plan, start

QUICK = Procedure(enough_s=1.6, enough_iterations=8, trials=2, rise_s=0.2, cool_down_s=0.1, warm_up_s=0.1)
PLAN = CampaignPlan(name="quick", gpu="h100-sxm-80gb", kernels={"norm": 4}, procedure=QUICK)
HEAD = 'name = "x"\ngpu = "h100-sxm-80gb"\n'
CPU = 'name = "x"\ngpu = "cpu"\n'


def campaign(plan: CampaignPlan, folder: Path, *, on_progress: object = None, budget_s: float | None = None) -> Progress:
    bench, clock, board = simulated_bench(SimulatedGpu())
    make = partial(SimulatedKernel, gpu=SimulatedGpu(), clock=clock, board=board)
    return run_campaign(plan, folder, bench, make, on_progress=on_progress, budget_s=budget_s)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('name = "x"\ngpu = "h100"\n[kernels]\nnorm = 1\n', "no GPU 'h100' in the catalogue. Did you mean: h100-sxm-80gb"),
        (HEAD + "[kernels]\n", "nothing to measure: give a kind of kernel one point or more"),
        (HEAD + "[kernels]\nlinear = 0\n", "nothing to measure"),
        (HEAD + "[kernels]\nlinear = -3\n", "kernels.linear: Input should be greater than or equal to 0 (got '-3')"),
        (HEAD + "[kernels]\nlinear = 1000000000\n", "kernels.linear: Input should be less than or equal to 1024"),
        (HEAD + "[kernels]\nnorm = 1\n[procedure]\nenough_s = nan\n", "enough_s is nan"),
        (HEAD + "[kernels]\nnorm = 1\n[procedure]\nenough_s = inf\n", "enough_s is inf; a measurement needs enough_s of 0 to 3600"),
        (HEAD + "[kernels]\nnorm = 1\n[procedure]\ncool_down_s = -5\n", "cool_down_s is -5"),
        (HEAD + "[kernels]\nnorm = 1\n[procedure]\ntrials = 1000000000\n", "trials is 1000000000; a measurement needs trials of 0 to 100"),
        (CPU + "group_sizes = [1000000]\n", "group_sizes.0: Input should be less than or equal to 1024 (got '1000000')"),
        (CPU + "group_sizes = []\n", "group_sizes: Tuple should have at least 1 item"),
        (CPU + 'group_sizes = [2]\ncollectives = ["linear"]\n', "collectives.0: Input should be 'all_reduce'"),
        (CPU + "group_sizes = [2]\nmost_payload_bytes = 0\n", "most_payload_bytes: Input should be greater than or equal to 1024"),
        (CPU + "group_sizes = [2]\naway_s = 1e6\n", "away_s: Input should be less than or equal to 50"),
        (CPU + "layouts = [{tp = 0}]\n", "tp is 0; give 1 to 1024"),
        (CPU + "layouts = [{tp = 1000, dp = 1000}]\n", "1000000 ranks; at most 1024 are possible"),
        (CPU + "layouts = [{tp = 1}]\n[shape]\nlayers = 1000000000\n", "layers of the transformer is 1000000000; give 1 to 512"),
        (CPU + "layouts = []\n", "layouts: Tuple should have at least 1 item"),
    ],
)
def test_a_plan_that_cannot_be_is_one_line_before_anything_is_measured(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(PiePError) as caught:
        load_any_plan(tmp_path / "plan.toml")
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_board_may_be_named_as_nvml_does_and_rows_carry_the_catalogues_name() -> None:
    plan = checked_plan("plan", {"name": "x", "gpu": "NVIDIA H100 80GB HBM3", "kernels": {"norm": 1}}, CampaignPlan)
    assert plan.gpu == "h100-sxm-80gb"


def test_times_of_cpu_ranks_do_not_pass_for_those_of_a_board(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(HEAD + 'group_sizes = [2]\nbackend = "gloo"\n')
    with pytest.raises(InputError, match="backend 'gloo' with gpu 'h100-sxm-80gb' is neither"):
        start(load_any_plan(tmp_path / "plan.toml"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_campaigns_do_not_measure_into_one_folder_at_once(tmp_path: Path) -> None:
    seen: list[str] = []

    def second(_progress: Progress) -> None:
        with pytest.raises(ProfileError, match=r"another campaign is measuring into .*; wait until it is done") as caught:
            campaign(PLAN, tmp_path)
        seen.append(str(caught.value))

    assert campaign(PLAN, tmp_path, on_progress=second).done == 4
    assert len(seen) == 4
    assert verify_profile(tmp_path).rows("operators") == 4
    assert not (tmp_path / LOCK).exists()
    assert campaign(PLAN, tmp_path).done == 4  # free again


def test_a_procedure_that_nothing_survives_ends_after_eight_points(tmp_path: Path) -> None:
    """A tenth of a second holds one update of the meter: an hour of that helps nobody."""
    short = PLAN.model_copy(update={"kernels": {"norm": 100}, "procedure": Procedure(enough_s=0.1, trials=2)})
    with pytest.raises(DeviceError, match=r"the first 8 points were all rejected, the last because only \d+ meter updates fell inside"):
        campaign(short, tmp_path)
    manifest = verify_profile(tmp_path)
    assert len(manifest.rejected) == 8
    assert manifest.rows("operators") == 0


def test_a_time_box_of_a_second_measures_nothing_and_the_profile_goes_on_later(tmp_path: Path) -> None:
    first = campaign(PLAN, tmp_path, budget_s=1.0)
    assert (first.done, first.total) == (0, 4)
    assert verify_profile(tmp_path).rows("operators") == 0
    assert campaign(PLAN, tmp_path).done == 4


def test_a_disk_without_room_for_samples_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Path.mkdir

    def full(path: Path, *arguments: object, **named: object) -> None:
        if path.name == "samples":
            raise OSError(28, "No space left on device")
        make(path, *arguments, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", full)
        with pytest.raises(ProfileError, match=r"cannot write into .*samples: No space left on device"):
            campaign(PLAN.model_copy(update={"keep_samples": True}), tmp_path)
    assert verify_profile(tmp_path).rows("operators") == 0


def test_a_million_ranks_are_not_started() -> None:
    with pytest.raises(InputError, match="1000000 ranks are not possible; give 1 to 1024"):
        run_ranks(print, 1_000_000)


def test_ranks_end_when_their_campaign_is_killed(tmp_path: Path) -> None:
    """Otherwise they would measure on, and write, beside the campaign that resumes."""
    pytest.importorskip("torch", reason="torch is not installed")
    if not Path("/proc/self/stat").exists():
        pytest.skip("no /proc here to tell which processes live")
    code = (
        "from functools import partial; import rank_bodies; from pie_p.profiling.ranks import run_ranks; "
        f"run_ranks(partial(rank_bodies.beat, folder={str(tmp_path)!r}), 2)"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths})
    files = [tmp_path / "rank-0", tmp_path / "rank-1"]
    _until(lambda: all(file.exists() and file.read_text() for file in files), longest_s=200)
    ranks = [int(file.read_text()) for file in files]
    assert all(_lives(rank) for rank in ranks)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _until(lambda: not any(_lives(rank) for rank in ranks), longest_s=60)


def _lives(process: int) -> bool:
    """Whether a process runs; one that is gone and not yet collected does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _until(true: object, *, longest_s: float) -> None:
    end_s = time.monotonic() + longest_s
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end_s
        time.sleep(0.05)
