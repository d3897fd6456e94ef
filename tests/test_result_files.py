"""Results on disk: read as they were written, and one line for what they are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pie_p import predict_energy, sweep
from pie_p.errors import InputError
from pie_p.result_files import checked, read_result

PREDICTION = predict_energy("llama-3.1-8b", gpu="h100-sxm-80gb", batch=8, prompt_tokens=200, output_tokens=100)
PLAIN: dict[str, Any] = PREDICTION.to_dict() | {"tree": PREDICTION.tree(4)}


def test_what_the_library_writes_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(PLAIN), encoding="utf-8")
    result = read_result(tmp_path / "p.json")
    assert (result.kind, result.data) == ("prediction", json.loads(json.dumps(PLAIN)))
    plans = sweep("llama-3.1-8b", gpus=["h100-sxm-80gb", "t4-16gb"], tp=[1, 3], pp=1, prompt_tokens=200, output_tokens=0)
    plans.save(tmp_path / "s.json")
    assert read_result(tmp_path / "s.json").kind == "sweep"
    assert read_result(tmp_path / "s.json").data == json.loads(json.dumps(plans.to_dict()))


def test_every_answer_without_its_optional_figures_is_read() -> None:
    prefill = predict_energy("llama-3.1-8b", gpu="t4-16gb", tp=2, prompt_tokens=9, output_tokens=0, predictor="physics", scope="host")
    assert checked(prefill.to_dict(), what="it").kind == "prediction"


WHOLE = json.dumps(PLAIN)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", r"is empty; make one with: pie-p predict"),
        (WHOLE[: len(WHOLE) // 2], r"is not whole JSON \(line 1, column \d+\)"),
        ("[1, 2]", r"is neither a prediction nor a sweep"),
        ('{"a": 1}', r"is neither a prediction nor a sweep"),
        ("[" * 100_000, r"is not whole JSON"),
        (json.dumps(PLAIN | {"energy_j": "many"}), r"is a damaged prediction: energy_j: "),
        (json.dumps(PLAIN | {"energy_j": float("nan")}), r"is a damaged prediction: energy_j: "),
        (json.dumps(PLAIN | {"latency_s": -1}), r"is a damaged prediction: latency_s: "),
        (json.dumps({key: value for key, value in PLAIN.items() if key != "scope"}), r"is a damaged prediction: scope: "),
        (json.dumps(PLAIN | {"tree": {"decode": "x"}}), r"is a damaged prediction: tree\.decode: "),
        ('{"candidates": [], "infeasible": []}', r"is a damaged sweep: llm: "),
        ('{"llm": "a", "prompt_tokens": 1, "output_tokens": 1, "scope": "gpu", "predictor": {"name": "a", "sha256": "b"}, "tried": 0,'
         ' "front": [3], "candidates": [], "infeasible": []}', r"front names a candidate that is not there"),
    ],
)  # fmt: skip
def test_anything_else_is_one_line(tmp_path: Path, content: str, text: str) -> None:
    place = tmp_path / "result.json"
    place.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=text) as error:
        read_result(place)
    assert "\n" not in str(error.value)
    assert str(place) in str(error.value)


def test_bytes_a_folder_and_nothing_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not text"):
        read_result(tmp_path / "bytes.json")
    with pytest.raises(InputError, match="cannot read the result"):
        read_result(tmp_path)
    with pytest.raises(InputError, match="no result at"):
        read_result(tmp_path / "none.json")


def test_figures_without_their_factor_are_damage() -> None:
    footprint = PREDICTION.footprint(price_per_kwh=0.2).to_dict()
    assert checked(PLAIN | {"footprint": footprint}, what="it").kind == "prediction"
    with pytest.raises(InputError, match=r"it is a damaged prediction: footprint: .*a figure stands without its factor"):
        checked(PLAIN | {"footprint": footprint | {"price_per_kwh": None}}, what="it")
