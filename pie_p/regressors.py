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
from collections.abc import Mapping, Sequence
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

    def ratio(self, columns: Columns) -> tuple[Floats, Floats]:
        """Log ratio of time to the base, and octaves outside the profiled range, of rows of this family with their kernels' codes [-]."""
        matrix = inputs(columns, self.features["time"])
        outside, trust = self._outside(matrix)
        return self.boosters["time"].forest.predict(matrix) * trust, outside

    def time_s(self, columns: Columns, roofline: Roofline) -> Floats:
        """Seconds per call of such rows."""
        return np.asarray(roofline.time_s(columns) * np.exp(self.ratio(columns)[0]))

    def share(self, columns: Columns, time_s: Floats) -> Floats:
        """Share of the room between active idle and limit that rows of this family draw, each running again and again [-]."""
        reached = {**columns, "time_s": time_s}
        return np.clip(self.boosters["power"].forest.predict(inputs(reached, self.features["power"])), 0.0, MOST_SHARE)

    def _outside(self, matrix: NDArray[np.float32]) -> tuple[Floats, Floats]:
        """How far rows lie outside the profiled range, and how far the correction is applied there.

        Returns:
            Octaves, in the input where it is most, infinite for an unknown format; and a share, 1 inside and 0 for an unknown format [-].
        """
        farthest, trust = np.zeros(len(matrix)), np.ones(len(matrix))
        for values, name in zip(matrix.T, self.features["time"], strict=True):
            if name in self.known:
                known = np.zeros(len(values), dtype=bool)
                for code in self.known[name]:
                    known |= values == code
                farthest[~known], trust[~known] = np.inf, 0.0
            elif name in self.ranges:
                least, most = self.ranges[name]
                beyond = np.maximum(least - values, values - most) - RANGE_SLACK
                farthest = np.maximum(farthest, beyond)
                if name in self.fades:
                    trust = np.minimum(trust, 1.0 - np.maximum(beyond, 0.0) / self.fades[name])
        return farthest, np.maximum(trust, 0.0)


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
            ratio, beyond = regressor.ratio(own) if family not in MEETING else _faster(regressor, own, places, rows)
            time_s[rows] *= np.exp(ratio)
            outside[rows] = beyond > 0
            if "power" in regressor.boosters:
                known = np.isfinite(beyond)
                shares.append((rows[known], regressor.share(picked(own, known), time_s[rows[known]])))
        demand = law.demand(columns, time_s)
        most = (law.ceiling * columns["limit_w"] - columns["active_idle_w"]) / (columns["limit_w"] - columns["active_idle_w"])
        for rows, share in shares:
            demand[rows] = unbent(share, most[rows], knee=law.knee)
        return Learned(time_s, demand, outside)


def _faster(regressor: FamilyRegressor, own: Columns, places: Places, rows: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Log ratio and octaves outside of collectives: an engine takes the faster of its own kernel and NCCL's."""
    library = expected(own, places, rows, regressor.book, engine="nccl")["kernel_code"]
    both = {name: np.concatenate([values, values]) for name, values in own.items()}
    both["kernel_code"] = np.concatenate([np.where(np.isnan(own["kernel_code"]), library, own["kernel_code"]), library])
    ratio, outside = regressor.ratio(both)
    meeting = own["group_size"] > 1
    return np.where(meeting, np.minimum(ratio[: len(rows)], ratio[len(rows) :]), 0.0), np.where(meeting, outside[: len(rows)], 0.0)


def picked(columns: AnyColumns, rows: NDArray[Any]) -> Columns:
    """Some rows of every column."""
    return {name: values[rows] for name, values in columns.items()}


def expected(columns: Columns, places: Places, rows: NDArray[np.int64], book: KernelBook, *, engine: str | None = None) -> Columns:
    """The same rows with the kernel to expect on their deployment, started from a graph.

    Args:
        columns: rows of one family.
        places: where all rows run.
        rows: which of them these are.
        book: the family's kernels.
        engine: look for this library's kernel instead of the engine's.
    """
    key = ((places.which[rows] * len(KINDS) + columns["kind_code"]) * len(DTYPES) + columns["dtype_code"]) * len(DTYPES)
    keys, inverse = np.unique(key + columns["kv_dtype_code"], return_inverse=True)
    codes = np.array([book.default(_wanted(int(key), places, engine)) for key in keys])
    count = len(rows)
    return {**columns, "kernel_code": codes[inverse], "windowed": np.zeros(count), **_unsaid(count)}


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
