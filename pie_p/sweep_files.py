"""Tables of a sweep on disk: CSV, JSON or Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pie_p.errors import InputError
from pie_p.extras import require
from pie_p.storage import write_atomically

SUFFIXES: Final = (".csv", ".json", ".parquet")
Rows = Sequence[Mapping[str, Any]]


def save_sweep(path: str | Path, *, columns: Sequence[str], rows: Callable[[], Rows], plain: Callable[[], Mapping[str, Any]]) -> None:
    """Write the file that its suffix says, whole or not at all.

    Args:
        path: ends in .csv, .json or .parquet.
        columns: of the tables.
        rows: makes the rows of a table.
        plain: makes the JSON.

    Raises:
        InputError: another suffix, or the disk refuses.
        MissingExtraError: Parquet without pyarrow.
    """
    place = Path(path)
    suffix = place.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"cannot save a sweep as {str(path)!r:.200}: its suffix must be one of {', '.join(SUFFIXES)}")
    if suffix == ".json":
        content = json.dumps(plain(), indent=1, allow_nan=False).encode()
    else:
        content = _csv(columns, rows()) if suffix == ".csv" else _parquet(columns, rows())
    write_atomically(place, content, error=InputError)


def _csv(columns: Sequence[str], rows: Rows) -> bytes:
    """Figures in full, nothing for what does not exist."""
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue().encode()


def _parquet(columns: Sequence[str], rows: Rows) -> bytes:
    arrow = require("pyarrow", extra="train")
    parquet = require("pyarrow.parquet", extra="train")
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table({name: [row[name] for row in rows] for name in columns}), sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())
