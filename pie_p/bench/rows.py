"""Responses as rows of a Parquet file: one per prompt and repetition that had an outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from pie_p.bench.outcomes import Outcome
from pie_p.errors import ProfileError
from pie_p.extras import require
from pie_p.parquet import read_columns

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class ResponseColumn:
    """One column: its storage, its unit and what it means."""

    name: str
    type: Literal["text", "number"]
    unit: str
    meaning: str


COLUMNS: Final = (
    ResponseColumn("window", "number", "-", "window of the run, from 0"),
    ResponseColumn("repetition", "number", "-", "from 0"),
    ResponseColumn("prompt", "number", "-", "its number in the file, from 0"),
    ResponseColumn("outcome", "text", "", "ok, or the fault of the last attempt"),
    ResponseColumn("attempts", "number", "-", "requests sent for it"),
    ResponseColumn("faults", "text", "", "of every failed attempt, joined by commas"),
    ResponseColumn("detail", "text", "", "of the last fault"),
    ResponseColumn("start_s", "number", "s", "first request sent, since the window began"),
    ResponseColumn("end_s", "number", "s", "outcome known, since the window began"),
    ResponseColumn("words", "number", "-", "written"),
    ResponseColumn("output_tokens", "number", "-", "written"),
    ResponseColumn("token_source", "text", "", "usage (the server says), tokenizer, chunks (pieces of the stream: a lower bound)"),
    ResponseColumn("prompt_tokens", "number", "-", "asked; null: not known"),
    ResponseColumn("cached_prompt_tokens", "number", "-", "of them found in the prefix cache; null: not told"),
    ResponseColumn("chunks", "number", "-", "pieces of the stream with text in them"),
    ResponseColumn("finish_reason", "text", "", "as the server says"),
    ResponseColumn("ttft_s", "number", "s", "last request sent to first text; null: the response came in one piece"),
    ResponseColumn("tpot_s", "number", "s", "(latency_s - ttft_s) / (output_tokens - 1)"),
    ResponseColumn("latency_s", "number", "s", "last request sent to last text"),
)
OK: Final = "ok"


def row_of(outcome: Outcome, *, window: int, window_start_s: float) -> dict[str, Any]:
    """One outcome as a row; what is not known is absent."""
    row: dict[str, Any] = {
        "window": window,
        "repetition": outcome.repetition,
        "prompt": outcome.prompt,
        "outcome": outcome.fault or OK,
        "attempts": len(outcome.faults) + (outcome.answer is not None),
        "faults": ",".join(outcome.faults),
        "detail": outcome.detail,
        "start_s": outcome.start_s - window_start_s,
        "end_s": outcome.end_s - window_start_s,
    }
    if outcome.answer is not None:
        names = [column.name for column in COLUMNS if column.name not in row]
        row |= {name: getattr(outcome.answer, name) for name in names}
    return row


def rows_to_parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Zstandard-compressed Parquet with the units in its metadata."""
    arrow = require("pyarrow", extra="bench")
    require("pyarrow.parquet", extra="bench")
    types = {"text": arrow.string(), "number": arrow.float64()}
    fields = [arrow.field(column.name, types[column.type], metadata={"unit": column.unit, "meaning": column.meaning}) for column in COLUMNS]
    arrays = [arrow.array([row.get(field.name) for row in rows], type=field.type) for field in fields]
    sink = arrow.BufferOutputStream()
    arrow.parquet.write_table(arrow.Table.from_arrays(arrays, schema=arrow.schema(fields)), sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def rows_from_parquet(content: bytes, *, what: str) -> dict[str, NDArray[Any]]:
    """Columns of such a file: NaN and "" where nothing is known.

    Raises:
        ProfileError: it is none.
    """
    columns = read_columns(content, what=what)
    missing = [column.name for column in COLUMNS if column.name not in columns]
    if missing:
        raise ProfileError(f"{what} holds no responses of a benchmark: it lacks {', '.join(missing[:5])}")
    return {column.name: _typed(column, columns[column.name]) for column in COLUMNS}


def _typed(column: ResponseColumn, values: NDArray[Any]) -> NDArray[Any]:
    if column.type == "text" and values.dtype != object:  # a column of nulls
        return np.full(len(values), "", dtype=object)
    return values


def joined(parts: Sequence[Columns]) -> dict[str, NDArray[Any]]:
    """Rows of several files, in order."""
    empty = {column.name: np.empty(0, dtype=object if column.type == "text" else np.float64) for column in COLUMNS}
    return {name: np.concatenate([empty[name], *(part[name] for part in parts)]) for name in empty}
