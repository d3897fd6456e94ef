"""Frames: rows as pandas or Arrow, whichever is there, with the unit in every column's name."""

from __future__ import annotations

import importlib.util
import re
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

from pie_p import OperatorEnergy, Prediction, predict_energy
from pie_p.errors import MissingExtraError
from pie_p.frames import frame_of

ROWS = [{"name": "a", "energy_j": 1.5}, {"name": "b", "energy_j": None}]
UNITLESS = {"path", "energy_kind", "kind", "stage", "calls", "ranks"}


def without(*missing: str) -> Any:
    """`find_spec` of a place where these packages are not installed."""
    real = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in missing else real(name, package)

    return find


def predicted() -> Prediction:
    return predict_energy("llama-3.1-8b", gpu="h100-sxm-80gb", tp=2, batch=8, prompt_tokens=200, output_tokens=100)


def test_rows_become_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = frame_of(["energy_j", "name"], ROWS)
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["energy_j", "name"]
    assert frame["energy_j"].isna().tolist() == [False, True]


def test_without_pandas_they_become_an_arrow_table(monkeypatch: pytest.MonkeyPatch) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    monkeypatch.setattr("pie_p.frames.find_spec", without("pandas"))
    table = frame_of(["name", "energy_j"], ROWS)
    assert isinstance(table, arrow.Table)
    assert table.to_pylist() == ROWS


def test_without_either_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pie_p.frames.find_spec", without("pandas", "pyarrow"))
    with pytest.raises(MissingExtraError, match=r"^a table needs pandas or pyarrow, and neither is installed: pip install pandas"):
        predicted().to_frame()


def test_every_operator_is_a_row_and_the_energies_add_up() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    p = predicted()
    frame = p.to_frame()
    assert len(frame) == len(p.operators)
    assert frame["energy_j_per_request"].sum() == pytest.approx(p.breakdown.gpu_j)
    by_kind = frame.groupby("energy_kind")["energy_j_per_request"].sum()
    assert by_kind["communication"] == pytest.approx(p.breakdown.communication_j)
    assert frame["path"].tolist() == [operator.path for operator in p.operators]
    assert len(frame.columns) == len(OperatorEnergy._fields)


def test_every_column_with_a_unit_names_it() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    for name in predicted().to_frame().columns:
        assert name in UNITLESS or re.search(r"(_|^)(s|w|j|bytes|flops)(_per_(call|request))?$", name), name
