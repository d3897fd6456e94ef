"""Results: the prediction is that of predict_energy, its errors are ratios, and a run teaches a predictor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_server import GOOD, PROMPT_TOKENS, TOKENS, Good, scripted
from test_bench_running import steady_boards

from pie_p import predict_energy
from pie_p.bench.plans import BenchPlan, Deployed, Load, ServerTarget
from pie_p.bench.prompts import load_prompts
from pie_p.bench.results import BenchResult, bench_profile, load_run
from pie_p.bench.running import bench
from pie_p.end_to_end import measured_runs
from pie_p.errors import InputError, ProfileError
from pie_p.predictor import Predictor
from pie_p.profiles import load_profile

ON_H100 = Deployed(llm="llama-3.1-8b", gpu="h100-sxm-80gb", tp=2)


def run(folder: Path, *, deployed: Deployed = ON_H100, behaviour: Any = GOOD, load: Load | None = None, **more: Any) -> BenchResult:
    with scripted(behaviour) as server:
        target = ServerTarget(url=server.url, served="tiny")
        plan = BenchPlan(target=target, load=load or Load(concurrency=4, warmup=0), deployed=deployed)
        return bench(plan, load_prompts([str(n) for n in range(12)]), folder, predictor="physics", **more)


def asked_again(result: BenchResult, **more: Any) -> Any:
    """The same question to predict_energy."""
    arguments = {"tp": 2, "batch": max(1.0, result.concurrency), "mode": "steady", "predictor": "physics", **more}
    return predict_energy("llama-3.1-8b", gpu="h100-sxm-80gb", prompt_tokens=PROMPT_TOKENS, output_tokens=[TOKENS], **arguments)


def test_the_prediction_is_that_of_predict_energy_at_the_observed_concurrency(tmp_path: Path) -> None:
    result = run(tmp_path, behaviour=Good(pause_s=0.02), metering=steady_boards(2))
    prediction, told = asked_again(result), result.prediction
    assert told is not None
    assert told["energy_per_output_token_j"] == pytest.approx(prediction.energy_per_output_token_j)
    assert told["energy_per_response_j"] == pytest.approx(prediction.energy_j)
    assert told["power_w"] == pytest.approx(prediction.avg_power_w)
    assert told["tokens_per_s"] == pytest.approx(prediction.request.batch / prediction.time_per_token_s)
    totals = result.totals
    for name in ("energy_per_output_token_j", "energy_per_response_j", "power_w", "tokens_per_s"):
        assert told["errors"][name] == pytest.approx(told[name] / getattr(totals, name) - 1.0)
    assert told["errors"]["power_w"] == pytest.approx(prediction.avg_power_w / 600.0 - 1.0)  # two boards of 300 W


def test_without_a_meter_energy_is_predicted_power_times_measured_time_and_called_so(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result.energy_source == "predicted"
    assert result.totals.joules == pytest.approx(asked_again(result).avg_power_w * result.totals.seconds)
    assert result.prediction is not None
    assert set(result.prediction["errors"]) == {"tokens_per_s", "ttft_s", "tpot_s"}  # energies are not held against themselves
    row = result.row()
    assert "avg_power_w" not in row
    assert "energy_per_output_token_j" not in row
    assert row["meter_scope"] == "none"


def test_static_batches_are_predicted_as_static(tmp_path: Path) -> None:
    result = run(tmp_path, load=Load(batch=4, warmup=0))
    assert result.row()["mode"] == "static"
    assert result.prediction is not None
    again = asked_again(result, mode="static")
    assert result.prediction["energy_per_response_j"] == pytest.approx(again.energy_j)


def test_a_lower_power_limit_that_a_meter_reads_enters_the_prediction(tmp_path: Path) -> None:
    boards = steady_boards(2)
    capped = type(boards)(make_samplers=boards.make_samplers, boards=boards.boards, limits_w=(300.0, 300.0))
    result = run(tmp_path, metering=capped)
    assert [meter.power_limit_w for meter in result.manifest.meters] == [300.0, 300.0]
    assert result.row()["power_limit_w"] == 300.0
    assert result.prediction is not None
    assert result.prediction["power_w"] == pytest.approx(asked_again(result, power_limit_w=300.0).avg_power_w)


def test_a_run_that_says_too_little_has_no_prediction_and_says_why(tmp_path: Path) -> None:
    bare = run(tmp_path / "a", deployed=Deployed())
    assert (bare.prediction, bare.energy_source, bare.totals.joules) == (None, "unknown", None)
    assert any("no prediction: say which LLM" in note for note in bare.manifest.notes)
    with pytest.raises(InputError, match="the run does not say which LLM the server has and on what"):
        bare.row()
    blind = run(tmp_path / "b", behaviour=Good(usage=None))
    assert any("how many prompt tokens it read; give a tokenizer" in note for note in blind.manifest.notes)
    assert any("tokens are counted as pieces of the stream" in note for note in blind.manifest.notes)
    huge = run(tmp_path / "c", deployed=Deployed(llm="deepseek-v3", gpu="l4-24gb"))
    assert any(note.startswith("no prediction: ") for note in huge.manifest.notes)
    assert huge.totals.responses == 12  # what was measured is not lost to a deployment that cannot be


def test_a_row_obeys_littles_law_and_becomes_a_case(tmp_path: Path) -> None:
    result = run(tmp_path, behaviour=Good(pause_s=0.02), metering=steady_boards(2))
    row = result.row()
    assert row["time_per_token_s"] * row["throughput_tokens_per_s"] == pytest.approx(row["batch"])
    assert row["output_second_moment"] == TOKENS**2
    runs = measured_runs([row])
    assert runs.cases[0].deployment.plan.tp == 2
    assert runs.power_w[0] == pytest.approx(300.0)
    assert runs.time_per_token_s[0] == row["time_per_token_s"]


def test_runs_become_a_profile_and_a_calibration_that_comes_closer(tmp_path: Path) -> None:
    results = [run(tmp_path / str(load.together), load=load) for load in (Load(concurrency=2, warmup=0), Load(concurrency=6, warmup=0))]
    bench_profile(results, tmp_path / "profile")
    table = load_profile(tmp_path / "profile").end_to_end
    assert table["batch"] == pytest.approx([result.concurrency for result in results])
    assert set(table["origin"]) == {"measured"}
    with pytest.raises(ProfileError, match="holds a profile already"):
        bench_profile(results, tmp_path / "profile")
    predictor = Predictor()
    rows = [result.row() for result in results]
    calibration = predictor.calibrate(rows)
    assert calibration.rows == 2
    assert np.isfinite(calibration.after["time"])
    assert calibration.after["time"] <= calibration.before["time"]


def test_simulated_power_makes_no_measured_row(tmp_path: Path) -> None:
    result = run(tmp_path / "run", metering=steady_boards(2))
    assert (result.energy_source, result.row()["origin"]) == ("simulated", "simulated")
    assert bench_profile([result], tmp_path / "profile").origin == "simulated"


def test_a_stored_run_says_what_the_fresh_one_said(tmp_path: Path) -> None:
    result = run(tmp_path, metering=steady_boards(2))
    assert load_run(tmp_path).to_dict() == result.to_dict()
