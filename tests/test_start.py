"""Starting a plan: told apart by what it has, and started by torchrun as well."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # fresh processes look for the bodies there

import rank_bodies

from pie_p.errors import DeviceError, InputError
from pie_p.profiles import load_profile
from pie_p.profiling.campaign import CampaignPlan
from pie_p.profiling.meetings import MeetingPlan
from pie_p.profiling.processes import fresh_context
from pie_p.profiling.runs import RunPlan
from pie_p.profiling.start import lacks, load_any_plan, main, start

KERNELS = 'name = "k"\ngpu = "h100-sxm-80gb"\n[kernels]\nnorm = 2\n[procedure]\nenough_s = 1.6\nenough_iterations = 8\ntrials = 2\n'
MEETINGS = (
    'name = "m"\ngpu = "cpu"\ngroup_sizes = [2]\npayload_count = 1\ncollectives = ["all_reduce"]\nmost_payload_bytes = 4096\nmeetings = 4\n'
)
ALONE = 'name = "r"\ngpu = "cpu"\nlayouts = [{tp = 1}]\n[procedure]\nenough_iterations = 1\n'
RUNS = 'name = "r"\ngpu = "cpu"\nlayouts = [{tp = 2}]\n[procedure]\nenough_iterations = 1\n'


def plan_at(folder: Path, text: str) -> Path:
    (folder / "plan.toml").write_text(text)
    return folder / "plan.toml"


@pytest.mark.parametrize(("text", "kind"), [(KERNELS, CampaignPlan), (MEETINGS, MeetingPlan), (RUNS, RunPlan)])
def test_a_plan_is_told_by_what_it_has(tmp_path: Path, text: str, kind: type) -> None:
    assert type(load_any_plan(plan_at(tmp_path, text))) is kind


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('name = "n"\ngpu = "cpu"\n', "a plan has one of kernels, group_sizes and layouts; it has name, gpu"),
        ("", "it has nothing"),
        ("group_sizes = [2]\nlayouts = [{tp = 2}]\n", "it has group_sizes and layouts"),
        ('name = "n"\ngpu = "cpu"\ngroup_sizes = [0]\n', r"group_sizes.0: Input should be greater than or equal to 2 \(got '0'\)"),
    ],
)
def test_what_is_no_plan_is_refused_with_what_one_has(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        load_any_plan(plan_at(tmp_path, text))


def test_a_plan_of_kernels_is_tried_out_on_a_simulated_board(tmp_path: Path) -> None:
    plan = load_any_plan(plan_at(tmp_path, KERNELS))
    assert start(plan, tmp_path / "out", simulated=True).done == 2
    assert load_profile(tmp_path / "out").manifest.origin == "simulated"


def test_what_a_host_lacks_is_said_without_measuring(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    plan = load_any_plan(plan_at(tmp_path, KERNELS))
    findings = {what: (state, what_to_do) for what, state, what_to_do in lacks(plan, tmp_path / "out")}
    assert findings["plan"][0].startswith("k: 2 points for h100-sxm-80gb, 0 of them measured")
    assert findings["folder"] == (f"{tmp_path / 'out'} is free", "")
    if not torch.cuda.is_available():
        assert findings["boards"] == ("0 visible, 1 wanted", "a GPU host and a CUDA build of torch, or --simulated to try the plan")
        with pytest.raises(DeviceError, match="torch finds no CUDA GPU here"):
            start(plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_torchrun_starts_the_same_run(tmp_path: Path) -> None:
    """One process, because each imports torch for seconds; that two find each other is the next test's business."""
    pytest.importorskip("torch", reason="torch is not installed")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    command += ["-m", "pie_p.profiling.start", str(plan_at(tmp_path, ALONE)), "--out", str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(load_profile(tmp_path / "out").end_to_end) == 1


def test_under_a_launcher_the_group_is_the_world(tmp_path: Path) -> None:
    """Two processes with the variables that torchrun sets, without its launcher."""
    pytest.importorskip("torch", reason="torch is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    plan, out = str(plan_at(tmp_path, MEETINGS)), str(tmp_path / "out")
    ranks = [fresh_context().Process(target=rank_bodies.launched, args=(index, 2, port, plan, out)) for index in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=200)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    profile = load_profile(out)
    assert (len(profile.collectives), len(profile.waits)) == (1, 4)
    assert set(profile.collectives["group_size"]) == {2.0}


def test_torchrun_measures_no_kernels(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a plan of kernels: one board measures it, pie-p profile"):
        main([str(plan_at(tmp_path, KERNELS)), "--out", str(tmp_path / "out")])
