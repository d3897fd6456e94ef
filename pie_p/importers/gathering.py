"""What all importers share: finding files below a path, reading them, and keeping account of what was read, kept and rejected."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from pie_p.errors import ProfileError
from pie_p.parquet import read_columns
from pie_p.profile_manifest import InputFile, Rejected
from pie_p.storage import read_whole, sha256
from pie_p.tables import Array, Table, TableName, repeated_rows

Progress = Callable[[str, int, int], None]  # (what is read, files done, files in all)

MOST_FILE_BYTES: Final = 1 << 30

# Folder and device names of the public sets, as the catalogue names the GPU.
GPU_NAMES: Final[dict[str, str]] = {
    "a100_sxm": "a100-sxm-80gb",
    "a100-sxm4-40gb": "a100-sxm-40gb",
    "h100": "h100-sxm-80gb",
    "h100_sxm": "h100-sxm-80gb",
    "h200_sxm": "h200-sxm-141gb",
    "b200": "b200-sxm-180gb",
    "b200_sxm": "b200-sxm-180gb",
    "b300_sxm": "b300-sxm-288gb",
    "gb200": "gb200-186gb",
    "gb300": "gb300-288gb",
    "l40s": "l40s-48gb",
    "a40": "a40-48gb",
    "a100": "a100-sxm-80gb",
    "rtx_pro_6000_server": "rtx-pro-6000-96gb",
}


@dataclass(slots=True)
class Gathered:
    """Rows and the account of an import, as it grows."""

    source: str
    root: Path
    progress: Progress | None = None
    tables: list[Table] = field(default_factory=list)
    inputs: list[InputFile] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    _seen: dict[str, str] = field(default_factory=dict)

    def files(self, *patterns: str) -> list[Path]:
        """Files below the path that match any glob, in a stable order.

        Raises:
            ProfileError: the path is not there, or nothing matches.
        """
        if not self.root.exists():
            raise ProfileError(f"no such path: {self.root}")
        found = sorted({path for pattern in patterns for path in self.root.rglob(pattern) if path.is_file()})
        if not found:
            raise ProfileError(f"nothing below {self.root} looks like {self.source!r}; looked for {', '.join(patterns)}")
        return found

    def name(self, path: Path) -> str:
        """A file's path below the root, with forward slashes."""
        return path.relative_to(self.root).as_posix()

    def read(self, path: Path, *, what: str) -> bytes:
        """A file's bytes, unpacked when gzipped."""
        content = read_whole(path, what=what, most=MOST_FILE_BYTES)
        if path.suffix != ".gz":
            return content
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
                unpacked = packed.read(MOST_FILE_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise ProfileError(f"{path} is not a whole gzip file: {error}") from None
        if len(unpacked) > MOST_FILE_BYTES:
            raise ProfileError(f"{path} unpacks to more than {MOST_FILE_BYTES} bytes")
        return unpacked

    def is_repeat(self, path: Path, content: bytes, rows: int, *, measurements: bytes | None = None) -> bool:
        """Whether the same came before; a repeat is accounted for as rejected.

        Args:
            path: the file.
            content: its bytes.
            rows: its rows [-].
            measurements: what makes two files one measurement, when that is less than all their bytes.
        """
        self.inputs.append(InputFile(file=self.name(path), sha256=sha256(content), rows=rows))
        first = self._seen.setdefault(sha256(content if measurements is None else measurements), self.name(path))
        if first == self.name(path):
            return False
        self.reject(path, f"repeats {first}", rows)
        return True

    def skip(self, path: Path, reason: str) -> None:
        """Account for a file that is not read at all."""
        self.rejected.append(Rejected(file=self.name(path), reason=reason, rows=0))

    def reject(self, path: Path | str, reason: str, rows: int) -> None:
        """Account for rows that are read but not kept."""
        if rows:
            file = path if isinstance(path, str) else self.name(path)
            self.rejected.append(Rejected(file=file, reason=reason, rows=int(rows)))

    def unrepeated(self, path: Path, columns: dict[str, Array]) -> dict[str, Array]:
        """A file's rows without those that repeat an earlier one in every column; they are accounted for."""
        again = repeated_rows(columns)
        self.reject(path, "repeats another row of the file", int(again.sum()))
        return {name: values[~again] for name, values in columns.items()} if again.any() else columns

    def add(self, table: Table) -> None:
        """Keep rows."""
        self.tables.append(table)

    def add_rows(self, name: TableName, rows: Iterable[dict[str, Any]]) -> None:
        """Keep rows given one by one; for small tables."""
        listed = list(rows)
        if listed:
            keys = sorted({key for row in listed for key in row})
            columns = {key: [row.get(key, np.nan) for row in listed] for key in keys}
            self.add(Table.from_columns(name, columns))

    def step(self, path: Path, done: int, total: int) -> None:
        """Tell the caller how far it is."""
        if self.progress is not None:
            self.progress(self.name(path), done, total)

    def whole(self) -> list[Table]:
        """One table per kind.

        Raises:
            ProfileError: no row was kept.
        """
        kinds = {table.name for table in self.tables if table.rows}
        if not kinds:
            reasons = sorted({item.reason for item in self.rejected})
            raise ProfileError(
                f"no row of {self.source!r} could be kept from {self.root}: {'; '.join(reasons[:3]) or 'the files are empty'}"
            )
        return [Table.concat([table for table in self.tables if table.name == kind]) for kind in sorted(kinds)]


def json_object(content: bytes, *, what: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ProfileError: not JSON, or not an object.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{what} is not JSON: {str(error)[:120]}") from None
    if not isinstance(value, dict):
        raise ProfileError(f"{what} holds a JSON {type(value).__name__}, not an object")
    return value


def csv_columns(content: bytes, *, what: str) -> dict[str, Array]:
    """Columns of a CSV file: float64 where every cell is a number or empty (NaN), else texts.

    Raises:
        ProfileError: not text, no rows, or a row with another number of cells than the head.
    """
    try:
        rows = list(csv.reader(io.StringIO(content.decode("utf-8"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ProfileError(f"{what} is not a CSV file: {str(error)[:120]}") from None
    if len(rows) < 2:
        raise ProfileError(f"{what} has no rows below its head")
    head, body = rows[0], rows[1:]
    for number, row in enumerate(body, start=2):
        if len(row) != len(head):
            raise ProfileError(f"{what} is torn: line {number} has {len(row)} cells, the head has {len(head)}")
    return {name: _numbers_or_texts([row[index] for row in body]) for index, name in enumerate(head)}


def parquet_columns(content: bytes, *, what: str, needed: Iterable[str]) -> dict[str, Array]:
    """Columns of a Parquet file that must hold at least those named.

    Raises:
        ProfileError: not Parquet, torn, or a column is missing.
    """
    columns = read_columns(content, what=what)
    return needed_columns(columns, what=what, needed=needed)


def needed_columns(columns: dict[str, Array], *, what: str, needed: Iterable[str]) -> dict[str, Array]:
    """The same columns, once those named are known to be there.

    Raises:
        ProfileError: with the first that is missing.
    """
    for name in needed:
        if name not in columns:
            raise ProfileError(f"{what} lacks the column {name!r}; it has {', '.join(sorted(columns))[:160]}")
    return columns


def number(record: dict[str, Any], key: str, *, what: str) -> float:
    """A finite number above 0 in a JSON object.

    Raises:
        ProfileError: missing, or not such a number.
    """
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ProfileError(f"{what}: {key!r} = {str(value)[:40]} is not a number above 0")
    return float(value)


def _numbers_or_texts(cells: list[str]) -> Array:
    try:
        return np.array([float(cell) if cell else np.nan for cell in cells], dtype=np.float64)
    except ValueError:
        return np.array(cells, dtype=object)
