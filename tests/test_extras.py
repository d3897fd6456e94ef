"""Optional packages: present, absent, and present but broken are told apart."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pie_p.errors import MissingExtraError, PiePError
from pie_p.extras import require

ROOT = Path(__file__).parent.parent


def test_a_package_that_is_there_is_imported() -> None:
    assert require("json", extra="train") is json


def test_a_missing_package_names_its_extra_in_one_line() -> None:
    text = (
        "'no_such_booster' is not installed. It comes with the extra: "
        "pip install 'pie_p[train]', or 'pie_p[train-cpu]' without NVIDIA's NCCL"
    )
    with pytest.raises(MissingExtraError, match=f"^{re.escape(text)}$") as caught:
        require("no_such_booster", extra="train")
    assert isinstance(caught.value, PiePError)
    assert isinstance(caught.value, ImportError)


def test_an_extra_without_another_flavour_names_itself_alone() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'pie_p\[plot\]'$"):
        require("no_such_plotter", extra="plot")


def test_a_missing_submodule_is_not_taken_for_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_installed.py").write_text("import no_such_dependency\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_dependency'") as caught:
        require("half_installed", extra="train")
    assert not isinstance(caught.value, PiePError)


def test_every_extra_that_the_code_names_exists(pyproject: dict[str, Any]) -> None:
    extras = set(pyproject["project"]["optional-dependencies"])
    named = {
        extra
        for path in (ROOT / "pie_p").rglob("*.py")
        for extra in re.findall(r"""require\([^)]*extra=["'](\w[\w-]*)["']""", path.read_text(encoding="utf-8"))
    }
    assert named <= extras
