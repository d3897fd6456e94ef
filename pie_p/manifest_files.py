"""Manifests on disk: read within a bound, checked against their shape, and refused in one line when another version wrote them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from pie_p.errors import PiePError, ProfileError
from pie_p.storage import read_whole

M = TypeVar("M", bound=BaseModel)


def read_manifest(path: Path, shape: type[M], *, of: str, newest: int, most: int, error: type[PiePError] = ProfileError) -> tuple[M, bytes]:
    """A manifest with a field `schema_version`, and its text as it is on disk.

    Args:
        path: of the file.
        shape: what it must look like.
        of: what it is the manifest of, for messages: "a profile".
        newest: highest schema version that is read [-].
        most: bytes it may have [B].
        error: class of what is raised.

    Raises:
        PiePError: of the class `error`: not there, too large, not of this shape, or of a newer schema.
    """
    text = read_whole(path, what=f"manifest of {of}", most=most, error=error)
    try:
        manifest = shape.model_validate_json(text)
    except ValidationError as problem:
        version = re.search(rb'"schema_version"\s*:\s*(\d{1,9})', text)
        if version and int(version[1]) > newest:
            raise _newer(path, int(version[1]), newest, error) from None
        first = problem.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the text"
        raise error(f"{path} is not the manifest of {of}: {place}: {first['msg']}"[:300]) from None
    written = int(cast(Any, manifest).schema_version)
    if written > newest:
        raise _newer(path, written, newest, error)
    return manifest, text


def _newer(path: Path, version: int, newest: int, error: type[PiePError]) -> PiePError:
    return error(f"{path} has schema version {version}; this pie_p reads up to {newest}: pip install -U pie_p")
