"""Saved predictors: what was written comes back, and whatever was done to the files is one clear error and never an answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from known_operators import linears, profile, table

from pie_p import load_predictor, predict_energy
from pie_p.errors import PredictorError
from pie_p.model_files import MOST_MANIFEST_BYTES, find_predictor, load_predictor_manifest, shipped
from pie_p.predictor import Predictor
from pie_p.serving import ServingCosts
from pie_p.storage import sha256

pytest.importorskip("xgboost", reason="xgboost comes with the extra 'train'")
pytest.importorskip("sklearn", reason="scikit-learn comes with the extra 'train'")

from pie_p.learning import SETTINGS
from pie_p.training import train

QUICK = {key: replace(one, trees=5, leaves=8) for key, one in SETTINGS.items()}
REQUEST: dict[str, Any] = {"llm": "llama-3.1-8b", "gpu": "h200-sxm-141gb", "batch": 8, "prompt_tokens": 100, "output_tokens": 50}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predictor")
    train([profile(folder / "profile", [table(linears(2500))])], folder / "own", name="own", families=("linear",), settings=QUICK)
    return folder / "own"


@pytest.fixture
def saved(original: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "own"
    copy.mkdir()
    for path in original.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest as somebody who knows how its checksum is made."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    change(manifest)
    manifest["checksum"] = ""
    text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    digest = sha256(text.encode())
    path.write_text(text.replace('"checksum": ""', f'"checksum": "{digest}"', 1), encoding="utf-8")


def test_a_saved_predictor_answers_and_names_itself(saved: Path) -> None:
    prediction = predict_energy(**REQUEST, predictor=str(saved))
    assert prediction.predictor["name"] == "own"
    assert prediction.energy_j > 0
    assert prediction.energy_j != predict_energy(**REQUEST, predictor="physics").energy_j


@pytest.mark.parametrize("changed", [False, True])
def test_a_predictor_that_was_saved_again_answers_the_same(saved: Path, tmp_path: Path, changed: bool) -> None:
    one = Predictor.load(saved)
    if changed:  # a calibrated one: other constants around the same boosters
        one = replace(
            one, name="mine", roofline=replace(one.roofline, kv_share=0.5), serving={"vllm": ServingCosts()._replace(step_s=1e-3)}
        )
    one.save(tmp_path / "again")
    again = Predictor.load(tmp_path / "again")
    assert again.name == one.name
    assert predict_energy(**REQUEST, predictor=again).energy_j == predict_energy(**REQUEST, predictor=one).energy_j


@pytest.mark.parametrize("name", ["physics", "default"])
def test_predictors_without_boosters_can_be_saved_too(name: str, tmp_path: Path) -> None:
    one = load_predictor(name)
    one.save(tmp_path / "copy")
    again = Predictor.load(tmp_path / "copy")
    assert again.operators is None
    assert predict_energy(**REQUEST, predictor=again).energy_j == predict_energy(**REQUEST, predictor=one).energy_j
    assert (again.intervals is None) == (one.intervals is None)


def test_every_bit_counts_in_the_manifest_and_the_boosters(saved: Path) -> None:
    for name in ("manifest.json", "linear-time.json.gz"):
        whole = (saved / name).read_bytes()
        for place in range(0, len(whole), max(1, len(whole) // 60)):
            (saved / name).write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            with pytest.raises(PredictorError):
                Predictor.load(saved)
        (saved / name).write_bytes(whole)
    assert Predictor.load(saved).name == "own"


def test_a_cut_file_is_refused(saved: Path) -> None:
    whole = (saved / "manifest.json").read_bytes()
    (saved / "manifest.json").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PredictorError, match="is not the manifest of a predictor"):
        Predictor.load(saved)


def test_another_booster_under_the_same_name_is_refused(saved: Path) -> None:
    (saved / "linear-time.json.gz").write_bytes((saved / "linear-power.json.gz").read_bytes())
    with pytest.raises(PredictorError, match=r"linear-time\.json\.gz is not the file its manifest names: SHA-256"):
        Predictor.load(saved)


def test_a_missing_booster_is_refused(saved: Path) -> None:
    (saved / "linear-time.json.gz").unlink()
    with pytest.raises(PredictorError, match=r"no booster at .*linear-time"):
        Predictor.load(saved)


def test_a_newer_schema_says_how_to_read_it(saved: Path) -> None:
    rewrite(saved, lambda manifest: manifest.update(schema_version=99))
    with pytest.raises(PredictorError, match="schema version 99; this pie_p reads up to 1: pip install -U pie_p"):
        Predictor.load(saved)


def test_a_newer_schema_with_other_fields_too(saved: Path) -> None:
    rewrite(saved, lambda manifest: manifest.update(schema_version=2, news=[1]))
    with pytest.raises(PredictorError, match="schema version 2"):
        Predictor.load(saved)


def test_a_missing_feature_is_named(saved: Path) -> None:
    rewrite(saved, lambda manifest: manifest["families"]["linear"]["features"]["time"].remove("waves"))
    with pytest.raises(PredictorError, match="missing 'waves'; train it again"):
        Predictor.load(saved)


def test_a_family_that_is_not_known_is_named(saved: Path) -> None:
    rewrite(saved, lambda manifest: manifest["families"].update(softmax=manifest["families"]["linear"]))
    with pytest.raises(PredictorError, match="regressors for 'softmax'"):
        Predictor.load(saved)


def test_a_constant_that_is_not_known_is_named(saved: Path) -> None:
    rewrite(saved, lambda manifest: manifest["roofline"].update(magic=1.0))
    with pytest.raises(PredictorError, match="sets 'magic' of Roofline"):
        Predictor.load(saved)


def test_a_predictor_saved_again_in_its_place_is_the_one_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook: train, ask, train again, ask; and from another folder the same relative path is another predictor."""
    for place, name in (("a", "first"), ("a", "second"), ("b", "third")):
        (tmp_path / place).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / place)
        Predictor(name=name).save("own")
        assert load_predictor("own").name == name
        assert load_predictor("own") is load_predictor("own")  # read once


def test_a_folder_that_has_a_shipped_name_and_no_predictor_is_not_taken_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "default").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_predictor("default") == load_predictor()
    Predictor(name="mine").save(tmp_path / "default")
    assert load_predictor("default").name == "mine"


@pytest.mark.parametrize("value", [-1.0, 1e9])
def test_a_constant_that_cannot_be_is_refused(saved: Path, value: float) -> None:
    """Seconds below 0 would answer with joules below 0."""
    rewrite(saved, lambda manifest: manifest["serving"].update(vllm={"step_s": value}))
    with pytest.raises(PredictorError, match=r"sets step_s = .* of ServingCosts; allowed: 0 to"):
        Predictor.load(saved)


def test_what_is_no_predictor_is_not_saved_over(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"origin": "measured", "pie_p_version": "0.1"}')
    with pytest.raises(PredictorError, match="is that of something else, which is not written over"):
        Predictor().save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_base_that_has_changed_since_is_noticed(saved: Path) -> None:
    rewrite(saved, lambda manifest: manifest["base_s"].__setitem__(0, 2 * manifest["base_s"][0]))
    with pytest.raises(PredictorError, match="corrects a physical base that this pie_p no longer has"):
        Predictor.load(saved)


@pytest.mark.parametrize("name", ["../linear-time.json.gz", "/etc/passwd", "linear-time.pkl", "linear-time.json.gz/../x"])
def test_a_file_elsewhere_is_not_opened(saved: Path, name: str) -> None:
    rewrite(saved, lambda manifest: manifest["families"]["linear"]["boosters"]["time"].update(file=name))
    with pytest.raises(PredictorError, match="in the same folder"):
        Predictor.load(saved)


def test_a_booster_that_does_not_fit_its_inputs_is_refused_when_it_is_asked(saved: Path) -> None:
    other = (saved / "linear-power.json.gz").read_bytes()
    (saved / "linear-time.json.gz").write_bytes(other)
    rewrite(saved, lambda manifest: manifest["families"]["linear"]["boosters"]["time"].update(sha256=sha256(other)))
    with pytest.raises(PredictorError, match="do not fit a forest of"):
        predict_energy(**REQUEST, predictor=Predictor.load(saved))


def test_an_enormous_manifest_is_refused_by_its_size(tmp_path: Path) -> None:
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(1_000_000_000)  # sparse: takes no room
    with pytest.raises(PredictorError, match=f"has 1000000000 bytes; a manifest of a predictor has at most {MOST_MANIFEST_BYTES}"):
        Predictor.load(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "pie_p profile"}', "\x00\x01", "[" * 100_000, '{"schema_version": 1e999}'])
def test_a_foreign_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text, encoding="utf-8")
    with pytest.raises(PredictorError, match="is not the manifest of a predictor"):
        load_predictor_manifest(tmp_path)


def test_a_folder_without_a_predictor_and_a_name_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(PredictorError, match="no manifest of a predictor at"):
        Predictor.load(tmp_path)
    with pytest.raises(PredictorError, match=r"no predictor at .*nowhere: no such folder"):
        find_predictor(tmp_path / "nowhere")
    with pytest.raises(PredictorError, match=r"no predictor 'defualt'; known: physics, .*Did you mean: default"):
        find_predictor("defualt")


@pytest.mark.parametrize("name", sorted(shipped()))
def test_shipped_predictors_load_by_name_and_answer(name: str) -> None:
    prediction = predict_energy(**REQUEST, predictor=name)
    assert prediction.predictor["name"] == name
    assert load_predictor(name) is load_predictor(name)


@pytest.mark.parametrize("name", sorted(shipped()))
def test_shipped_predictors_are_small_and_hold_no_pickle(name: str) -> None:
    files = list(shipped()[name].iterdir())
    assert sum(path.stat().st_size for path in files) < 4 << 20
    assert all(path.name in ("manifest.json", "card.md") or path.name.endswith(".json.gz") for path in files)


def test_predicting_needs_neither_xgboost_nor_scikit_learn(saved: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('xgboost', 'sklearn', 'pyarrow', 'scipy', 'pandas'): sys.modules[name] = None\n"
        "from pie_p import predict_energy\n"
        f"print(predict_energy(**{REQUEST!r}, predictor={str(saved)!r}).energy_j)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(predict_energy(**REQUEST, predictor=str(saved)).energy_j)
