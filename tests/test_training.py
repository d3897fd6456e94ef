"""Training: profiles in, the same predictor to the bit out, with its errors on rows that did not teach."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from known_operators import RATIOS, decodes, linears, profile, reduces, table

from pie_p import predict_energy
from pie_p.errors import InputError, PredictorError, ProfileError
from pie_p.predictor import Predictor

pytest.importorskip("xgboost", reason="xgboost comes with the extra 'train'")
pytest.importorskip("sklearn", reason="scikit-learn comes with the extra 'train'")

from pie_p.learning import SETTINGS
from pie_p.training import HELD_OUT, held_out, train

QUICK = {key: replace(one, trees=40, leaves=32) for key, one in SETTINGS.items()}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    operators = [table(linears(2500)), table(decodes(800))]
    collectives = table(reduces(600), name="collectives", kernels=["vllm 0.24.0 graph", "nccl 2.29.2 NCCL"])
    return profile(tmp_path_factory.mktemp("known"), [*operators, collectives])


@pytest.fixture(scope="module")
def saved(known: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train([known], folder, name="known", settings=QUICK)
    return folder


def test_a_known_law_comes_back_on_rows_that_did_not_teach(saved: Path) -> None:
    manifest = json.loads((saved / "manifest.json").read_text(encoding="utf-8"))
    errors = {(row["family"], row["target"], row["regressor"]): row for row in manifest["errors"]}
    for family in ("linear", "attention_decode", "collective"):
        assert errors[family, "time", "learned"]["mape"] < 0.03
        assert errors[family, "time", "physics"]["mape"] > 0.15
    assert errors["linear", "energy", "learned"]["mape"] < 0.05
    assert errors["linear", "energy", "learned"]["mape"] < errors["linear", "energy", "physics"]["mape"]


def test_the_same_profiles_and_seed_give_the_same_bytes(known: Path, saved: Path, tmp_path: Path) -> None:
    train([known], tmp_path, name="known", settings=QUICK)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {path.name: path.read_bytes() for path in saved.iterdir()}


def test_another_seed_gives_another_predictor(known: Path, saved: Path, tmp_path: Path) -> None:
    train([known], tmp_path, name="known", seed=1, settings=QUICK, families=("linear",))
    assert (tmp_path / "linear-time.json.gz").read_bytes() != (saved / "linear-time.json.gz").read_bytes()


def test_families_without_rows_are_left_on_the_base(saved: Path) -> None:
    manifest = json.loads((saved / "manifest.json").read_text(encoding="utf-8"))
    assert sorted(manifest["families"]) == ["attention_decode", "collective", "linear"]
    assert manifest["families"]["linear"]["rows"]["time"] == pytest.approx((1 - HELD_OUT) * 2500, rel=0.05)


def test_the_trained_predictor_answers_with_the_ratio_it_learned(saved: Path) -> None:
    request = {"llm": "llama-3.1-8b", "gpu": "h200-sxm-141gb", "batch": 16, "prompt_tokens": 200, "output_tokens": 100}
    learned = predict_energy(**request, predictor=Predictor.load(saved))  # type: ignore[arg-type]
    base = predict_energy(**request, predictor="physics")  # type: ignore[arg-type]
    ratio = {one.path: one.time_s / two.time_s for one, two in zip(learned.operators, base.operators, strict=True) if one.kind == "linear"}
    assert np.median(list(ratio.values())) == pytest.approx(RATIOS["vllm 0.24.0 fast"], rel=0.1)


def test_the_card_says_what_a_user_should_know(saved: Path) -> None:
    card = (saved / "card.md").read_text(encoding="utf-8")
    for text in ("# Predictor `known`", "known-law", "| linear | time | learned |", "0.1 ms", "random split"):
        assert text in card


def test_progress_is_told(known: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    train([known], tmp_path, settings=QUICK, families=("collective",), progress=lambda *step: told.append(step))
    assert [step[0].split(":")[0] for step in told] == ["collective", "saved default"]
    assert told[-1][1] == told[-1][2]


def test_profiles_without_operators_are_one_clear_error(tmp_path: Path) -> None:
    few = profile(tmp_path / "few", [table(linears(20))])
    with pytest.raises(ProfileError, match="has 200 operator rows of one family"):
        train([few], tmp_path / "out", settings=QUICK)
    assert not (tmp_path / "out").exists()


def test_a_place_or_a_name_that_cannot_be_is_told_before_the_work(known: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    told: list[Any] = []
    with pytest.raises(PredictorError, match="file is not a folder"):
        train([known], tmp_path / "file", progress=lambda *step: told.append(step))
    with pytest.raises(PredictorError, match="is that of something else"):
        train([known], known, progress=lambda *step: told.append(step))  # onto the profile itself
    for name in ("", " ", "two\nlines", "x" * 81):
        with pytest.raises(InputError, match="is not a name; give 1 to 80 printable characters"):
            train([known], tmp_path / "out", name=name, progress=lambda *step: told.append(step))
    assert not told
    assert not (tmp_path / "out").exists()


def test_the_split_is_drawn_by_the_seed() -> None:
    assert held_out(10_000, seed=0).mean() == pytest.approx(HELD_OUT, abs=0.02)
    assert np.array_equal(held_out(100, seed=3), held_out(100, seed=3))
    assert not np.array_equal(held_out(100, seed=3), held_out(100, seed=4))
