"""Manifests on disk, of whatever kind, are refused the same way."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from pie_p.errors import PredictorError
from pie_p.manifest_files import read_manifest


class Note(BaseModel):
    schema_version: int
    name: str


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"schema_version": 3, "name": "x"}', "has schema version 3; this pie_p reads up to 2: pip install -U pie_p"),
        ('{"schema_version": 3}', "has schema version 3; this pie_p reads up to 2"),
        ('{"schema_version": 2}', "is not the manifest of a note: name: Field required"),
        ("{", "is not the manifest of a note: the text: Invalid JSON"),
    ],
)
def test_what_cannot_be_read_is_one_line_of_the_callers_class(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PredictorError) as refused:
        read_manifest(path, Note, of="a note", newest=2, most=1000, error=PredictorError)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_text_comes_back_as_it_is_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text('{"name":  "x", "schema_version": 2}', encoding="utf-8")
    note, text = read_manifest(path, Note, of="a note", newest=2, most=1000)
    assert (note.name, text) == ("x", path.read_bytes())
