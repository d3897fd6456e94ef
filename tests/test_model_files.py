"""Saved predictors: what is damaged, foreign or newer is one clear error, and nothing in them is executed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_p.cases import make_case
from pie_p.errors import PredictorError
from pie_p.model_files import MANIFEST, shipped
from pie_p.predictor import Predictor

CASE = make_case("llama-3.1-8b", gpu="h100-sxm-80gb", batch=16, prompt_tokens=200, output_tokens=400)


def copy_of(name: str, place: Path) -> Path:
    return Path(shutil.copytree(shipped()[name], place / name))


def refusal(folder: Path) -> str:
    """The one line that loading, or the first answer, ends in."""
    with pytest.raises(PredictorError) as caught:
        Predictor.load(folder).predict([CASE])
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", ["default", "operators"])
def test_a_shipped_predictor_answers_the_same_from_a_copy(name: str, tmp_path: Path) -> None:
    [here], [there] = Predictor.load(name).predict([CASE]), Predictor.load(copy_of(name, tmp_path)).predict([CASE])
    assert here.energy_j == there.energy_j
    assert here.predictor == there.predictor


def test_nothing_shipped_is_a_pickle() -> None:
    files = [path for folder in shipped().values() for path in folder.iterdir()]
    assert files
    assert not [path for path in files if path.read_bytes()[:1] == b"\x80" or path.suffix in (".pkl", ".pickle", ".joblib")]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 7))
def test_a_flipped_bit_anywhere_in_the_manifest_is_an_error(place: int, bit: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = copy_of("default", Path(name))
        content = bytearray((folder / MANIFEST).read_bytes())
        content[place % len(content)] ^= 1 << bit
        (folder / MANIFEST).write_bytes(bytes(content))
        refusal(folder)


def test_a_flipped_bit_in_a_booster_is_an_error(tmp_path: Path) -> None:
    folder = copy_of("operators", tmp_path)
    booster = folder / "linear-time.json.gz"
    content = bytearray(booster.read_bytes())
    content[len(content) // 2] ^= 1
    booster.write_bytes(bytes(content))
    assert "linear-time.json.gz" in refusal(folder)


def test_a_missing_booster_is_an_error(tmp_path: Path) -> None:
    folder = copy_of("operators", tmp_path)
    (folder / "experts-time.json.gz").unlink()
    assert "experts-time.json.gz" in refusal(folder)


def test_a_newer_schema_says_so(tmp_path: Path) -> None:
    folder = copy_of("default", tmp_path)
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    (folder / MANIFEST).write_text(json.dumps({**manifest, "schema_version": 999}), encoding="utf-8")
    assert "999" in refusal(folder)


def test_a_huge_manifest_is_refused_by_its_size(tmp_path: Path) -> None:
    folder = tmp_path / "huge"
    folder.mkdir()
    with (folder / MANIFEST).open("wb") as file:
        file.truncate(1 << 30)  # sparse: 1 GB that is never read
    refusal(folder)


def test_a_folder_that_is_no_predictor_and_a_name_that_is_none_are_one_line(tmp_path: Path) -> None:
    refusal(tmp_path)
    with pytest.raises(PredictorError, match="known: physics"):
        Predictor.load("no-such-predictor")
