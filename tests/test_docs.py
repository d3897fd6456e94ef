"""Documentation that runs: every Python block of the README and of docs/, and every `pie-p` command."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<skip><!-- skip: (?P<reason>[^>]+) -->\n)?```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """One fenced block, and the line it starts on."""

    code: str
    line: int
    skip: str | None


def blocks(page: Path, language: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(match["code"], text[: match.start("code")].count("\n"), match["reason"])
        for match in FENCE.finditer(text)
        if match["language"] == language
    ]


def place(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every line of a shell block that calls pie-p, with its place."""
    for page in PAGES:
        for block in blocks(page, "bash"):
            lines = [part.strip() for line in block.code.replace("\\\n", " ").splitlines() for part in line.split("&&")]
            yield from (
                (place(page), shlex.split(line, comments=True))
                for line in lines
                if line.startswith("pie-p ") and "|" not in line and not block.skip
            )


def pipes() -> Iterator[tuple[str, str]]:
    """Every line of a shell block in which pie-p feeds a pipe, with its place."""
    for page in PAGES:
        for block in blocks(page, "bash"):
            lines = block.code.replace("\\\n", " ").splitlines()
            yield from ((place(page), line) for line in lines if line.startswith("pie-p ") and "|" in line and not block.skip)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=place)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        if block.skip:
            continue
        code = compile("\n" * block.line + block.code, str(page), "exec")
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, namespace)


@pytest.mark.parametrize(("page", "argv"), [pytest.param(page, argv, id=f"{page}: {' '.join(argv)}") for page, argv in commands()])
def test_commands_run(
    page: str, argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pie_p.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", argv)
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    shown = capsys.readouterr()
    assert code in (0, None), shown.err
    assert shown.out.strip()


@pytest.mark.parametrize(("page", "line"), [pytest.param(page, line, id=f"{page}: {line}") for page, line in pipes()])
def test_pipes_run(page: str, line: str, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() or any(tmp_path.iterdir())


def test_the_readme_shows_a_command_and_a_python_block() -> None:
    assert any(page == "README.md" for page, _ in commands())
    assert blocks(ROOT / "README.md", "python")


def test_the_test_command_of_the_readme_is_the_one_in_contributing() -> None:
    [command] = re.findall(r"^pip install -c constraints.txt .*$", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert command in (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")


def test_every_page_of_the_project_is_reachable() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [place(page) for page in PAGES if page.name != "README.md" and str(page.relative_to(ROOT / "docs")) not in navigation]
    assert not missing, f"name in the nav of mkdocs.yml: {missing}"


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_files_that_the_text_names_exist(page: Path) -> None:
    named = set(re.findall(r"`((?:docs|tests|benchmarks|pie_p|models|profiles)/[\w./-]+\.\w+)`", page.read_text(encoding="utf-8")))
    missing = sorted(name for name in named if not (ROOT / name).exists())
    assert not missing
