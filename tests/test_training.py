"""Training: a known law comes back, and the same profiles and seed give the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xgboost", reason="training needs the extra 'train'")

from known_operators import decodes, linears, profile, table

from pie_p import training
from pie_p.errors import ProfileError
from pie_p.model_files import MANIFEST
from pie_p.training import train


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return profile(tmp_path_factory.mktemp("law") / "profile", [table([*linears(1500), *decodes(600)])])


@pytest.fixture(autouse=True)
def _simulated_rows_teach(monkeypatch: pytest.MonkeyPatch) -> None:
    from pie_p.profiles import load_tables

    def asked(folders: Any, name: Any) -> Any:
        return load_tables(folders, name, with_simulated=True)

    monkeypatch.setattr(training, "load_tables", asked)


def test_boosters_come_closer_than_the_roofline_on_rows_held_out(known: Path, tmp_path: Path) -> None:
    manifest = train([known], tmp_path / "one", name="known", families=("linear", "attention_decode"), jobs=1)
    errors = {(row.family, row.target, row.regressor): row.mape for row in manifest.errors}
    for family in ("linear", "attention_decode"):
        assert errors[family, "time", "learned"] < 0.5 * errors[family, "time", "physics"]


def test_the_same_profiles_and_seed_give_the_same_bytes(known: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        train([known], tmp_path / name, name="known", families=("linear",), jobs=1)
    files = sorted(path.name for path in (tmp_path / "one").iterdir() if not path.name.startswith("."))
    assert MANIFEST in files
    assert len(files) >= 3
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_profiles_without_enough_rows_are_one_line(tmp_path: Path) -> None:
    few = profile(tmp_path / "few", [table(linears(20))])
    with pytest.raises(ProfileError, match="operator rows of one family"):
        train([few], tmp_path / "none", families=("linear",))
