"""Files of arrivals: CSV, JSON lines or Parquet in the forms of public traces, each row read or counted with its reason.

A form is known by its header. Nothing is guessed: a file of no known form is an error that says what came and what is known, and a row that
cannot be is kept out with its line number, never dropped without a word.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_p.errors import InputError
from pie_p.extras import require
from pie_p.quantities import shown

Raw = Sequence[Any]
ROLES: Final = ("arrival_s", "prompt_tokens", "output_tokens", "cached_prompt_tokens", "llm", "log_type")
NEEDED: Final = ROLES[:3]
MOST_NAMED: Final = 5  # rows named per reason
MAX_TOKENS: Final = 100_000_000
ZONE: Final = re.compile(r"\s*(?:Z|UTC|(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d)?)$")  # at the end of a date


class Form(NamedTuple):
    """How a public trace names its columns."""

    name: str
    columns: Mapping[str, str]  # role to column
    seconds: float = 1.0  # of one unit of a numeric arrival [s]


# Azure: github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md. BurstGPT: github.com/HPMLL/BurstGPT, README (Timestamp in
# seconds). Vidur: its trace replay's columns. Mooncake: github.com/kvcache-ai/Mooncake, FAST25-release (timestamp in milliseconds).
FORMS: Final = (
    Form("generic", {role: role for role in ROLES}),
    Form("azure", {"arrival_s": "TIMESTAMP", "prompt_tokens": "ContextTokens", "output_tokens": "GeneratedTokens"}),
    Form(
        "burstgpt",
        {
            "arrival_s": "Timestamp",
            "prompt_tokens": "Request tokens",
            "output_tokens": "Response tokens",
            "llm": "Model",
            "log_type": "Log Type",
        },
    ),
    Form("vidur", {"arrival_s": "arrived_at", "prompt_tokens": "num_prefill_tokens", "output_tokens": "num_decode_tokens"}),
    Form("mooncake", {"arrival_s": "timestamp", "prompt_tokens": "input_length", "output_tokens": "output_length"}, 1e-3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRows:
    """Rows of a file that could not be used as they came, for one reason."""

    reason: str  # "prompt_tokens is not above 0"
    count: int
    lines: tuple[int, ...]  # the first few line numbers, counted from 1 with the header
    kept: bool = False  # put right and kept (out of order), not left out

    def __str__(self) -> str:
        named = ", ".join(str(line) for line in self.lines) + (", ..." if self.count > len(self.lines) else "")
        return f"{self.count} row{'s' * (self.count != 1)}: {self.reason} (line {named})"


class TraceColumns(NamedTuple):
    """What a file holds, checked: arrays by role, and the rows that are not in them."""

    form: str
    numbers: dict[str, NDArray[np.float64]]  # arrival_s, prompt_tokens, output_tokens and perhaps cached_prompt_tokens
    texts: dict[str, NDArray[np.object_]]  # llm, log_type where the file has them
    bad: tuple[BadRows, ...]
    rows: int  # in the file


class _Table(NamedTuple):
    header: list[str]
    columns: dict[str, Raw]
    lines: NDArray[np.int64]
    unread: list[int]  # lines that are no row at all
    unread_why: str = "not a JSON object"


def read_trace_columns(path: str | Path, *, columns: Mapping[str, str] | None = None) -> TraceColumns:
    """Columns of a trace file.

    Args:
        path: ends in .csv, .jsonl or .parquet, the first two perhaps with .gz.
        columns: names of own columns by role, where the file is of no known form; arrivals in seconds or as dates.

    Raises:
        InputError: no such file, another suffix, not readable, or of no known form.
        MissingExtraError: Parquet without pyarrow.
    """
    place = Path(path)
    table = _read(place)
    form = _form_of(table.header, columns, place)
    found = {role: table.columns[name] for role, name in form.columns.items() if name in table.columns}
    faults = _Faults(table.lines)
    numbers = {"arrival_s": _arrivals(found["arrival_s"], form.seconds, faults)}
    for role in ("prompt_tokens", "output_tokens", "cached_prompt_tokens"):
        if role in found:
            numbers[role] = _tokens(role, found[role], faults, least=0 if role.startswith("cached") else 1)
    if "cached_prompt_tokens" in numbers:
        faults.add("cached_prompt_tokens is more than prompt_tokens", numbers["cached_prompt_tokens"] > numbers["prompt_tokens"])
    good = ~faults.any
    arrivals = numbers["arrival_s"][good]
    late = arrivals < np.maximum.accumulate(arrivals)
    order = np.flatnonzero(good)[np.argsort(arrivals, kind="stable")]
    return TraceColumns(
        form=form.name,
        numbers={role: values[order] for role, values in numbers.items()},
        texts={
            role: np.array(["" if one is None else str(one) for one in found[role]], dtype=object)[order]
            for role in ("llm", "log_type")
            if role in found
        },
        bad=(
            *faults.rows(),
            *_named(table.unread_why, np.array(table.unread, dtype=np.int64)),
            *_named("arrival before that of an earlier row; put in order", table.lines[good][late], kept=True),
        ),
        rows=len(table.lines) + len(table.unread),
    )


class _Faults:
    """Rows that cannot be, by their first reason."""

    def __init__(self, lines: NDArray[np.int64]) -> None:
        self.lines = lines
        self.any = np.zeros(len(lines), dtype=bool)
        self.reasons: list[tuple[str, NDArray[np.bool_]]] = []

    def add(self, reason: str, rows: NDArray[np.bool_]) -> None:
        new = rows & ~self.any
        if new.any():
            self.reasons.append((reason, new))
            self.any = self.any | new

    def rows(self) -> Iterator[BadRows]:
        for reason, rows in self.reasons:
            yield from _named(reason, self.lines[rows])


def _named(reason: str, lines: NDArray[np.int64], *, kept: bool = False) -> Iterator[BadRows]:
    if len(lines):
        yield BadRows(reason=reason, count=len(lines), lines=tuple(lines[:MOST_NAMED].tolist()), kept=kept)


def _tokens(role: str, raw: Raw, faults: _Faults, *, least: int) -> NDArray[np.float64]:
    values, readable = _floats(raw)
    faults.add(f"{role} is not a number", ~readable)
    finite = np.isfinite(values)
    faults.add(f"{role} is not finite", readable & ~finite)
    safe = np.where(finite, values, 1.0)
    faults.add(f"{role} is below 0", safe < 0)
    if least:
        faults.add(f"{role} is 0", safe == 0)
    faults.add(f"{role} is not a whole number", safe != np.floor(safe))
    faults.add(f"{role} is above {MAX_TOKENS}", safe > MAX_TOKENS)
    return safe


def _arrivals(raw: Raw, seconds: float, faults: _Faults) -> NDArray[np.float64]:
    """Seconds since the first usable arrival where they are dates; numbers as they are."""
    values, readable = _floats(raw)
    if not readable.all():
        dates = _dates(raw)
        if dates is not None and np.isfinite(dates).sum() > readable.sum():
            values, readable, seconds = dates, np.isfinite(dates), 1.0
    finite = np.isfinite(values)
    faults.add("arrival is neither a number nor a date", ~readable)
    faults.add("arrival is not finite", readable & ~finite)
    values = np.where(finite, values, 0.0) * seconds
    faults.add("arrival is below 0", values < 0)
    return values


def _floats(raw: Raw) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Values, NaN where there is none, and which cells are numbers; "nan" and "inf" are numbers here, refused by the caller."""
    try:
        if not any(isinstance(one, bool) or one is None for one in raw):
            return np.array(raw, dtype=np.float64), np.ones(len(raw), dtype=bool)
    except (ValueError, TypeError, OverflowError):
        pass
    pairs = [_float(one) for one in raw]
    return np.array([value for value, _ in pairs], dtype=np.float64), np.array([good for _, good in pairs], dtype=bool)


def _float(cell: Any) -> tuple[float, bool]:
    if isinstance(cell, bool) or not isinstance(cell, (str, int, float)):
        return np.nan, False
    try:
        return float(cell), True
    except (ValueError, OverflowError):
        return np.nan, False


def _dates(raw: Raw) -> NDArray[np.float64] | None:
    """Seconds since the earliest date, NaN where a cell is none; None where no cell is one."""
    stamps = np.array([_date(cell) for cell in raw], dtype="datetime64[ns]")
    known = ~np.isnat(stamps)
    if not known.any():
        return None
    since = (stamps - stamps[known].min()).astype(np.float64) * 1e-9
    return np.where(known, since, np.nan)


def _date(cell: Any) -> np.datetime64:
    """A date and time, in UTC where it names a zone."""
    text = str(cell).strip()
    if len(text) < 10 or text[4:5] != "-":
        return np.datetime64("NaT")
    zone = ZONE.search(text, 11)
    try:
        stamp = np.datetime64(text[: zone.start()] if zone else text, "ns")
    except ValueError:
        return np.datetime64("NaT")
    if zone and zone["sign"]:
        stamp -= np.timedelta64(int(zone["sign"] + "1") * (60 * int(zone["hours"]) + int(zone["minutes"] or 0)), "m")
    return stamp


def _form_of(header: list[str], own: Mapping[str, str] | None, place: Path) -> Form:
    if own is not None:
        odd = [role for role in own if role not in ROLES]
        missing = [role for role in NEEDED if role not in own] or [name for name in own.values() if name not in header]
        if odd or missing:
            what = f"no role {odd[0]!r}" if odd else f"{missing[0]!r} is missing"
            raise InputError(f"columns = {shown(dict(own))}: {what}; give {', '.join(NEEDED)} and columns that {place.name} has")
        return Form("own", own)
    if not header:
        raise InputError(f"{place.name} holds no table: it is empty, or no line of it is a row")
    by_name = {_plain(name): name for name in reversed(header)}
    for form in FORMS:
        if all(_plain(form.columns[role]) in by_name for role in NEEDED):
            return form._replace(columns={role: by_name[_plain(name)] for role, name in form.columns.items() if _plain(name) in by_name})
    known = "; ".join(f"{form.name}: {', '.join(form.columns[role] for role in NEEDED)}" for form in FORMS)
    came = ", ".join(header[:8])[:200] or "none"
    raise InputError(f"{place.name} has columns {came}: no known form of a trace. Known: {known}. Name your own with columns={{...}}")


def _plain(name: str) -> str:
    return " ".join(name.strip().strip("\ufeff").lower().split())


def _read(place: Path) -> _Table:
    suffixes = [suffix.lower() for suffix in place.suffixes]
    kind = suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else suffixes[-1] if suffixes else ""
    readers = {".csv": _read_csv, ".jsonl": _read_jsonl, ".ndjson": _read_jsonl}
    if kind not in (*readers, ".parquet"):
        raise InputError(f"cannot read a trace from {str(place)!r}: its name must end in .csv, .jsonl (each perhaps with .gz) or .parquet")
    try:
        if kind == ".parquet":
            return _read_parquet(place.read_bytes(), place.name)
        with place.open("rb") as file:
            plain: Any = gzip.GzipFile(fileobj=file) if suffixes[-1] == ".gz" else file
            with io.TextIOWrapper(plain, encoding="utf-8-sig", newline="") as text:
                return readers[kind](text)
    except FileNotFoundError:
        raise InputError(f"no trace at {str(place)!r}") from None
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise InputError(f"cannot read the trace {place.name!r}: {reason}") from None


def _read_csv(text: Iterable[str]) -> _Table:
    source = iter(text)
    first = next(source, "")
    reader = csv.reader(chain((first,), source), delimiter=max(",\t;|", key=first.count))
    header = next(reader, [])
    width = len(header)
    rows, lines, odd = [], [], []
    for row in reader:
        if any(row[width:]):  # a comma too many: which cell is which cannot be told
            odd.append(reader.line_num)
        elif row:
            rows.append(row if len(row) >= width else row + [""] * (width - len(row)))
            lines.append(reader.line_num)
    cells = list(zip(*rows, strict=False)) if rows else [()] * width
    return _Table(header, dict(zip(header, cells, strict=False)), np.array(lines, dtype=np.int64), odd, "more cells than the header")


def _read_jsonl(text: Iterable[str]) -> _Table:
    rows, lines, unread = [], [], []
    for number, line in enumerate(text, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            rows.append(value)
            lines.append(number)
        else:
            unread.append(number)
    header = list(dict.fromkeys(name for row in rows[:100] for name in row))
    columns: dict[str, Raw] = {name: [row.get(name) for row in rows] for name in header}
    return _Table(header, columns, np.array(lines, dtype=np.int64), unread)


def _read_parquet(content: bytes, what: str) -> _Table:
    arrow = require("pyarrow", extra="train")
    require("pyarrow.parquet", extra="train")
    try:
        table = arrow.parquet.read_table(arrow.BufferReader(content))
        columns: dict[str, Raw] = {}
        for name in table.column_names:
            column = table.column(name)
            if arrow.types.is_timestamp(column.type):
                column = column.cast(arrow.timestamp("ns")).cast(arrow.string())
            columns[name] = column.to_pylist()
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{what} is not a readable Parquet file: {' '.join(str(error).split())[:160]}") from None
    return _Table(list(table.column_names), columns, np.arange(1, table.num_rows + 1), [])


def trace_content(suffix: str, columns: Mapping[str, list[Any]]) -> bytes:
    """Bytes of a file in the generic form.

    Args:
        suffix: .csv, .csv.gz or .parquet.
        columns: by role.

    Raises:
        InputError: another suffix.
        MissingExtraError: Parquet without pyarrow.
    """
    if suffix == ".parquet":
        arrow = require("pyarrow", extra="train")
        sink = arrow.BufferOutputStream()
        require("pyarrow.parquet", extra="train").write_table(arrow.table(dict(columns)), sink, compression="zstd")
        return bytes(sink.getvalue().to_pybytes())
    if suffix not in (".csv", ".csv.gz"):
        raise InputError(f"cannot write a trace as {suffix!r}; allowed: .csv, .csv.gz, .parquet")
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(zip(*columns.values(), strict=True))
    content = text.getvalue().encode()
    return gzip.compress(content, mtime=0) if suffix == ".csv.gz" else content
