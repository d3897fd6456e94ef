"""Storage: several files take their places together or not at all, and a place is looked at before the work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pie_p.errors import PredictorError, ProfileError
from pie_p.storage import check_target, write_together


def test_files_written_together_are_all_there(tmp_path: Path) -> None:
    write_together({tmp_path / "a": b"1", tmp_path / "b": b"2"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"1", "b": b"2"}


def test_a_disk_that_fills_up_at_the_last_file_changes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"old")
    synced = []

    def full(handle: int) -> None:
        synced.append(handle)
        if len(synced) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ProfileError, match="No space left on device; nothing was changed"):
        write_together({tmp_path / "a": b"1", tmp_path / "b": b"2"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


def test_a_folder_that_is_there_or_can_be_made_is_a_target(tmp_path: Path) -> None:
    assert check_target(tmp_path) == tmp_path
    assert check_target(tmp_path / "new" / "er") == tmp_path / "new" / "er"
    assert not (tmp_path / "new").exists()  # asked, not made


def test_a_file_in_the_way_is_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(PredictorError, match="file is not a folder"):
            check_target(place, error=PredictorError)


def test_no_permission_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(ProfileError, match="no permission in"):
        check_target(tmp_path / "new")


def test_a_manifest_of_something_else_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "a browser extension"}')
    with pytest.raises(ProfileError, match="is that of something else"):
        check_target(tmp_path, mark="pie_p predictor")
    (tmp_path / "manifest.json").write_text('{"format": "pie_p predictor"')  # torn, and a predictor's
    check_target(tmp_path, mark="pie_p predictor")
