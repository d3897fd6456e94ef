"""RequestTrace: when requests arrive, and how many tokens each brings and takes.

    arrival_s        0.0   0.4          1.9
    prompt_tokens    374   396          879
    output_tokens     44   109           55

Arrivals rise; token counts are whole. A trace is read from a file (`load_trace`), drawn (`synthetic_trace`) or built from arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pie_p.arrivals import ARRIVALS, Arrivals, Burst, Lengths, draw_arrivals, draw_lengths
from pie_p.errors import InputError
from pie_p.quantities import as_float, as_int, shown
from pie_p.storage import write_atomically
from pie_p.trace_files import MAX_TOKENS, BadRows, read_trace_columns, trace_content
from pie_p.workload import LengthDistribution

MOST_REQUESTS: Final = 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestTrace:
    """Arrivals of requests with their tokens, as read-only arrays in order of arrival.

    Args:
        arrival_s: when each request comes, not falling [s].
        prompt_tokens: tokens in, cached ones included, at least 1 [-].
        output_tokens: tokens out, at least 1 [-].
        cached_prompt_tokens: prompt tokens found in a prefix cache; default none [-].
        llm: which LLM each request asked for, where the source says.
        log_type: what kind of request it was, where the source says.
        name: of the source.
        bad_rows: rows of the source that are not here, or were put in order.

    Raises:
        InputError: arrays of different lengths, arrivals that fall, a count that cannot be; one line that names the place.

    >>> trace = RequestTrace(arrival_s=[0.0, 0.5], prompt_tokens=[374, 396], output_tokens=[44, 109])
    >>> len(trace), int(trace.output_tokens.sum())
    (2, 153)
    """

    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    cached_prompt_tokens: NDArray[np.int64] | None = None
    llm: NDArray[np.object_] | None = None
    log_type: NDArray[np.object_] | None = None
    name: str = "trace"
    bad_rows: tuple[BadRows, ...] = field(default=())

    def __post_init__(self) -> None:
        arrival_s = _array("arrival_s", self.arrival_s, np.float64)
        _refuse_first("arrival_s", arrival_s, ~np.isfinite(arrival_s) | (arrival_s < 0), "a finite number of at least 0 seconds")
        fallen = np.flatnonzero(np.diff(arrival_s) < 0)
        if len(fallen):
            first = int(fallen[0]) + 1
            raise InputError(
                f"arrival_s[{first}] = {arrival_s[first]:g} follows {arrival_s[first - 1]:g}; arrivals rise: sort the requests"
            )
        self._set("arrival_s", arrival_s)
        for name in ("prompt_tokens", "output_tokens", "cached_prompt_tokens"):
            if getattr(self, name) is not None:
                self._set(name, _counts(name, getattr(self, name), len(arrival_s)))
        for name in ("llm", "log_type"):
            if getattr(self, name) is not None:
                self._set(name, _sized(name, _array(name, getattr(self, name), np.object_), len(arrival_s)))
        if self.cached_prompt_tokens is not None:
            _refuse_first(
                "cached_prompt_tokens", self.cached_prompt_tokens, self.cached_prompt_tokens > self.prompt_tokens, "at most prompt_tokens"
            )

    def _set(self, name: str, values: NDArray[Any]) -> None:
        values.flags.writeable = False
        object.__setattr__(self, name, values)

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __str__(self) -> str:
        return f"{self.name}: {len(self)} requests in {self.duration_s:g} s"

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last [s]."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0

    @property
    def rate_per_s(self) -> float:
        """Mean arrivals per second between the first and the last [1/s]; 0 where they are at one time."""
        return (len(self) - 1) / self.duration_s if self.duration_s else 0.0

    @property
    def output_lengths(self) -> LengthDistribution:
        """Output lengths as `predict_energy(output_tokens=...)` takes them."""
        return LengthDistribution.from_lengths(self.output_tokens.tolist())

    @property
    def dropped(self) -> int:
        """Rows of the source that are not here [-]."""
        return sum(rows.count for rows in self.bad_rows if not rows.kept)

    def only(self, which: NDArray[Any] | slice) -> RequestTrace:
        """The chosen requests alone: a mask, places in rising order or a slice.

        >>> synthetic_trace(requests=100, rate_per_s=1, prompt_tokens=10, output_tokens=10).only(slice(0, 3)).arrival_s.shape
        (3,)
        """
        parts = {name: getattr(self, name) for name in _ARRAYS}
        chosen: dict[str, Any] = {name: None if part is None else part[which] for name, part in parts.items()}
        return RequestTrace(**chosen, name=self.name)

    def faster(self, factor: float) -> RequestTrace:
        """The same requests, arriving `factor` times as fast."""
        times = as_float("factor", factor, above=True)
        parts: dict[str, Any] = {name: getattr(self, name) for name in _ARRAYS} | {"arrival_s": self.arrival_s / times}
        return RequestTrace(**parts, name=f"{self.name} x {times:g}", bad_rows=self.bad_rows)

    def summary(self) -> TraceSummary:
        """Counts, rates and lengths."""
        return TraceSummary.of(self)

    def save(self, path: str | Path) -> None:
        """Write a .csv, .csv.gz or .parquet file in the generic form, whole or not at all; `load_trace` reads it back.

        Raises:
            InputError: another suffix, or the disk refuses.
        """
        place = Path(path)
        kind = "".join(place.suffixes[-2:]) if place.suffix == ".gz" else place.suffix
        write_atomically(place, trace_content(kind.lower(), self.to_dict()), error=InputError)

    def to_dict(self) -> dict[str, Any]:
        """Columns as plain lists, those that are there."""
        return {name: getattr(self, name).tolist() for name in _ARRAYS if getattr(self, name) is not None}


_ARRAYS: Final = ("arrival_s", "prompt_tokens", "output_tokens", "cached_prompt_tokens", "llm", "log_type")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """A trace in a few figures."""

    requests: int
    duration_s: float
    rate_per_s: float
    gap_variation: float  # standard deviation over mean of the gaps: 1 for Poisson arrivals, above for bursts [-]
    prompt_tokens: Mapping[str, float]  # total, mean, p50, p90, p99, most
    output_tokens: Mapping[str, float]
    dropped: int
    bad_rows: tuple[str, ...]

    @classmethod
    def of(cls, trace: RequestTrace) -> TraceSummary:
        """Figures of a trace."""
        gaps = np.diff(trace.arrival_s)
        mean = float(gaps.mean()) if len(gaps) else 0.0
        return cls(
            requests=len(trace),
            duration_s=trace.duration_s,
            rate_per_s=trace.rate_per_s,
            gap_variation=float(gaps.std()) / mean if mean else 0.0,
            prompt_tokens=_figures(trace.prompt_tokens),
            output_tokens=_figures(trace.output_tokens),
            dropped=trace.dropped,
            bad_rows=tuple(str(rows) for rows in trace.bad_rows),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        plain = {name: getattr(self, name) for name in ("requests", "duration_s", "rate_per_s", "gap_variation", "dropped")}
        return {
            **plain,
            "prompt_tokens": dict(self.prompt_tokens),
            "output_tokens": dict(self.output_tokens),
            "bad_rows": list(self.bad_rows),
        }


def _figures(tokens: NDArray[np.int64]) -> dict[str, float]:
    if not len(tokens):
        return {"total": 0.0}
    p50, p90, p99 = (float(one) for one in np.percentile(tokens, [50, 90, 99]))
    return {"total": float(tokens.sum()), "mean": float(tokens.mean()), "p50": p50, "p90": p90, "p99": p99, "most": float(tokens.max())}


def load_trace(path: str | Path, *, columns: Mapping[str, str] | None = None, strict: bool = False) -> RequestTrace:
    """A trace from CSV, JSON lines (each perhaps gzipped) or Parquet; its form is known by its columns.

    Azure's (TIMESTAMP, ContextTokens, GeneratedTokens), BurstGPT's (Timestamp, Model, Request tokens, Response tokens, Log Type), Vidur's,
    Mooncake's, and the generic one (arrival_s, prompt_tokens, output_tokens and perhaps cached_prompt_tokens, llm, log_type). Arrivals are
    counted from the first one. Rows that cannot be (negative, not a number, zero tokens) are left out and rows out of order put in order;
    both are counted and named in `bad_rows`.

    Args:
        path: of the file.
        columns: own column names by role, for a file of another form: `{"arrival_s": "when", "prompt_tokens": ...}`.
        strict: refuse a file with any such row.

    Raises:
        InputError: no such file, of no known form, without a usable row, or not flawless where `strict` asks for that.
    """
    read = read_trace_columns(path, columns=columns)
    name = Path(path).name
    bad = "; ".join(str(rows) for rows in read.bad)
    if strict and read.bad:
        raise InputError(f"{name} has bad rows: {bad}")
    arrival_s = read.numbers["arrival_s"]
    if not len(arrival_s):
        raise InputError(f"{name} has no usable request among {read.rows} rows" + (f": {bad}" if bad else ""))
    numbers = {**read.numbers, "arrival_s": arrival_s - arrival_s[0]}
    return RequestTrace(**numbers, **read.texts, name=name, bad_rows=read.bad)  # type: ignore[arg-type]


def synthetic_trace(
    *,
    requests: int,
    rate_per_s: float,
    prompt_tokens: Lengths,
    output_tokens: Lengths,
    arrivals: Arrivals = "poisson",
    variation: float = 2.0,
    burst: Burst | None = None,
    cached_share: float = 0.0,
    seed: int = 0,
) -> RequestTrace:
    """A trace drawn from stated distributions; the same seed gives the same trace.

    Args:
        requests: how many [-].
        rate_per_s: mean arrivals per second.
        prompt_tokens: a number, a list of observed lengths, or `Lognormal(mean=..., variation=...)` [tokens].
        output_tokens: likewise [tokens].
        arrivals: "regular" (equal gaps), "poisson", "gamma" (gaps of a stated `variation`) or "bursty" (Markov-modulated Poisson).
        variation: standard deviation over mean of the gaps, for "gamma" [-].
        burst: for "bursty": how much more often, in which share of time, and how long.
        cached_share: of every prompt found in the prefix cache [-].
        seed: of the generator.

    Raises:
        InputError: with the value that came and what is allowed.

    >>> trace = synthetic_trace(requests=1000, rate_per_s=2.0, prompt_tokens=200, output_tokens=[50, 150], seed=1)
    >>> bool(abs(trace.rate_per_s - 2.0) < 0.2), int(trace.output_tokens.max())
    (True, 150)
    """
    if not isinstance(arrivals, str) or arrivals not in ARRIVALS:
        raise InputError(f"arrivals = {shown(arrivals)} is not known; allowed: {', '.join(ARRIVALS)}")
    count = as_int("requests", requests, most=MOST_REQUESTS)
    streams = [np.random.default_rng(one) for one in np.random.SeedSequence(as_int("seed", seed, least=0, most=10**18)).spawn(3)]
    arrival_s = draw_arrivals(
        arrivals,
        streams[0],
        count,
        rate_per_s=as_float("rate_per_s", rate_per_s, above=True, most=1e9),
        variation=as_float("variation", variation, least=1e-3, most=1e3),
        burst=burst or Burst(),
    )
    prompts = draw_lengths("prompt_tokens", prompt_tokens, streams[1], count)
    share = as_float("cached_share", cached_share, most=1.0)
    return RequestTrace(
        arrival_s=arrival_s,
        prompt_tokens=prompts,
        output_tokens=draw_lengths("output_tokens", output_tokens, streams[2], count),
        cached_prompt_tokens=np.floor(prompts * share).astype(np.int64) if share else None,
        name=f"{arrivals}, {rate_per_s:g} requests/s, seed {seed}",
    )


def _array(name: str, values: Any, dtype: Any) -> NDArray[Any]:
    try:
        array = np.array(values, dtype=dtype)
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"{name} = {shown(values)} is not a list of numbers; give one per request") from None
    if array.ndim != 1:
        raise InputError(f"{name} has {array.ndim} dimensions; give one value per request")
    return array


def _sized(name: str, array: NDArray[Any], requests: int) -> NDArray[Any]:
    if len(array) != requests:
        raise InputError(f"{name} has {len(array)} values for {requests} arrivals; give one per request")
    return array


def _counts(name: str, values: Any, requests: int) -> NDArray[np.int64]:
    array = _sized(name, _array(name, values, np.float64), requests)
    least = 0 if name.startswith("cached") else 1
    whole = np.isfinite(array) & (array >= least) & (array <= MAX_TOKENS) & (array == np.floor(array))
    _refuse_first(name, array, ~whole, f"a whole number of at least {least} and at most {MAX_TOKENS}")
    return array.astype(np.int64)


def _refuse_first(name: str, values: NDArray[Any], wrong: NDArray[np.bool_], allowed: str) -> None:
    places = np.flatnonzero(wrong)
    if len(places):
        raise InputError(f"{name}[{places[0]}] = {values[places[0]]:g} is not allowed; give {allowed} ({len(places)} such values)")
