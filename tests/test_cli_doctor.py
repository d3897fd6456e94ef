"""`pie-p doctor`: every extra of the package, every board and its meter, the predictor in use, and something to do about each gap."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pie_p.cli import main
from pie_p.cli_doctor import EXTRAS
from pie_p.predictor import load_predictor


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in for NVML, fresh."""
    spec = importlib.util.spec_from_file_location("pynvml", Path(__file__).with_name("fake_pynvml.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    spec.loader.exec_module(module)
    yield module
    assert module.OPEN == 0  # every session was closed


def findings(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--json"])
    assert not stopped.value.code
    return {line["what"]: line for line in json.loads(capsys.readouterr().out)}


def test_every_extra_that_the_package_declares_is_looked_for(pyproject: dict[str, Any]) -> None:
    declared = pyproject["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(declared) - {"dev", "train-cpu"}
    names = {"nvidia-ml-py": "pynvml", "scikit-learn": "sklearn"}
    for extra, found in EXTRAS.items():
        packages = [text.partition(">")[0].partition("[")[0] for text in declared[extra]]
        wanted = {names.get(package, package.replace("-", "_")) for package in packages}
        assert wanted <= {*found.modules} <= {*wanted, "distributed"}


def test_a_missing_extra_says_how_to_get_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr("pie_p.cli_doctor.find_spec", lambda name: None if name in ("matplotlib", "pynvml") else there(name))
    found = findings(capsys)
    assert found["extra plot"]["state"] == "missing: matplotlib"
    assert found["extra plot"]["do"].startswith("pip install 'pie_p[plot]'")
    assert "nvidia-ml-py is missing" in found["GPUs"]["state"]
    assert found["extra profile"]["do"]


def test_the_predictor_in_use_is_named_with_what_it_was_measured_on(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys)
    used = load_predictor()
    assert found["predictor"]["state"].startswith(f"{used.name} ({used.sha256[:8]}): energy measured on ")
    assert "b200-sxm-180gb" in found["predictor"]["state"]
    assert "physics" in found["others"]["state"]


def test_boards_and_their_meters_are_listed(capsys: pytest.CaptureFixture[str], nvml: Any) -> None:
    odd = nvml.Board(uuid="GPU-bbbb", name="NVIDIA Prototype 9", power_mw={(185, 0): 1000}, counter_mj=None)
    nvml.BOARDS[:] = [nvml.Board(uuid="GPU-aaaa", name="NVIDIA H100 80GB HBM3"), odd]
    found = findings(capsys)
    assert found["GPU 0"]["state"] == "NVIDIA H100 80GB HBM3, in the catalogue as h100-sxm-80gb; driver 570.86.15"
    assert found["GPUs"]["state"] == "2 visible through NVML"
    assert found["GPU 0"]["do"] == ""
    assert found["meter 0"]["state"].startswith("instant power, average power, energy counter")
    assert found["meter 0"]["do"] == ""
    assert "not in the catalogue" in found["GPU 1"]["state"]
    assert "add-a-gpu.md" in found["GPU 1"]["do"]
    assert found["meter 1"]["state"].startswith("average power")
    assert "newer driver" in found["meter 1"]["do"]


def test_a_board_without_power_fields_is_profiled_by_time(capsys: pytest.CaptureFixture[str], nvml: Any) -> None:
    nvml.BOARDS[:] = [nvml.Board(power_mw={}, counter_mj=None)]
    found = findings(capsys)
    assert found["meter 0"]["state"].startswith("none on this board")
    assert "--time-only" in found["meter 0"]["do"]


@pytest.mark.parametrize(("boards", "code", "text"), [([], 0, "shows no board"), (None, 9, "none visible: NVML could not")])
def test_no_board_is_no_gap_for_predicting(capsys: pytest.CaptureFixture[str], nvml: Any, boards: Any, code: int, text: str) -> None:
    nvml.INIT_ERROR = code
    if boards is not None:
        nvml.BOARDS[:] = boards
    found = findings(capsys)
    assert text in found["GPUs"]["state"]
    assert found["GPUs"]["do"].startswith("nothing, to predict")


def test_the_table_fits_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["doctor"])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "extra dask" in out
