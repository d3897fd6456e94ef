"""`pie-p profile`: a plan into a profile, in its time box, with one line for every mistake."""

import json
from pathlib import Path

import pytest

from pie_p.cli import main
from pie_p.profiles import verify_profile
from pie_p.profiling.samples import Samples

PLAN = 'name = "k"\ngpu = "h100-sxm-80gb"\n[kernels]\nnorm = 3\n[procedure]\nenough_s = 1.6\nenough_iterations = 8\ntrials = 2\n'


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path / "plan.toml"


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `pie-p profile ...`."""
    with pytest.raises(SystemExit) as stopped:
        main(["profile", *map(str, words)])
    shown = capsys.readouterr()
    return int(stopped.value.code or 0), shown.out, shown.err


def test_a_plan_becomes_a_profile_and_each_point_tells_the_time_left(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = plan.parent / "out"
    code, printed, told = said(capsys, plan, "-o", out, "--simulated")
    assert code == 0
    assert printed == f"{out}: operators 3; 0 rejected, 0 of 3 points left\n"
    lines = told.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["1/3", "2/3", "3/3"]
    assert all(" min left: kind=norm" in line for line in lines)
    assert verify_profile(out).rows("operators") == 3


def test_a_time_box_leaves_the_rest_for_the_next_run(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = plan.parent / "out"
    code, printed, _ = said(capsys, plan, "-o", out, "--simulated", "--budget", "10s", "--json")
    first = json.loads(printed)
    assert code == 0
    assert (first["points"], first["rejected"]) == (3, 0)
    assert 0 < first["left"] < 3
    code, _, told = said(capsys, plan, "-o", out, "--simulated")
    assert (code, told) == (2, f"InputError: {out} holds a profile already; add --resume to go on with it, or choose another folder\n")
    code, printed, _ = said(capsys, plan, "-o", out, "--simulated", "--resume")
    assert (code, printed.splitlines()[-1]) == (0, f"{out}: operators 3; 0 rejected, 0 of 3 points left")


def test_check_measures_nothing(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _ = said(capsys, plan, "-o", plan.parent / "out", "--check", "--simulated", "--json")
    assert code == 0
    assert json.loads(printed)[0]["state"] == "k: 3 points for h100-sxm-80gb, 0 of them measured, 0.0 min or more to go"
    assert not (plan.parent / "out").exists()


def test_samples_are_kept_within_the_bound_that_was_asked_for(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pysz", reason="pysz is not installed: pip install 'pie_p[lossy]'")
    out = plan.parent / "out"
    assert said(capsys, plan, "-o", out, "--simulated", "--samples-bound-w", "1")[0] == 0
    assert {Samples.load(path).bound_w for path in (out / "samples").iterdir()} == {1.0}


def test_check_names_the_missing_codec(plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pie_p.profiling.start.find_spec", lambda name: None)
    _, printed, _ = said(capsys, plan, "-o", plan.parent / "out", "--simulated", "--samples-bound-w", "1", "--check", "--json")
    [found] = [line for line in json.loads(printed) if line["what"] == "samples"]
    assert (found["state"], found["do"].startswith("pip install 'pie_p[lossy]'")) == ("missing: pysz", True)


def test_ranks_keep_no_samples(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text('name = "m"\ngpu = "cpu"\nbackend = "gloo"\nlink = "loopback"\ngroup_sizes = [2]\n')
    code, _, told = said(capsys, plan, "-o", plan.parent / "out", "--samples-bound-w", "1")
    assert (code, told) == (
        2,
        "InputError: samples_bound_w = 1: only a plan of kernels keeps raw samples, and 'm' is of ranks; leave it out\n",
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["PLAN", "-o", "x", "--samples-bound-w", "0"],
            "InputError: samples_bound_w = 0.0 is not allowed; give a finite number above 0",
        ),
        (["absent.toml", "-o", "x"], "InputError: cannot read the plan absent.toml: No such file or directory"),
        (["PLAN", "-o", "x", "--budget", "soon"], "InputError: 'soon' is no time box; write 90s, 8m or 1.5h"),
    ],
)
def test_a_mistake_is_one_line(plan: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    code, _, told = said(capsys, *(str(plan) if word == "PLAN" else word for word in words))
    assert (code, told) == (2, f"{line}\n")
