"""What the command line shares: JSON, tables and progress on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final

LINE_EVERY_S: Final = 30.0  # [s]


def print_json(value: Any) -> None:
    """JSON on standard output; a number that is not finite is a mistake of ours, never printed."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def console(*, stderr: bool = False) -> Any:
    """A rich console that colours nothing by guessing."""
    from rich.console import Console

    return Console(highlight=False, stderr=stderr)


@contextmanager
def progress(what: str, *, quiet: bool = False) -> Iterator[Callable[[str, float, float], None]]:
    """Progress on standard error, fed with `(text, done, total)`: a bar on a terminal, elsewhere a line every 30 s; none when quiet."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    screen = console(stderr=True)
    if not quiet and not screen.is_terminal:
        yield _lines(what)
        return
    with Progress(*columns, console=screen, disable=quiet, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda text, done, total: bar.update(task, description=f"{what}: {text}", completed=done, total=total)


def _lines(what: str) -> Callable[[str, float, float], None]:
    """A line now and then, for logs and pipes; work that is done sooner writes none."""
    written_s = monotonic()

    def tell(text: str, done: float, total: float) -> None:
        nonlocal written_s
        if monotonic() - written_s >= LINE_EVERY_S:
            written_s = monotonic()
            sys.stderr.write(f"{what}: {text}, {done:g} of {total:g}\n")
            sys.stderr.flush()

    return tell
