"""Parallel runs as rows of a profile: the parts of every layout add up to its whole, in the tables as they are stored."""

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from pie_p.errors import InputError
from pie_p.profiles import Profile, load_profile, verify_profile
from pie_p.profiling.benches import simulated_rank_bench
from pie_p.profiling.measurement import Procedure
from pie_p.profiling.plans import checked_plan
from pie_p.profiling.progress import Progress
from pie_p.profiling.runners import Layout
from pie_p.profiling.runs import RunPlan, counted, run_layouts
from pie_p.profiling.transformer import Shape

QUICK = Procedure(enough_s=0.5, enough_iterations=2)
PLAN = RunPlan(name="runs", gpu="cpu", layouts=(Layout(tp=2), Layout(pp=2, micro_batches=2)), shape=Shape(layers=2), procedure=QUICK)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "profile"
    seen: list[Progress] = []
    run_layouts(PLAN, place, make_bench=simulated_rank_bench, on_progress=seen.append)
    assert [progress.done for progress in seen] == [1, 2]
    return place


@pytest.fixture(scope="module")
def profile(folder: Path) -> Profile:
    return load_profile(folder)


def number(detail: str, name: str) -> float:
    return float(re.findall(rf"{name}=([-+.\de]+)", detail)[0])


def parts_j(profile: Profile, layout: str) -> float:
    """Energy per step of every row of a layout [J]."""
    energy_j = 0.0
    for table in (profile.operators, profile.collectives, profile.waits):
        for row in table.iter_rows():
            if layout not in row["detail"]:
                continue
            calls = row["calls"] if table.name != "waits" else row["count"] / number(row["detail"], "steps")
            energy_j += calls * row["mean_s" if table.name == "waits" else "time_s"] * row["power_w"]
    return energy_j


@pytest.mark.parametrize("layout", ["tp=2,pp=1", "tp=1,pp=2"])
def test_the_rows_of_a_layout_add_up_to_its_measured_energy(profile: Profile, layout: str) -> None:
    [whole] = [row for row in profile.end_to_end.iter_rows() if layout in row["detail"]]
    step_j = whole["energy_per_output_token_j"] * whole["batch"]
    assert step_j == pytest.approx(whole["avg_power_w"] * whole["ttft_s"])
    assert parts_j(profile, layout) == pytest.approx(step_j, rel=0.03)
    unexplained_j = number(whole["detail"], "unexplained_j")
    assert parts_j(profile, layout) + unexplained_j == pytest.approx(step_j, rel=1e-4)


def test_every_row_has_its_place_in_the_tree_its_rank_and_its_board(profile: Profile) -> None:
    assert set(profile.operators["path"]) >= {"prefill/embedding", "prefill/layer/attention", "prefill/layer/mlp", "prefill/lm_head"}
    assert set(profile.collectives["kind"]) == {"all_reduce", "send_recv"}
    assert {"skew", "bubble", "launch_gap"} <= set(profile.waits["cause"])
    for table in (profile.operators, profile.collectives, profile.waits):
        assert set(table["gpu"]) == {"cpu"}
        assert set(table["origin"]) == {"simulated"}
        ranks = {int(number(detail, "rank")) for detail in table["detail"]}
        assert ranks == {0, 1}
        assert all(f"uuid=SIM-{int(number(detail, 'rank'))}" in detail for detail in table["detail"])


def test_meetings_carry_what_a_rank_hands_over(profile: Profile) -> None:
    rows = {row["kind"]: row for row in profile.collectives.iter_rows()}
    assert rows["all_reduce"]["payload_bytes"] == 4 * 16 * 256 * 4  # sequences, tokens, width, bytes of a 32-bit number
    assert rows["send_recv"]["payload_bytes"] == rows["all_reduce"]["payload_bytes"] / 2  # micro-batches
    assert rows["all_reduce"]["calls"] == 2  # one path for attention, one for the MLP; each meets once in each of two layers


def test_what_was_run_is_not_run_again(folder: Path) -> None:
    before = verify_profile(folder)
    assert run_layouts(PLAN, folder, make_bench=simulated_rank_bench).done == 2
    assert verify_profile(folder) == before


def test_without_a_meter_there_are_times_and_no_power(tmp_path: Path) -> None:
    run_layouts(PLAN.model_copy(update={"layouts": (Layout(tp=2),)}), tmp_path)
    profile = load_profile(tmp_path)
    assert profile.manifest.origin == "measured"
    assert np.all(profile.operators["time_s"] > 0)
    assert np.all(np.isnan(profile.operators["power_w"]))
    assert profile.end_to_end["meter_scope"].tolist() == ["none"]


def test_modules_are_counted_like_operators() -> None:
    """Per rank of two, 64 tokens, width 256, 8 heads, intermediate 512: by hand."""
    plan = PLAN.model_copy(update={"shape": Shape(width=256, intermediate=512)})
    mlp = counted("mlp", plan, Layout(tp=2))
    assert mlp.weight_bytes == 3 * 256 * 256 * 2
    assert mlp.flops == pytest.approx(3 * 2 * 64 * 256 * 256, rel=0.01)  # the activation adds little
    attention = counted("attention", plan, Layout(tp=2))
    assert attention.weight_bytes == 4 * 256 * 128 * 2
    assert attention.flops > 4 * 2 * 64 * 256 * 128


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"gpu": "h100-sxm-80gb"}, "gpu must be 'cpu' with gloo and only there"),
        ({"layouts": [{"tp": 3}]}, "8 heads over tp 3"),
        ({"layouts": [{"pp": 5}]}, "4 layers cannot fill 5 pipeline stages; use at most 4"),
        ({"layouts": []}, "layouts: .* at least 1"),
    ],
)
def test_a_plan_that_cannot_run_is_refused_before_anything_starts(fields: dict[str, object], what: str) -> None:
    with pytest.raises(InputError, match=what):
        checked_plan("plan.toml", {"name": "runs", "gpu": "cpu", "layouts": [{"tp": 2}], **fields}, RunPlan)
