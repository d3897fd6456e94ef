"""A progress bar for those who wait: on standard error, after a second, where that is a terminal or a notebook; silent elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

PATIENCE_S: Final = 1.0  # what ends within it is drawn nowhere [s]


class Bar(Protocol):
    """What draws."""

    def update(self, done: int) -> None:
        """Show that so many are done."""

    def close(self) -> None:
        """Leave nothing behind."""


@contextmanager
def progress_of(what: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A function to call with how many of `total` are done."""
    start_s, bar = time.monotonic(), None

    def done(count: int) -> None:
        nonlocal bar
        if bar is None and not quiet and count < total and time.monotonic() - start_s > PATIENCE_S:
            bar = _bar(what, total)
        if bar is not None:
            bar.update(count)

    try:
        yield done
    finally:
        if bar is not None:
            bar.close()


def _bar(what: str, total: int) -> Bar | None:
    shell = _notebook()
    if shell is not None:
        return _NotebookBar(shell, what, total)
    return _TerminalBar(what, total) if sys.stderr is not None and sys.stderr.isatty() else None


def _notebook() -> Any:
    """IPython's display module inside a Jupyter kernel; None elsewhere. Nothing is imported that is not running already."""
    if "ipykernel" not in sys.modules:
        return None
    asked = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return sys.modules.get("IPython.display") if asked is not None and getattr(asked(), "kernel", None) is not None else None


class _TerminalBar:
    def __init__(self, what: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(what, total=total)
        self._progress.start()

    def update(self, done: int) -> None:
        self._progress.update(self._task, completed=done, refresh=True)

    def close(self) -> None:
        self._progress.stop()


class _NotebookBar:
    def __init__(self, display: Any, what: str, total: int) -> None:
        self._html, self._what, self._total = display.HTML, what, total
        self._handle = display.display(self._drawn(0), display_id=True)

    def _drawn(self, done: int) -> Any:
        return self._html(f"<progress max='{self._total}' value='{done}'></progress> {self._what}: {done:,} of {self._total:,}")

    def update(self, done: int) -> None:
        self._handle.update(self._drawn(done))

    def close(self) -> None:
        self._handle.update(self._html(""))
