"""Parquet: a `Table` to bytes and back. pyarrow comes with the extra `train`; nothing else in the package touches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from pie_p.errors import InputError, ProfileError
from pie_p.extras import require
from pie_p.storage import write_atomically
from pie_p.tables import Array, Column, Table, TableName, schema_of

MOST_ROWS: Final = 50_000_000  # a few GB of columns; the public sets have a million


def table_to_parquet(table: Table) -> bytes:
    """Zstandard-compressed Parquet; NaN becomes null, texts are dictionaries, units stand in the field metadata."""
    arrow = require("pyarrow", extra="train")
    require("pyarrow.parquet", extra="train")
    fields, arrays = [], []
    for column in schema_of(table.name):
        array = _to_arrow(arrow, column, table[column.name])
        arrays.append(array)
        fields.append(arrow.field(column.name, array.type, metadata={"unit": column.unit, "meaning": column.meaning}))
    sink = arrow.BufferOutputStream()
    whole = arrow.Table.from_arrays(arrays, schema=arrow.schema(fields, metadata={"pie_p table": table.name}))
    arrow.parquet.write_table(whole, sink, compression="zstd", compression_level=6)
    return bytes(sink.getvalue().to_pybytes())


def table_from_parquet(content: bytes, name: TableName, *, what: str) -> Table:
    """A checked table from Parquet bytes.

    Args:
        content: the file.
        name: which of the four tables it must be.
        what: the file's name, for messages.

    Raises:
        ProfileError: not Parquet, torn, a missing or foreign column, a value that cannot be.
    """
    columns = read_columns(content, what=what)
    known = {column.name for column in schema_of(name)}
    needed = {column.name for column in schema_of(name) if column.default is None}
    odd = sorted((needed - set(columns)) | (set(columns) - known))
    if odd:
        fault = "lacks" if odd[0] in needed else "has the unknown"
        raise ProfileError(f"{what} {fault} column {odd[0]!r}; a {name!r} table has the columns of docs/data.md")
    try:
        return Table.from_columns(name, columns)
    except ProfileError as error:
        raise ProfileError(f"{what}: {error}") from None


def read_columns(content: bytes, *, what: str) -> dict[str, Array]:
    """Columns of any Parquet file: numbers as float64 with NaN for null, timestamps as seconds since 1970, texts with "" for null.

    Raises:
        ProfileError: not Parquet, torn, or with more rows than a profile has.
    """
    arrow = require("pyarrow", extra="train")
    require("pyarrow.parquet", extra="train")
    try:
        file = arrow.parquet.ParquetFile(arrow.BufferReader(content))
        if file.metadata.num_rows > MOST_ROWS:
            raise ProfileError(f"{what} claims {file.metadata.num_rows} rows; at most {MOST_ROWS} are read")
        table = file.read()
        return {name: _from_arrow(arrow, table.column(name)) for name in table.column_names}
    except (arrow.ArrowException, OSError, ValueError, MemoryError, KeyError) as error:
        raise ProfileError(f"{what} is not a readable Parquet file: {_one_line(error)}") from None


def write_columns(
    path: Path, columns: Mapping[str, Sequence[Any]], *, units: Mapping[str, str], metadata: Mapping[str, str], extra: str = "train"
) -> None:
    """Write columns that are no profile's into a Parquet file, whole or not at all.

    Args:
        path: the file.
        columns: numbers or texts, None for what is not there; all equally long.
        units: of the columns that have one, for the field metadata.
        metadata: of the file.
        extra: which extra to name where pyarrow is missing.

    Raises:
        InputError: the disk refuses; what was there stays.
    """
    arrow = require("pyarrow", extra=extra)
    require("pyarrow.parquet", extra=extra)
    arrays = {
        name: arrow.array(values, type=None if any(v is not None for v in values) else arrow.float64()) for name, values in columns.items()
    }
    fields = [arrow.field(name, array.type, metadata={"unit": units.get(name, "-")}) for name, array in arrays.items()]
    whole = arrow.Table.from_arrays(list(arrays.values()), schema=arrow.schema(fields, metadata=dict(metadata)))
    sink = arrow.BufferOutputStream()
    arrow.parquet.write_table(whole, sink, compression="zstd")
    write_atomically(path, bytes(sink.getvalue().to_pybytes()), error=InputError)


def _to_arrow(arrow: Any, column: Column, values: Array) -> Any:
    if column.type == "text":
        return arrow.array(values, type=arrow.string()).dictionary_encode()
    return arrow.array(values, type=arrow.float64(), mask=np.isnan(values))


def _from_arrow(arrow: Any, column: Any) -> Array:
    kind = column.type
    if arrow.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if arrow.types.is_string(kind) or arrow.types.is_large_string(kind):
        encoded = column.combine_chunks().dictionary_encode()
        encoded = encoded.combine_chunks() if hasattr(encoded, "combine_chunks") else encoded
        texts = np.array([*encoded.dictionary.to_pylist(), ""], dtype=object)
        return np.asarray(texts[encoded.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False)])
    if arrow.types.is_boolean(kind) or arrow.types.is_floating(kind) or arrow.types.is_integer(kind) or arrow.types.is_null(kind):
        return np.asarray(column.cast(arrow.float64()).to_numpy(), dtype=np.float64)
    if arrow.types.is_timestamp(kind):  # seconds since 1970; a time without a zone is UTC
        whole = column.cast(arrow.timestamp("us", kind.tz), safe=False).cast(arrow.int64())
        return np.asarray(whole.cast(arrow.float64()).to_numpy(), dtype=np.float64) / 1e6
    raise ValueError(f"a column of type {kind}")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
