"""The end-to-end fit behind a shipped predictor: known laws come back, groups left out stay unseen, intervals cover."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pie_p.cases import make_case
from pie_p.end_to_end_training import train_end_to_end
from pie_p.errors import ProfileError
from pie_p.predictor import Predictor, load_predictor
from pie_p.profile_manifest import new_manifest
from pie_p.profiles import save_profile
from pie_p.serving import ServingCosts
from pie_p.tables import Table

pytest.importorskip("scipy", reason="fitting needs the extra 'train'")

TRUTH = Predictor(serving={"vllm==0.11.1": ServingCosts()._replace(step_s=4e-3, sequence_s=1e-4)})


def rows(truth: Predictor, *, noise: float = 0.0) -> list[dict[str, Any]]:
    """Runs of four LLMs on two boards whose times and powers follow a known predictor."""
    random = np.random.default_rng(0)
    found = []
    for llm in ("llama-3.1-8b", "qwen3-14b", "gemma-3-12b", "qwen3-30b-a3b"):
        for gpu in ("h100-sxm-80gb", "b200-sxm-180gb"):
            for batch in (8.0, 32.0, 128.0):
                case = make_case(llm, gpu=gpu, batch=batch, prompt_tokens=150, output_tokens=400, mode="steady")
                [answer] = truth.predict([case])
                blur = float(np.exp(noise * random.standard_normal()))
                assert answer.time_per_token_s is not None
                found.append(
                    {
                        "llm": llm,
                        "gpu": gpu,
                        "batch": batch,
                        "prompt_tokens": 150.0,
                        "output_tokens": 400.0,
                        "engine": "vllm",
                        "engine_version": "0.11.1",
                        "time_per_token_s": answer.time_per_token_s * blur,
                        "itl_s": answer.itl_s,
                        "avg_power_w": answer.avg_power_w,
                        "origin": "simulated",
                        "source": "known-law",
                    }
                )
    return found


def profile(folder: Path, found: list[dict[str, Any]]) -> Path:
    columns = {name: [row[name] for row in found] for name in found[0]}
    table = Table.from_columns("end_to_end", columns)
    save_profile(folder, new_manifest("known-law", origin="simulated", source="known-law"), [table])
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from pie_p import end_to_end_training

    place = profile(tmp_path_factory.mktemp("law") / "profile", rows(TRUTH, noise=0.03))
    with pytest.MonkeyPatch.context() as patch:  # simulated rows teach only when asked for
        patch.setattr(end_to_end_training, "load_tables", lambda folders, name: _simulated(folders, name))
        return train_end_to_end([place])


def _simulated(folders: Any, name: Any) -> Table:
    from pie_p.profiles import load_tables

    return load_tables(folders, name, with_simulated=True)


def test_a_known_host_cost_comes_back_from_its_own_runs(trained: Any) -> None:
    costs, truth = trained.serving["vllm==0.11.1"], TRUTH.serving["vllm==0.11.1"]
    for batch in (1, 64):
        host, known = (one.step_s + batch * one.sequence_s for one in (costs, truth))
        assert host == pytest.approx(known, rel=0.25)


def test_runs_that_teach_nothing_are_counted_with_their_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pie_p import end_to_end_training

    found = [{**row, "odd_group": ""} for row in rows(TRUTH)]
    found[0]["odd_group"] = found[1]["odd_group"] = "slow-fans"
    found[5]["avg_power_w"] = float("nan")
    found[5]["time_per_token_s"] = float("nan")
    place = profile(tmp_path / "profile", found)
    monkeypatch.setattr(end_to_end_training, "load_tables", _simulated)
    odd, rest = train_end_to_end([place]).left_out[-2:]
    assert odd == "2 runs of groups marked odd (slow-fans): predicted as a test, taught nothing"
    assert rest.startswith("1 runs without the times and the power that a fit needs")


def test_runs_left_out_are_predicted_within_the_noise(trained: Any) -> None:
    for split in ("llm", "gpu"):
        assert np.abs(trained.errors[split]["energy"]).mean() < 0.08
        assert len(trained.errors[split]["energy"]) == 24


def test_widths_grow_with_the_level_and_are_never_narrower_outside(trained: Any) -> None:
    for of in trained.intervals.widths.values():
        for widths in of.values():
            assert list(widths) == sorted(widths)
            assert all(width >= seen for width, seen in zip(widths, of["llm"], strict=True))


def test_profiles_without_end_to_end_runs_are_one_line(tmp_path: Path) -> None:
    place = tmp_path / "empty"
    save_profile(place, new_manifest("empty", origin="imported", source="x"), [Table.empty("end_to_end")])
    with pytest.raises(ProfileError, match="none of the profiles has end-to-end rows"):
        train_end_to_end([place])


def test_the_shipped_default_answers_with_an_interval_and_its_name() -> None:
    predictor = load_predictor()
    assert predictor.name == "default"
    case = make_case("llama-3.1-70b", gpu="h100-sxm-80gb", tp=4, batch=32, prompt_tokens=150, output_tokens=350)
    [answer] = predictor.predict([case])
    low, high = answer.interval(0.9)
    assert low < answer.energy_j < high
    assert high / low < 2


def test_a_folder_called_default_where_the_user_stands_is_not_taken_for_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pie_p import predictor

    (tmp_path / "default").mkdir()
    monkeypatch.chdir(tmp_path)
    predictor._default.cache_clear()
    assert load_predictor().name == "default"
