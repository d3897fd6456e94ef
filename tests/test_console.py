"""Progress of long work where nobody watches a terminal."""

from __future__ import annotations

import pytest

from pie_p import console


def test_work_that_takes_long_writes_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = iter([0.0, 10.0, 31.0, 31.0, 45.0, 62.0, 62.0])
    monkeypatch.setattr(console, "monotonic", lambda: next(seconds))
    with console.progress("train") as show:
        for done in range(1, 5):
            show("linear", done, 4)
    assert capsys.readouterr().err == "train: linear, 2 of 4\ntrain: linear, 4 of 4\n"


def test_quiet_work_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress("train", quiet=True) as show:
        show("linear", 1, 4)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")
