"""Tables of measurements: the four kinds a profile holds, their columns with units, and a light columnar `Table`.

- `operators`: one row per measured kernel, the columns of `pie_p.operators.Operator` plus what was measured and where;
- `collectives`: the same columns, for kernels in which ranks meet;
- `waits`: how long ranks wait for each other, as a distribution;
- `end_to_end`: a whole deployment under load.

A number that was not measured is NaN, a text that is not known is empty; 0 never stands for either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from pie_p.errors import ProfileError, did_you_mean
from pie_p.operators import COLLECTIVES, KINDS

Array = npt.NDArray[Any]
Origin = Literal["measured", "imported", "simulated"]
ORIGINS: Final[tuple[Origin, ...]] = get_args(Origin)
TableName = Literal["operators", "collectives", "waits", "end_to_end"]

# Measured as one kernel or one block, but no leaf of the tree: kept for study, never trained on as an operator kind.
MODULE_KINDS: Final = ("mla_prefill", "mla_decode", "mla_bmm", "quantize", "rope", "attention", "mlp")
WAIT_CAUSES: Final = ("skew", "bubble", "launch_gap", "host_gap")
METER_SCOPES: Final = ("gpu", "host wall", "none")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its storage, its unit and what it means."""

    name: str
    type: Literal["text", "number"]  # UTF-8, or float64
    unit: str  # "s", "W", "B", "-"; text has none
    meaning: str
    default: str | float | None = None  # what an absent column is filled with; None: it must be there
    least: float = 0.0  # smallest allowed number
    above: bool = False  # must be above `least`
    allowed: tuple[str, ...] = ()  # allowed texts; empty: any


def _text(name: str, meaning: str, *, default: str | None = "", allowed: tuple[str, ...] = ()) -> Column:
    return Column(name, "text", "", meaning, default=default, allowed=allowed)


def _number(name: str, unit: str, meaning: str, *, default: float | None = np.nan, least: float = 0.0, above: bool = False) -> Column:
    return Column(name, "number", unit, meaning, default=default, least=least, above=above)


_COUNTED: Final = (
    _text("path", "place in the tree, when known"),
    _text("kind", "operator kind: which regressor answers for it", default=None),
    _number("calls", "-", "times per step", default=1.0),
    _number("flops", "FLOP", "per call", default=0.0),
    _number("hbm_bytes", "B", "moved per call, read and written", default=0.0),
    _number("weight_bytes", "B", "part of hbm_bytes that is weights", default=0.0),
    _number("kv_bytes", "B", "part of hbm_bytes that is KV cache or recurrent state", default=0.0),
    _number("payload_bytes", "B", "what one rank hands to the collective", default=0.0),
    _number("group_size", "-", "ranks that must meet; 1: no communication", default=1.0, least=1.0),
    _number("hosts", "-", "hosts those ranks sit on", default=1.0, least=1.0),
    _text("dtype", "storage of the weights", default="bf16"),
    _text("kv_dtype", "storage of the KV cache", default="bf16"),
    _number("tokens", "-", "rows of the activation; for attention: query tokens per sequence", default=0.0),
    _number("in_features", "-", "width that comes in, per rank", default=0.0),
    _number("out_features", "-", "width that goes out, per rank", default=0.0),
    _number("sequences", "-", "attention and scan: sequences", default=0.0),
    _number("context_tokens", "-", "attention: KV positions a query reads, mean over the step", default=0.0),
    _number("heads", "-", "attention: query heads per rank", default=0.0),
    _number("kv_heads", "-", "attention: KV heads per rank", default=0.0),
    _number("head_dim", "-", "attention: width of queries and keys", default=0.0),
    _number("experts", "-", "routed experts held by the rank", default=0.0),
    _number("top_k", "-", "routed experts per token", default=0.0),
)

# The fields of an operator that a kernel measured by itself has; what the host does with it (`launches`) is no property of the kernel.
COUNTED: Final[tuple[str, ...]] = tuple(column.name for column in _COUNTED)

_PLACE: Final = (
    _text("gpu", "catalogue name of the GPU", default=None),
    _text("engine", "vllm, sglang, trtllm, nccl, ...: the software that ran"),
    _text("engine_version", "its version"),
    _text("kernel_source", "backend or implementation, as the measurer named it"),
    _text("link", "how the ranks are joined"),
    _text("detail", "what else distinguishes the row, as key=value pairs"),
)

_PROVENANCE: Final = (
    _text("origin", "measured by our profiler, imported from others, or simulated", default=None, allowed=ORIGINS),
    _text("source", "id in profiles/sources.toml, or the campaign's name", default=None),
)

_MEASURED: Final = (
    _number("time_s", "s", "of one call", default=None, above=True),
    _number("spread_s", "s", "standard deviation of the time over repeats"),
    _number("power_w", "W", "mean board power of one GPU while it ran", above=True),
    _number("power_limit_w", "W", "power limit in force", above=True),
    _number("samples", "-", "repeats behind the row", least=1.0),
)

_WAITS: Final = (
    _text("cause", "skew at a collective, pipeline bubble, launch gap or host gap", default=None, allowed=WAIT_CAUSES),
    _text("path", "place in the tree, when known"),
    _text("kind", "collective the ranks wait at; empty for gaps"),
    _text("preceding", "kind of the work before the wait"),
    _number("preceding_s", "s", "mean time of that work"),
    _number("group_size", "-", "ranks that must meet", default=None, least=1.0),
    _number("hosts", "-", "hosts those ranks sit on", default=1.0, least=1.0),
    _number("payload_bytes", "B", "what one rank hands to the collective", default=0.0),
    _number("mean_s", "s", "mean wait of a rank", default=None),
    _number("p50_s", "s", "median wait", default=None),
    _number("p90_s", "s", "90th percentile", default=None),
    _number("p99_s", "s", "99th percentile", default=None),
    _number("spread_s", "s", "standard deviation", default=None),
    _number("count", "-", "waits observed", default=None, least=1.0),
    _number("power_w", "W", "mean board power of a waiting GPU", above=True),
    _number("power_limit_w", "W", "power limit in force", above=True),
)

_END_TO_END: Final = (
    _text("llm", "id of the LLM, as the measurer wrote it", default=None),
    _text("workload", "name of the request mix"),
    _text("mode", "steady: a server kept at `batch`; static: all start together", default="steady", allowed=("steady", "static")),
    _number("tp", "-", "tensor-parallel ranks", default=1.0, least=1.0),
    _number("pp", "-", "pipeline stages", default=1.0, least=1.0),
    _number("dp", "-", "data-parallel ranks", default=1.0, least=1.0),
    _number("ep", "-", "ranks the experts are spread over", default=1.0, least=1.0),
    _number("hosts", "-", "hosts the deployment sits on", default=1.0, least=1.0),
    _text("dtype", "storage of the weights", default="bf16"),
    _text("kv_dtype", "storage of the KV cache", default="bf16"),
    _number("batch", "-", "requests in flight per data-parallel rank, measured mean", above=True),
    _number("max_batch", "-", "limit on requests in flight, as configured for the server", above=True),
    _number("prompt_tokens", "-", "mean prompt length", default=None, above=True),
    _number("output_tokens", "-", "mean output length", default=None, above=True),
    _number("output_second_moment", "-", "mean of the squared output length", above=True),
    _number("time_per_token_s", "s", "batch / output-token throughput of one data-parallel rank, others' prefill included", above=True),
    _number("itl_s", "s", "median time between two tokens of a request", above=True),
    _number("itl_p90_s", "s", "90th percentile of it", above=True),
    _number("itl_p99_s", "s", "99th percentile of it", above=True),
    _number("ttft_s", "s", "mean time to the first token", above=True),
    _number("tpot_s", "s", "(latency - ttft) / (output tokens - 1), as the measurer reports it", above=True),
    _number("throughput_tokens_per_s", "1/s", "output tokens of the whole deployment", above=True),
    _number("energy_per_output_token_j", "J", "of the meter's scope, prefill included", above=True),
    _number("avg_power_w", "W", "of the meter's scope, all GPUs together", above=True),
    _number("power_limit_w", "W", "limit in force per GPU", above=True),
    _text("meter_scope", "what the power covers", default="gpu", allowed=METER_SCOPES),
    _text("assumed", "what the source does not say and we filled in"),
    _text("odd_group", "name of a group of rows that behaves like nothing else"),
)

SCHEMA: Final[dict[TableName, tuple[Column, ...]]] = {
    "operators": _COUNTED + _MEASURED + _PLACE + _PROVENANCE,
    "collectives": _COUNTED + _MEASURED + _PLACE + _PROVENANCE,
    "waits": _WAITS + _PLACE + _PROVENANCE,
    "end_to_end": _END_TO_END + _PLACE + _PROVENANCE,
}
_ALLOWED_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "operators": (*(kind for kind in KINDS if kind not in COLLECTIVES), *MODULE_KINDS),
    "collectives": (*(kind for kind in KINDS if kind in COLLECTIVES), "all_to_all_prepare"),  # the routing step before an all-to-all
}


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Columns of equal length: numbers as float64, texts as object arrays of `str`.

    >>> time = {"kind": ["linear", "linear"], "time_s": [1e-3, 2e-3], "gpu": "h100-sxm-80gb", "origin": "simulated", "source": "example"}
    >>> table = Table.from_columns("operators", time)
    >>> table.rows, float(table["time_s"].sum()), float(table.select(table["time_s"] > 1e-3)["time_s"][0])
    (2, 0.003, 0.002)
    """

    name: TableName
    columns: Mapping[str, Array]

    @classmethod
    def from_columns(cls, name: TableName, columns: Mapping[str, object]) -> Table:
        """A checked table: single values are repeated, absent columns take their default.

        Raises:
            ProfileError: an unknown or missing column, unequal lengths, a value that cannot be.
        """
        schema = schema_of(name)
        known = {column.name for column in schema}
        for given in columns:
            if given not in known:
                raise ProfileError(f"the table {name!r} has no column {given!r}.{did_you_mean(given, known)} Columns: docs/data.md")
        rows = _common_length(name, columns)
        filled = {column.name: _filled(name, column, columns.get(column.name, column.default), rows) for column in schema}
        table = cls(name, filled)
        table.check()
        return table

    @classmethod
    def concat(cls, tables: Sequence[Table]) -> Table:
        """Rows of several tables of one kind, one below the other."""
        names = {table.name for table in tables}
        if len(names) != 1:
            raise ProfileError(f"only tables of one kind can be put together; got {sorted(names) or 'none'}")
        first = tables[0]
        return cls(first.name, {key: np.concatenate([table.columns[key] for table in tables]) for key in first.columns})

    @classmethod
    def empty(cls, name: TableName) -> Table:
        """A table without rows."""
        dtypes = {"text": object, "number": np.float64}
        return cls(name, {column.name: np.empty(0, dtype=dtypes[column.type]) for column in schema_of(name)})

    def __getitem__(self, column: str) -> Array:
        try:
            return self.columns[column]
        except KeyError:
            raise ProfileError(f"the table {self.name!r} has no column {column!r}.{did_you_mean(column, self.columns)}") from None

    @property
    def rows(self) -> int:
        """Number of rows [-]."""
        return len(next(iter(self.columns.values())))

    def __len__(self) -> int:
        return self.rows

    def select(self, which: Array | slice) -> Table:
        """Rows by mask, by index or by slice."""
        return Table(self.name, {key: values[which] for key, values in self.columns.items()})

    def with_columns(self, **columns: object) -> Table:
        """The same rows with some columns replaced, checked again."""
        return Table.from_columns(self.name, {**self.columns, **columns})

    def row(self, index: int) -> dict[str, Any]:
        """One row as plain Python values."""
        return {key: values[index] if values.dtype == object else float(values[index]) for key, values in self.columns.items()}

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        """All rows, one dictionary each; for small tables."""
        return (self.row(index) for index in range(self.rows))

    def equals(self, other: Table) -> bool:
        """Same kind, same rows in the same order; NaN equals NaN."""
        return self.name == other.name and self.rows == other.rows and all(_same(self[key], other[key]) for key in self.columns)

    def check(self) -> None:
        """Every value is one that can be.

        Raises:
            ProfileError: with the column, the first bad value, and what is allowed.
        """
        for column in schema_of(self.name):
            allowed = _ALLOWED_KINDS.get(self.name, ()) if column.name == "kind" else column.allowed
            _check_column(self.name, column, self[column.name], allowed)


def schema_of(name: str) -> tuple[Column, ...]:
    """Columns of a table.

    >>> [column.unit for column in schema_of("operators") if column.name == "power_w"]
    ['W']
    """
    for known, columns in SCHEMA.items():
        if known == name:
            return columns
    raise ProfileError(f"no table {name!r} in a profile; allowed: {', '.join(SCHEMA)}")


def repeats(table: Table) -> Array:
    """Mask of rows that repeat an earlier row in every column.

    >>> time = {"kind": "linear", "time_s": [1e-3, 2e-3, 1e-3], "gpu": "h100-sxm-80gb", "origin": "simulated", "source": "example"}
    >>> repeats(Table.from_columns("operators", time)).tolist()
    [False, False, True]
    """
    return repeated_rows(table.columns)


def repeated_rows(columns: Mapping[str, Array]) -> Array:
    """The same for any columns of equal length."""
    rows = len(next(iter(columns.values()))) if columns else 0
    key = np.zeros(rows, dtype=np.int64)
    for values in columns.values():
        codes = _codes(values)
        if rows and codes.max():  # a constant column tells no rows apart
            key = np.unique(key * (int(codes.max()) + 1) + codes, return_inverse=True)[1]
    mask = np.ones(rows, dtype=bool)
    mask[np.unique(key, return_index=True)[1]] = False
    return mask


def _codes(values: Array) -> Array:
    if values.dtype == object:
        index: dict[str, int] = {}
        return np.fromiter((index.setdefault(text, len(index)) for text in values), dtype=np.int64, count=len(values))
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _common_length(name: str, columns: Mapping[str, object]) -> int:
    series = {key: values for key, values in columns.items() if isinstance(values, (list, tuple, np.ndarray)) and np.ndim(values) == 1}
    lengths = {key: len(values) for key, values in series.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{key} {length}" for key, length in sorted(lengths.items()))
        raise ProfileError(f"columns of {name!r} differ in length: {told}")
    return next(iter(lengths.values()), 1)


def _filled(name: str, column: Column, value: object, rows: int) -> Array:
    if value is None:
        raise ProfileError(f"the table {name!r} needs the column {column.name!r} ({column.meaning}); it is missing")
    dtype = object if column.type == "text" else np.float64
    try:
        values = np.asarray(value, dtype=dtype)
    except (TypeError, ValueError):
        raise ProfileError(f"column {column.name!r} of {name!r} must hold {column.type}s; got {str(value)[:60]!r}") from None
    if values.ndim == 0:
        return np.full(rows, values.item() if dtype is object else values, dtype=dtype)
    if values.ndim != 1:
        raise ProfileError(f"column {column.name!r} of {name!r} has {values.ndim} dimensions; a column has one")
    return values


def _check_column(name: str, column: Column, values: Array, allowed: tuple[str, ...]) -> None:
    if column.type == "text":
        odd = [value for value in set(values) if not isinstance(value, str) or (allowed and value not in allowed)]
        if odd:
            rule = f"allowed: {', '.join(allowed)}" if allowed else "it holds texts"
            raise ProfileError(f"column {column.name!r} of {name!r} holds {min(map(repr, odd))[:60]}; {rule}")
        return
    bad = ~((values > column.least) if column.above else (values >= column.least)) | np.isinf(values)
    if isinstance(column.default, float) and np.isnan(column.default):
        bad &= ~np.isnan(values)  # not measured
    if bad.any():
        row = int(np.argmax(bad))
        rule = f"finite numbers {'above' if column.above else 'of at least'} {column.least:g} [{column.unit}]"
        raise ProfileError(f"column {column.name!r} of {name!r} holds {values[row]} in row {row}; allowed: {rule}")


def _same(left: Array, right: Array) -> bool:
    return bool(np.array_equal(left, right) if left.dtype == object else np.array_equal(left, right, equal_nan=True))
