"""The built wheel, installed in a fresh environment without extras: it predicts, it is complete, and it is light."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
MEGABYTE = 1e6
REQUEST = "predict llama-3.1-70b --gpu h100-sxm-80gb --tp 4 --batch 16 --prompt-tokens 150 --output-tokens 300 --json"
NUMBERS = ["energy_j", "energy_per_output_token_j", "latency_s", "ttft_s", "tpot_s", "itl_s", "time_per_token_s", "avg_power_w"]
KINDS = {"compute_j", "communication_j", "wait_j"}
SOURCES = ["pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore", "pie_p", "models"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a plain source archive: no git."""
    folder = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(path, folder / name)
    return folder


@pytest.fixture(scope="module")
def distributions(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source))
    return folder


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    [path] = distributions.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel and what it requires, nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    run(str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(wheel))
    return folder


@pytest.fixture(scope="module")
def answer(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the installed command answers, from a folder that is not the checkout."""
    return dict(json.loads(run(str(environment / "bin" / "pie-p"), *REQUEST.split(), cwd=tmp_path_factory.mktemp("elsewhere"))))


def run(*argv: str, cwd: Path | None = None) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(argv, capture_output=True, text=True, cwd=cwd, env=environ, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def test_the_wheel_holds_code_data_and_predictors(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "pie_p").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    files |= {f"pie_p/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "models").rglob("*") if path.is_file()}
    assert files <= names
    assert "pie_p/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "benchmarks/", "models/"))]


def test_the_source_distribution_carries_the_licence(distributions: Path) -> None:
    [path] = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        assert {name.partition("/")[2] for name in archive.getnames()} >= {"LICENSE", "README.md", "pyproject.toml", "pie_p/__init__.py"}


def test_the_installed_command_answers_with_every_key(answer: dict[str, Any]) -> None:
    assert all(isinstance(answer[name], float) and answer[name] > 0 for name in NUMBERS)
    assert answer["gpus"] == 4
    assert answer["scope"] == "gpu"
    assert answer["mode"] == "steady"
    assert answer["cluster"]
    assert answer["engine"].startswith("vllm")
    assert isinstance(answer["warnings"], list)
    assert set(answer["predictor"]) >= {"name", "sha256"}
    assert set(answer["breakdown"]) == set(answer["prefill"]) == set(answer["decode"]) == KINDS


def test_its_parts_add_up_to_the_total(answer: dict[str, Any]) -> None:
    assert sum(answer["breakdown"].values()) == pytest.approx(answer["energy_j"], rel=1e-9)
    for kind in KINDS:
        assert answer["prefill"][kind] + answer["decode"][kind] == pytest.approx(answer["breakdown"][kind], rel=1e-9, abs=1e-9)


def test_a_bad_name_is_one_line_and_exit_code_2(environment: Path, tmp_path: Path) -> None:
    argv = [str(environment / "bin" / "pie-p"), *REQUEST.split()]
    argv[argv.index("h100-sxm-80gb")] = "h100"
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "h100-sxm-80gb" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_environment_is_light(environment: Path, answer: dict[str, Any]) -> None:
    allocated_bytes = sum(path.lstat().st_blocks * 512 for path in environment.rglob("*"))
    assert allocated_bytes <= 150 * MEGABYTE


def test_the_environment_has_no_extras(environment: Path) -> None:
    packages = run(str(environment / "bin" / "python"), "-m", "pip", "freeze").lower()
    assert not [name for name in ("torch", "xgboost", "scikit", "scipy", "pyarrow", "matplotlib", "pandas", "nvidia") if name in packages]
