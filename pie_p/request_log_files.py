"""Logs of requests and tables of jobs as files: CSV, JSON lines or Parquet to arrays, bad rows counted by reason and named.

A log of requests has `start`, `end`, `prompt_tokens`, `output_tokens`, and where they are known `id`, `cached_prompt_tokens` and
`deployment`. A table of jobs, as `sacct -P` prints it, has `Start`, `End`, and where there are several deployments `deployment` or
`JobName`. Upper and lower case are one. Times are ISO 8601 or seconds; a time without a zone is UTC.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import numpy as np

from pie_p.errors import InputError, did_you_mean
from pie_p.parquet import read_columns
from pie_p.physics import Floats
from pie_p.storage import read_whole

MOST_BYTES: Final = 1 << 32
MOST_TOKENS: Final = 1e8
MOST_TIME_S: Final = 1e11  # the year 5138; more is milliseconds

# what a column is called here -> what it may be called there, in lower case
NAMES: Final = {
    "start_s": ("start_s", "start", "start_time", "started_at", "arrival", "arrival_s", "timestamp"),
    "end_s": ("end_s", "end", "end_time", "ended_at", "finish", "finished_at"),
    "prompt_tokens": ("prompt_tokens", "input_tokens", "num_prompt_tokens", "contexttokens"),
    "output_tokens": ("output_tokens", "completion_tokens", "generated_tokens", "num_output_tokens", "generatedtokens"),
    "cached_prompt_tokens": ("cached_prompt_tokens", "cached_tokens"),
    "id": ("id", "request_id", "jobid", "job_id"),
    "deployment": ("deployment", "jobname", "replica"),
}
REQUEST_COLUMNS: Final = ("start_s", "end_s", "prompt_tokens", "output_tokens")
JOB_COLUMNS: Final = ("start_s", "end_s")


class _BadRow(Exception):
    """Why one row is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRows:
    """Rows that were left out for one reason."""

    reason: str
    count: int
    first_line: int  # of the file, its header being line 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogRows:
    """Rows of a log as arrays, in the file's order; tokens are absent from a table of jobs."""

    start_s: Floats  # [s]
    end_s: Floats  # [s]
    prompt_tokens: Floats  # cached ones included [-]
    output_tokens: Floats  # [-]
    cached_prompt_tokens: Floats  # [-]
    id: list[str]
    deployment: list[str]
    lines: list[int]  # of the file
    bad_rows: tuple[BadRows, ...]

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def dropped(self) -> int:
        """Rows of the file that are not here [-]."""
        return sum(rows.count for rows in self.bad_rows)


def read_log(path: str | Path, *, jobs: bool = False) -> LogRows:
    """A log of requests, or a table of jobs.

    Args:
        path: ends in .csv, .tsv, .txt (separated by commas, tabs, semicolons or bars), .jsonl, .ndjson or .parquet.
        jobs: a table of jobs: no tokens.

    Raises:
        InputError: unreadable, a column missing, or not one good row.
    """
    place = Path(path)
    needed = JOB_COLUMNS if jobs else REQUEST_COLUMNS
    rows = _rows(place)
    good: list[tuple[float, float, float, float, float, str, str, int]] = []
    bad: dict[str, list[int]] = {}
    known: dict[tuple[str, ...], Mapping[str, str]] = {}
    for line, row in rows:
        shape = tuple(row or ())
        try:
            if row is None:
                raise _BadRow("more cells than the header")
            if row and not known:
                known[shape] = _columns(row, needed, place)
            elif shape not in known:
                known[shape] = _columns(row, needed)
            good.append(_row(row, known[shape], line, jobs=jobs))
        except _BadRow as fault:
            bad.setdefault(str(fault), []).append(line)
    bad_rows = tuple(BadRows(reason=reason, count=len(lines), first_line=lines[0]) for reason, lines in bad.items())
    if not good:
        why = f": {bad_rows[0].reason} (line {bad_rows[0].first_line})" if bad_rows else ""
        raise InputError(f"{place} has no usable row{why}")
    table = list(zip(*good, strict=True))
    numbers = [np.array(values, dtype=np.float64) for values in table[:5]]
    return LogRows(
        start_s=numbers[0], end_s=numbers[1], prompt_tokens=numbers[2], output_tokens=numbers[3], cached_prompt_tokens=numbers[4],
        id=[str(value) for value in table[5]], deployment=[str(value) for value in table[6]],
        lines=[int(value) for value in table[7]], bad_rows=bad_rows,
    )  # fmt: skip


def time_s(value: Any) -> float:
    """Seconds of a time: a number of seconds, or ISO 8601; without a zone it is UTC.

    >>> time_s("1970-01-01T00:01:00Z"), time_s("1970-01-01 01:01:00+01:00"), time_s(60)
    (60.0, 60.0, 60.0)
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = _iso_s(value)
    if not math.isfinite(number):
        raise InputError("a time that is not finite")
    if abs(number) > MOST_TIME_S:
        raise InputError("a time too large for seconds; are these milliseconds?")
    return number


def _iso_s(value: Any) -> float:
    text = str(value or "").strip()
    text = f"{text[:-1]}+00:00" if text.endswith(("Z", "z")) else text
    head, dot, rest = text.partition(".")
    if dot:  # Python 3.10 reads three or six digits of a second, others write nine
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        text = f"{head}.{digits[:6]:0<6}{rest[len(digits) :]}"
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InputError("a time that is neither a number of seconds nor ISO 8601") from None
    return (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp()


def _rows(place: Path) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    """Line number and cells of every row; None where there are more cells than columns, and which is which cannot be told."""
    suffix = place.suffix.lower()
    content = read_whole(place, what="log", most=MOST_BYTES, error=InputError)
    if suffix == ".parquet":
        yield from _parquet_rows(content, place)
    elif suffix in (".jsonl", ".ndjson"):
        yield from _json_rows(_text(content, place))
    elif suffix in (".csv", ".tsv", ".txt"):
        yield from _csv_rows(_text(content, place), place)
    else:
        raise InputError(f"{place} must end in .csv, .tsv, .txt, .jsonl, .ndjson or .parquet")


def _text(content: bytes, place: Path) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{place} is not UTF-8 text") from None


def _csv_rows(text: str, place: Path) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    header = text.partition("\n")[0]
    mark = max(",\t;|", key=header.count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=mark)
    try:
        for row in reader:
            cells = {name.strip(): cell for name, cell in row.items() if isinstance(name, str)}
            yield reader.line_num, None if any(row.get(None, ())) else cells
    except csv.Error as error:
        raise InputError(f"{place} line {reader.line_num} is no row of a table: {error}") from None


def _json_rows(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            yield number, row if isinstance(row, dict) else {}


def _parquet_rows(content: bytes, place: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    columns = read_columns(content, what=str(place))
    names = list(columns)
    for number, cells in enumerate(zip(*columns.values(), strict=True), start=1):
        yield number, dict(zip(names, cells, strict=True))


def _columns(row: Mapping[str, Any], needed: Iterable[str], place: Path | None = None) -> dict[str, str]:
    """What each column is called in this file; of a later row of another shape what is missing is its own fault."""
    there = {name.strip().lower(): name for name in row}
    found = {column: there[name] for column, names in NAMES.items() for name in reversed(names) if name in there}
    missing = [column for column in needed if column not in found]
    if missing and place is None:
        raise _BadRow(f"no {missing[0]}" if row else "no JSON object")
    if missing:
        wanted = NAMES[missing[0]][:3]
        near = did_you_mean(wanted[1], there)
        raise InputError(f"{place} has no column {' or '.join(wanted)}; it has: {', '.join(row)}.{near}")
    return found


def _row(
    row: Mapping[str, Any], columns: Mapping[str, str], line: int, *, jobs: bool
) -> tuple[float, float, float, float, float, str, str, int]:
    start_s, end_s = _time(row.get(columns["start_s"])), _time(row.get(columns["end_s"]))
    if end_s < start_s:
        raise _BadRow("it ends before it starts")
    if not jobs and end_s == start_s:
        raise _BadRow("it takes no time")
    prompt = 0.0 if jobs else _tokens("prompt_tokens", row.get(columns["prompt_tokens"]))
    output = 0.0 if jobs else _tokens("output_tokens", row.get(columns["output_tokens"]))
    cached = _tokens("cached_prompt_tokens", row.get(columns["cached_prompt_tokens"]) or 0) if "cached_prompt_tokens" in columns else 0.0
    if not jobs and prompt < 1:
        raise _BadRow("no prompt tokens")
    if not jobs and cached > prompt:
        raise _BadRow("more cached tokens than prompt tokens")
    name = row.get(columns["id"]) if "id" in columns else None
    deployment = row.get(columns["deployment"]) if "deployment" in columns else None
    return start_s, end_s, prompt, output, cached, _word(name) or str(line), _word(deployment), line


def _word(value: Any) -> str:
    """A name, which a table may hold as a number."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.17g}"
    return str(value if value is not None else "").strip()


def _time(value: Any) -> float:
    try:
        return time_s(value)
    except InputError as error:
        raise _BadRow(str(error)) from None


def _tokens(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise _BadRow(f"{name} that is no number") from None
    if not 0 <= number <= MOST_TOKENS:
        raise _BadRow(f"{name} below 0, above {MOST_TOKENS:g} or not finite")
    return number
