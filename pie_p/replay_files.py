"""A replay on disk and as tables: requests, power bins and the summary."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from pie_p.errors import InputError
from pie_p.extras import require
from pie_p.quantities import shown
from pie_p.storage import locked, write_atomically

FORMS: Final = ("csv", "parquet")
Columns = Mapping[str, Any]


def frame_of_columns(columns: Columns) -> Any:
    """A pandas DataFrame, or an Arrow table where pandas is missing.

    Raises:
        MissingExtraError: neither is installed.
    """
    if find_spec("pandas") is not None:
        return require("pandas", extra="train").DataFrame(dict(columns))
    return require("pyarrow", extra="train").table(dict(columns))


def save_replay(folder: str | Path, *, requests: Columns, bins: Columns, summary: Mapping[str, Any], form: str = "csv") -> None:
    """Write `requests` and `bins` in the form asked for, and `summary.json`, each whole or not at all.

    Raises:
        InputError: another form, or the disk refuses.
        MissingExtraError: Parquet without pyarrow.
    """
    if form not in FORMS:
        raise InputError(f"form = {shown(form)} is not known; allowed: {', '.join(FORMS)}")
    encode = _csv if form == "csv" else _parquet
    contents = {f"requests.{form}": encode(requests), f"bins.{form}": encode(bins)}
    contents["summary.json"] = json.dumps(summary, indent=1, allow_nan=False).encode()
    with locked(folder, error=InputError) as place:
        for name, content in contents.items():
            write_atomically(place / name, content, error=InputError)


def _csv(columns: Columns) -> bytes:
    """Figures in full, nothing for what does not exist."""
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    cells = [["" if value != value else value for value in np.asarray(column).tolist()] for column in columns.values()]
    table.writerows(zip(*cells, strict=True))
    return text.getvalue().encode()


def _parquet(columns: Columns) -> bytes:
    arrow = require("pyarrow", extra="train")
    parquet = require("pyarrow.parquet", extra="train")
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    table = {name: arrow.array(one, mask=np.isnan(one) if one.dtype.kind == "f" else None) for name, one in arrays.items()}
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table(table), sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())
