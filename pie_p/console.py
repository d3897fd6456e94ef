"""What the command line shares: JSON, tables and progress on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def print_json(value: Any) -> None:
    """JSON on standard output; a number that is not finite is a mistake of ours, never printed."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def console(*, stderr: bool = False) -> Any:
    """A rich console that colours nothing by guessing."""
    from rich.console import Console

    return Console(highlight=False, stderr=stderr)


@contextmanager
def progress(what: str, *, quiet: bool = False) -> Iterator[Callable[[str, float, float], None]]:
    """A progress bar on standard error, fed with `(text, done, total)`; nothing is drawn when quiet or not on a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    screen = console(stderr=True)
    with Progress(*columns, console=screen, disable=quiet or not screen.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda text, done, total: bar.update(task, description=f"{what}: {text}", completed=done, total=total)
