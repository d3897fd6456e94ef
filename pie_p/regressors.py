"""Learned times and powers of operators, each as a correction to the physical base. Needs numpy alone; `pie_p.training` makes them.

    time   = roofline time * exp(trees)                      held at the profiled edge outside it
    power  = active idle + (limit - active idle) * trees     a share of the room, for a kernel that runs again and again

Families of kinds share trees (`features.FAMILY_OF`); kinds without public measurements (norms, activations, embeddings, scans) stay on the
base. `Roofline` and `PowerLaw` answer the same questions and stand beside the learned figures in every table.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_p.errors import PredictorError
from pie_p.features import FAMILIES, FAMILY_CODE, FEATURES, MEETING, Columns, Family, inputs
from pie_p.kernels import KernelBook, Wanted
from pie_p.operators import KINDS
from pie_p.physics import AnyColumns, Floats, Roofline
from pie_p.power import PowerLaw
from pie_p.trees import Forest, forest_from_xgboost
from pie_p.units import DTYPES

Target = Literal["time", "power"]
MOST_BOOSTER_BYTES: Final = 64 << 20  # unpacked; ours have about one MB
CODES: Final = frozenset({"dtype_code", "kv_dtype_code", "kind_code"})  # inputs that are names: known or not, never near
UNBOUNDED: Final = frozenset({"kernel_code", "skew", "windowed", "fan_out", "comm_sms", "flop_rate", "byte_rate"})  # no range to leave
USUAL_SKEW: Final = 1.01  # tokens over experts as a power law of this exponent: the mildest uneven spread that was profiled
USUAL_COMM_SMS: Final = 20.0  # multiprocessors that DeepEP gives an exchange unless it is told otherwise
RANGE_SLACK: Final = 0.02  # octaves, 1.4 %: a mean over a batch is not yet another shape
MOST_SHARE: Final = 1.05  # of the room: what a meter was seen to read above the limit


@dataclass(frozen=True)
class Booster:
    """A saved booster, unpacked when it is first asked."""

    content: bytes = field(repr=False)  # gzipped JSON of XGBoost
    what: str = "booster"

    @cached_property
    def forest(self) -> Forest:
        """The trees."""
        return forest_from_xgboost(self.saved(), what=self.what)

    def saved(self) -> Mapping[str, Any]:
        """XGBoost's own JSON object.

        Raises:
            PredictorError: not gzip, not JSON, or far larger than a booster.
        """
        try:
            unpacker = zlib.decompressobj(wbits=31)
            text = unpacker.decompress(self.content, MOST_BOOSTER_BYTES)
            if unpacker.unconsumed_tail or not unpacker.eof:
                raise PredictorError(f"{self.what} is torn, or unpacks to more than {MOST_BOOSTER_BYTES} bytes")
            saved = json.loads(text)
        except (zlib.error, ValueError, RecursionError) as error:
            raise PredictorError(f"{self.what} is not a packed model file of XGBoost: {str(error)[:80]}") from None
        if not isinstance(saved, dict):
            raise PredictorError(f"{self.what} holds a JSON {type(saved).__name__}, not a model of XGBoost")
        return saved


def pack(saved: Mapping[str, Any], *, what: str = "booster") -> Booster:
    """A booster from XGBoost's JSON object, packed the same way every time."""
    return Booster(gzip.compress(json.dumps(saved, separators=(",", ":")).encode(), compresslevel=9, mtime=0), what)


@dataclass(frozen=True, kw_only=True)
class FamilyRegressor:
    """What was learned for one family of operators."""

    family: Family
    features: Mapping[Target, tuple[str, ...]]  # in the order the trees read them
    boosters: Mapping[Target, Booster]
    ranges: Mapping[str, tuple[float, float]]  # smallest and largest profiled value of each input
    known: Mapping[str, tuple[int, ...]]  # profiled values of inputs that are codes
    book: KernelBook
    fades: Mapping[str, float] = field(default_factory=dict)  # per input, octaves outside over which the correction fades; else it is held

    def ratio(self, columns: Columns) -> Ratio:
        """Correction of time for rows of this family, their kernels' codes set."""
        matrix = inputs(columns, self.features["time"])
        outside, trust = self._outside(matrix)
        return Ratio(self.boosters["time"].forest.predict(matrix) * trust, outside, matrix)

    def time_s(self, columns: Columns, roofline: Roofline) -> Floats:
        """Seconds per call of such rows."""
        return np.asarray(roofline.time_s(columns) * np.exp(self.ratio(columns).log))

    def share(self, columns: Columns, time_s: Floats, made: NDArray[np.float32] | None = None) -> Floats:
        """Share of the room between active idle and limit that rows of this family draw, each running again and again [-].

        Args:
            columns: rows with their kernels' codes.
            time_s: seconds per call.
            made: the inputs of their time, when they were made already.
        """
        known = {} if made is None else dict(zip(self.features["time"], made.T, strict=True))
        matrix = inputs({**columns, "time_s": time_s}, self.features["power"], made=known)
        return np.clip(self.boosters["power"].forest.predict(matrix), 0.0, MOST_SHARE)

    @cached_property
    def _edges(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Smallest and largest profiled value and octaves of fading, per input of time; infinite where there is none."""
        names = self.features["time"]
        ranges = [self.ranges.get(name, (-np.inf, np.inf)) for name in names]
        fades = [self.fades.get(name, np.inf) for name in names]
        return np.array([least for least, _ in ranges], "f4"), np.array([most for _, most in ranges], "f4"), np.array(fades, "f4")

    def _outside(self, matrix: NDArray[np.float32]) -> tuple[Floats, Floats]:
        """How far rows lie outside the profiled range, and how far the correction is applied there.

        Returns:
            Octaves, in the input where it is most, infinite for an unknown format; and a share, 1 inside and 0 for an unknown format [-].
        """
        least, most, fades = self._edges
        beyond = np.fmax(np.fmax(least - matrix, matrix - most) - np.float32(RANGE_SLACK), np.float32(0.0))  # a missing input is inside
        farthest = beyond.max(axis=1, initial=0.0).astype(np.float64)
        trust = np.maximum(1.0 - (beyond / fades).max(axis=1, initial=0.0), 0.0).astype(np.float64)
        for name, codes in self.known.items():
            values = matrix[:, self.features["time"].index(name)]
            unknown = np.all([values != code for code in codes], axis=0)
            farthest[unknown], trust[unknown] = np.inf, 0.0
        return farthest, trust


class Ratio(NamedTuple):
    """A correction of time, row by row."""

    log: Floats  # of time over the base [-]
    outside: Floats  # octaves outside the profiled range, infinite for an unknown format
    matrix: NDArray[np.float32]  # the inputs it was read from


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where rows run: the distinct (engine, release, board), and for each row which."""

    wanted: Sequence[Wanted]  # kind and formats empty
    which: NDArray[np.int64]


class Learned(NamedTuple):
    """What the regressors say about rows."""

    time_s: Floats  # per call, at the board's own limit [s]
    demand: Floats  # share of the room each row asks for, the limit not yet applied [-]
    outside: NDArray[np.bool_]  # rows outside what was profiled


@dataclass(frozen=True, kw_only=True)
class OperatorRegressors:
    """Learned times and powers behind the questions that `Roofline` and `PowerLaw` answer."""

    roofline: Roofline = field(default_factory=Roofline)
    families: Mapping[Family, FamilyRegressor] = field(default_factory=dict)

    def answer(self, columns: Columns, places: Places, law: PowerLaw) -> Learned:
        """Time and power of every row; those no family answers for follow the roofline and the law."""
        columns = {**columns, "eager": np.zeros(len(columns["kind_code"]))}  # kernels as in a graph; what the host adds is the clock's
        time_s, outside = self.roofline.time_s(columns), np.zeros(len(columns["kind_code"]), dtype=bool)
        shares: list[tuple[NDArray[np.int64], Floats]] = []
        families = FAMILY_CODE[columns["kind_code"]]
        for family, regressor in self.families.items():
            rows = np.flatnonzero(families == FAMILIES.index(family))
            if not len(rows):
                continue
            own = expected(picked(columns, rows), places, rows, regressor.book)
            ratio = regressor.ratio(own) if family not in MEETING else _faster(regressor, own, places, rows)
            time_s[rows] *= np.exp(ratio.log)
            met = (own["group_size"] > 1) if family in MEETING else np.ones(len(rows), dtype=bool)
            outside[rows] = (ratio.outside > 0) | (met & _foreign(own, places, rows, regressor.book))
            if "power" in regressor.boosters:
                known = np.isfinite(ratio.outside)  # of an unknown format the law knows more
                shares.append((rows[known], regressor.share(own, time_s[rows], made=ratio.matrix)[known]))
        demand = law.demand(columns, time_s)
        most = (law.ceiling * columns["limit_w"] - columns["active_idle_w"]) / (columns["limit_w"] - columns["active_idle_w"])
        for rows, share in shares:
            demand[rows] = unbent(share, most[rows], knee=law.knee)
        return Learned(time_s, demand, outside)


def _faster(regressor: FamilyRegressor, own: Columns, places: Places, rows: NDArray[np.int64]) -> Ratio:
    """Correction of collectives: an engine takes the faster of its own kernel and NCCL's, where both were profiled."""
    first, library = own["kernel_code"], _codes(own, places, rows, regressor.book, engine="nccl")
    either = np.concatenate([np.where(np.isnan(first), library, first), np.where(np.isnan(library), first, library)])
    both = {name: np.concatenate([values, values]) for name, values in own.items()} | {"kernel_code": either}
    ratio = regressor.ratio(both)
    faster = np.minimum(ratio.log[: len(rows)], ratio.log[len(rows) :])
    meeting = own["group_size"] > 1
    return Ratio(np.where(meeting, faster, 0.0), np.where(meeting, ratio.outside[: len(rows)], 0.0), ratio.matrix)


def picked(columns: AnyColumns, rows: NDArray[Any]) -> Columns:
    """Some rows of every column."""
    return {name: values[rows] for name, values in columns.items()}


def expected(columns: Columns, places: Places, rows: NDArray[np.int64], book: KernelBook) -> Columns:
    """Rows of one family with the kernel to expect on their deployment, started from a graph.

    Args:
        columns: these rows.
        places: where all rows run.
        rows: which of them these are.
        book: the family's kernels.
    """
    count = len(rows)
    return {**columns, "kernel_code": _codes(columns, places, rows, book), "windowed": np.zeros(count), **_unsaid(count)}


def _codes(columns: Columns, places: Places, rows: NDArray[np.int64], book: KernelBook, *, engine: str | None = None) -> Floats:
    """Codes of the kernels to expect: of the deployment's engine, or of the library named."""
    return _told(lambda key: book.default(_wanted(key, places, engine)), _keys(columns, places, rows))


def _foreign(columns: Columns, places: Places, rows: NDArray[np.int64], book: KernelBook) -> NDArray[np.bool_]:
    """Rows that no engine was profiled on: another board's measurements answer, or another format's on this one."""
    return _told(lambda key: not book.profiled(_wanted(key, places, None)), _keys(columns, places, rows)) > 0


def _keys(columns: Columns, places: Places, rows: NDArray[np.int64]) -> list[int]:
    """A number for each row that `_wanted` reads: its place, kind and formats."""
    key = ((places.which[rows] * len(KINDS) + columns["kind_code"]) * len(DTYPES) + columns["dtype_code"]) * len(DTYPES)
    return [int(one) for one in (key + columns["kv_dtype_code"]).tolist()]


def _told(answer: Callable[[int], float], keys: list[int]) -> Floats:
    answers = {key: answer(key) for key in dict.fromkeys(keys)}
    return np.array([answers[key] for key in keys], dtype=np.float64)


def _unsaid(count: int) -> Columns:
    """What a profile says of a row and a deployment does not: usual values, or missing."""
    return {"skew": np.full(count, USUAL_SKEW), "comm_sms": np.full(count, USUAL_COMM_SMS), "fan_out": np.full(count, np.nan)}


def _wanted(key: int, places: Places, engine: str | None) -> Wanted:
    key, kv_dtype = divmod(key, len(DTYPES))
    key, dtype = divmod(key, len(DTYPES))
    place, kind = divmod(key, len(KINDS))
    wanted = places.wanted[place]
    name = KINDS[kind] if KINDS[kind] not in ("lm_head", "router") else "linear"
    return wanted._replace(kind=name, dtype=DTYPES[dtype], kv_dtype=DTYPES[kv_dtype], engine=engine or wanted.engine)


def unbent(share: Floats, most: Floats, *, knee: float) -> Floats:
    """The demand that settles at a share: `soft_cap` read backwards; near the cap it says at least twice the cap's worth.

    >>> from pie_p.physics import soft_cap
    >>> asked, most = np.array([0.7]), np.array([0.95])
    >>> bool(np.isclose(unbent(soft_cap(asked, most, knee=4.0), most, knee=4.0), asked)[0])
    True
    """
    part = np.clip(share / most, 1e-6, 0.98)
    return np.asarray(share / (1.0 - part**knee) ** (1.0 / knee))


def check_features(family: str, target: str, stored: Sequence[str]) -> None:
    """A saved predictor's inputs are those this package makes, in the same order.

    Raises:
        PredictorError: with both lists' first difference.
    """
    ours = FEATURES.get(f"{family}/{target}")
    if ours is None or family not in FAMILIES:
        raise PredictorError(f"the predictor has a regressor for {family}/{target}; this pie_p knows {', '.join(FEATURES)}")
    if tuple(stored) != ours:
        missing = [name for name in ours if name not in stored] or ["another order"]
        raise PredictorError(
            f"the predictor reads other inputs for {family}/{target} than this pie_p makes: missing {missing[0]!r}; train it again"
        )


__all__ = [
    "Booster", "FamilyRegressor", "Learned", "OperatorRegressors", "Places", "check_features", "expected", "pack", "picked", "unbent",
]  # fmt: skip
