"""What every test shares: seeded random input, GPU checks that skip with a reason, and no network."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent

# Random input has a seed, and no test has a time limit: machines differ, benchmarks/run.py measures.
settings.register_profile("pie_p", derandomize=True, deadline=None)
settings.load_profile("pie_p")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def pyproject() -> dict[str, Any]:
    """What pyproject.toml says."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


class Ran(NamedTuple):
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`pie-p` with these words, in this process, on a wide terminal without colours."""
    from pie_p.cli import main

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*words: str) -> Ran:
        with pytest.raises(SystemExit) as stopped:
            main(list(words))
        captured = capsys.readouterr()
        return Ran(int(stopped.value.code or 0), captured.out, captured.err)

    return call


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is none, and say why."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = _why_no_gpu() if marked else ""
    for item in marked:
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def _why_no_gpu() -> str:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed: pip install 'pie_p[profile]'"
    import torch

    return "" if torch.cuda.is_available() else "no NVIDIA GPU here"
