"""The house: its top level, its version, its docstrings."""

from __future__ import annotations

import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pie_p

ROOT = Path(__file__).parent.parent
TOP_LEVEL = ["pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", "mkdocs.yml", ".ci/run"]
TOP_LEVEL += ["pie_p", "pie_p/py.typed", "pie_p/data", "models", "tests", "docs", "benchmarks"]


def module_names() -> list[str]:
    return ["pie_p", *(found.name for found in pkgutil.walk_packages(pie_p.__path__, "pie_p.") if not found.name.endswith("__main__"))]


def public_members(module: ModuleType) -> list[tuple[str, object]]:
    """Functions and classes that the module defines and does not hide, and the methods of those classes."""
    found = []
    for name, member in vars(module).items():
        if name.startswith("_") or getattr(member, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(member) or inspect.isclass(member):
            found.append((name, member))
    return found


@pytest.mark.parametrize("path", TOP_LEVEL)
def test_the_top_level_is_fixed(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_version_is_the_one_of_pyproject(pyproject: dict[str, Any]) -> None:
    assert pie_p.__version__ == pyproject["project"]["version"]


def test_the_changelog_knows_the_version(pyproject: dict[str, Any]) -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in changelog
    assert str(pyproject["project"]["version"]) in changelog


def test_what_all_names_is_there() -> None:
    missing = [name for name in pie_p.__all__ if not hasattr(pie_p, name)]
    assert missing == []


@pytest.mark.parametrize("name", module_names())
def test_public_names_have_a_docstring(name: str) -> None:
    module = import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    bare = [member for member, value in public_members(module) if not (value.__doc__ or "").strip()]
    assert not bare, f"{name}: no docstring on {bare}"


def test_the_library_prints_nothing() -> None:
    printing = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "pie_p").rglob("*.py")
        if path.name not in ("cli.py", "__main__.py") and re.search(r"^\s*print\(", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    ]
    assert printing == []


def test_torch_is_a_range_and_its_pin_is_a_constraint(pyproject: dict[str, Any]) -> None:
    extras = pyproject["project"]["optional-dependencies"]
    [torch] = [each for each in extras["profile"] if each.startswith("torch")]
    assert ">=" in torch
    assert "==" not in torch
    assert re.search(r"^torch==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_every_public_name_is_imported_when_it_is_first_asked_for() -> None:
    assert sorted(name for names in pie_p._HOMES.values() for name in names) == sorted({*pie_p.__all__} - {"__version__"})
    for module, names in pie_p._HOMES.items():
        home = import_module(f"pie_p.{module}")
        assert all(getattr(pie_p, name) is getattr(home, name) for name in names)
    assert {*pie_p.__all__} <= {*dir(pie_p)}
    with pytest.raises(AttributeError, match=r"^module 'pie_p' has no attribute 'predict_enregy'$"):
        pie_p.predict_enregy  # type: ignore[attr-defined]  # noqa: B018
