"""Frames: rows as a pandas DataFrame, or as an Arrow table where pandas is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from pie_p.errors import MissingExtraError
from pie_p.extras import require


def frame_of(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Any:
    """A table with these columns; units are in their names.

    Raises:
        MissingExtraError: neither pandas nor pyarrow is installed.
    """
    values = {name: [row[name] for row in rows] for name in columns}
    if find_spec("pandas") is not None:
        return require("pandas", extra="train").DataFrame(values, columns=list(columns))
    if find_spec("pyarrow") is not None:
        return require("pyarrow", extra="train").table(values)
    raise MissingExtraError("a table needs pandas or pyarrow, and neither is installed: pip install pandas, or pip install 'pie_p[train]'")
