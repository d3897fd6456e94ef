"""The floors: no module escapes the contract, and heavy packages are imported where they belong, and late."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pie_p"
HEAVY = ("torch", "pynvml", "xgboost", "sklearn", "scipy", "matplotlib", "pandas", "pyarrow", "transformers", "huggingface_hub", "pysz")

# Who may import what, by the first part below pie_p. Nobody may import what is not named.
ALLOWED = {
    "torch": {"bench", "profiling"},
    "pynvml": {"profiling"},
    "pysz": {"profiling"},
    "xgboost": {"boosting", "scoring"},
    "sklearn": {"boosting", "scoring"},
    "pyarrow": {"bench", "parquet", "profiling", "importers", "profiles", "frames", "replay_files", "sweep_files", "trace_files"},
    "matplotlib": {"accuracy_pictures", "pictures", "sweep_pictures"},
    "huggingface_hub": {"hf_config"},
    "pandas": {"replay_files", "frames"},
    "distributed": {"scale_out"},
    "scipy": {"fitting", "placement_solver", "scoring", "workload_fits"},
    "transformers": {"bench"},
}


@pytest.fixture(scope="module")
def contract(pyproject: dict[str, Any]) -> dict[str, Any]:
    """The layers contract."""
    return next(one for one in pyproject["tool"]["importlinter"]["contracts"] if one["id"] == "floors")


@pytest.fixture(scope="module")
def named(contract: dict[str, Any]) -> list[str]:
    """Every module that stands on a floor."""
    return [name.strip(" ()") for layer in contract["layers"] for name in layer.split("|")]


def modules() -> list[str]:
    """Everything directly under pie_p that can be imported."""
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    return sorted(files | packages)


def imported(source: str) -> Iterator[str]:
    """Top-level packages a module imports anywhere, through `require` and `import_module` too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("require", "import_module") and isinstance(node.args[0].value, str):
                yield node.args[0].value.partition(".")[0]


def test_every_module_stands_in_the_contract(named: list[str]) -> None:
    missing = set(modules()) - set(named)
    assert not missing, f"name these in [[tool.importlinter.contracts]] of pyproject.toml, on their floor: {sorted(missing)}"


def test_no_module_stands_on_two_floors(named: list[str]) -> None:
    assert sorted(named) == sorted(set(named))


def test_the_contract_has_no_ignore_list(contract: dict[str, Any]) -> None:
    assert contract["exhaustive"] is True
    assert not {"ignore_imports", "exhaustive_ignores"} & set(contract)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_heavy_package_is_imported_only_where_it_belongs(package: str) -> None:
    importers = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if package in imported(path.read_text(encoding="utf-8"))}
    strangers = {str(path) for path in importers if path.parts[0].removesuffix(".py") not in ALLOWED[package]}
    assert not strangers, f"{package} is imported by {sorted(strangers)}; allowed: {sorted(ALLOWED[package])}"


def test_an_import_is_found_however_it_is_written() -> None:
    source = (
        "import torch.cuda\nfrom xgboost import Booster\ndef f():\n    import scipy\n    extras.require('pyarrow.parquet', extra='train')\n"
    )
    assert list(imported(source)) == ["torch", "xgboost", "scipy", "pyarrow"]


def test_importing_pie_p_loads_nothing_heavy() -> None:
    code = f"import sys; from pie_p import *; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT).stdout.split()
    assert loaded == []
