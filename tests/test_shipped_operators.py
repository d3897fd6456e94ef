"""The shipped boosters on operators: the errors they promise, and public rows where those are at hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pie_p.examples import family_examples
from pie_p.model_files import ErrorRow, load_predictor_manifest, shipped
from pie_p.predictor import Predictor

DATA = Path(os.environ.get("PIE_P_SHARED", Path(__file__).parents[2] / "shared")) / "data"
TIME = {  # most a mean relative error of time may be on rows held out [-]
    "linear": 0.05, "attention_decode": 0.08, "attention_prefill": 0.10, "experts": 0.09, "collective": 0.08, "exchange": 0.10,
}  # fmt: skip


def errors() -> dict[tuple[str, str, str], ErrorRow]:
    manifest = load_predictor_manifest(shipped()["operators"])
    return {(row.family, row.target, row.regressor): row for row in manifest.errors}


@pytest.mark.parametrize(("family", "most"), TIME.items())
def test_times_of_rows_held_out_are_within_the_goal_and_closer_than_physics(family: str, most: float) -> None:
    learned, physics = errors()[family, "time", "learned"], errors()[family, "time", "physics"]
    assert learned.rows > 1000
    assert learned.mape <= most
    assert learned.mape < physics.mape / 3
    assert abs(learned.bias) < 0.02


@pytest.mark.parametrize("family", ["linear", "attention_decode", "attention_prefill", "experts"])
def test_energy_of_rows_held_out_is_closer_than_physics(family: str) -> None:
    assert errors()[family, "energy", "learned"].mape < min(0.16, errors()[family, "energy", "physics"].mape / 2)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no public data at {DATA}; set PIE_P_SHARED")
def test_public_times_of_gemms_come_back(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow comes with the extra: pip install 'pie_p[train]'")
    from pie_p.importers import import_source
    from pie_p.profiles import load_profile

    import_source("aiconfigurator_power", DATA / "aiconfigurator" / "power" / "h200_sxm" / "gemm", tmp_path / "gemm")
    examples = family_examples(load_profile(tmp_path / "gemm").operators, "linear")
    operators = Predictor.load("operators").operators
    assert operators is not None
    regressor = operators.families["linear"]
    predicted_s = regressor.time_s(examples.with_book(regressor.book).columns, operators.roofline)
    error = np.abs(predicted_s / examples.time_s - 1)  # four rows in five taught it: a training error, mostly
    assert error.mean() < 0.06
    assert np.isfinite(examples.with_book(regressor.book).columns["kernel_code"]).all()
