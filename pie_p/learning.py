"""From examples to regressors: what is fitted, on which rows, with which settings. Training code; needs the extra `train`.

Targets and why:
- time: log of measured over roofline time, least squares. A ratio leaves the large factors to physics, and errors count as shares.
- power: share of the room between active idle and limit, Huber's loss, on rows of at least 0.1 ms. Shorter kernels are seen by one or two
  readings of a meter that averages over 100 ms and often read too low.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pie_p.boosting import BoostedTrees
from pie_p.examples import Examples, learn_book
from pie_p.features import FEATURES, MEETING, Family, inputs
from pie_p.kernels import LAUNCH_BOUND, KernelBook
from pie_p.physics import Floats, Roofline
from pie_p.regressors import CODES, UNBOUNDED, Booster, FamilyRegressor, Target, pack

LEAST_POWER_S: Final = 1e-4  # shorter rows do not teach power
LEAST_POWER_ROWS: Final = 200
RISING: Final = ("flop_rate", "byte_rate")  # a board that does more draws no less
FORGET: Final = 0.1  # share of rows that teach once more with their kernel hidden: what to answer for one that is not in the book
FORGOTTEN: Final = frozenset({"kernel_code", "skew", "fan_out", "comm_sms"})


# Octaves outside the profiled range over which a correction fades to the base; inputs that are not named hold it at the edge. Measured on
# inner folds (docs/log.md): efficiency at the largest profiled shape carries over to larger ones, a board's does not, and a large message
# comes near its bandwidth bound.
BOARD_FADES: Final[Mapping[str, float]] = {"peak_flops_per_s": 1.0, "hbm_bytes_per_s": 1.0, "sm_count": 1.0}
MESSAGE_FADES: Final[Mapping[str, float]] = {"payload_bytes": 5.0, "wire_s": 5.0, "link_bytes_per_s": 1.0, "inter_bytes_per_s": 1.0}
FADES: Final[Mapping[Family, Mapping[str, float]]] = {
    "collective": MESSAGE_FADES,
    "exchange": {**MESSAGE_FADES, "tokens": 5.0, "group_size": 2.0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of one booster; chosen on inner folds (docs/log.md)."""

    trees: int
    leaves: int
    rate: float
    l2: float = 1.0
    least_rows: float = 3.0
    knee: float | None = None


SETTINGS: Final[Mapping[str, Settings]] = {
    "linear/time": Settings(trees=150, leaves=256, rate=0.2),
    "attention_decode/time": Settings(trees=120, leaves=128, rate=0.2),
    "attention_prefill/time": Settings(trees=120, leaves=64, rate=0.2),
    "experts/time": Settings(trees=120, leaves=128, rate=0.2),
    "collective/time": Settings(trees=500, leaves=64, rate=0.12),
    "exchange/time": Settings(trees=120, leaves=64, rate=0.2),
    "linear/power": Settings(trees=100, leaves=64, rate=0.12, least_rows=10, knee=0.05),
    "attention_decode/power": Settings(trees=80, leaves=64, rate=0.12, least_rows=10, knee=0.05),
    "attention_prefill/power": Settings(trees=80, leaves=64, rate=0.12, least_rows=10, knee=0.05),
    "experts/power": Settings(trees=100, leaves=64, rate=0.12, least_rows=10, knee=0.05),
}


def learn_family(
    examples: Examples, roofline: Roofline, *, seed: int = 0, jobs: int = 1, power: bool = True, settings: Mapping[str, Settings] = SETTINGS
) -> FamilyRegressor:
    """Fit a family's time, and its power where it was measured.

    Args:
        examples: rows that teach, and no others.
        roofline: the base whose ratio is learned.
        seed: of every random draw.
        jobs: threads; one is as fast as two where others compute beside it, and the same everywhere.
        power: fit power too.
        settings: by "family/target".
    """
    family, book = examples.family, learn_book(examples, roofline)
    known, settled = examples.with_book(book), in_graphs(examples, book)
    names = FEATURES[f"{family}/time"]
    features: dict[Target, tuple[str, ...]] = {"time": names}
    matrix, ratio = inputs(known.columns, names), np.log(examples.time_s / roofline.time_s(examples.columns))
    teacher = _Teacher(settings=settings, seed=seed, jobs=jobs)
    boosters: dict[Target, Booster] = {"time": teacher.fit(f"{family}/time", matrix, ratio, settled)}
    rows = power_rows(known) if power and family not in MEETING else np.zeros(0, dtype=np.int64)
    if len(rows) >= LEAST_POWER_ROWS:
        features["power"] = FEATURES[f"{family}/power"]
        loud = known.select(rows)
        reached = inputs({**loud.columns, "time_s": loud.time_s}, features["power"])
        boosters["power"] = teacher.fit(f"{family}/power", reached, loud.share, settled[rows])
    told = {name: matrix[:, number] for number, name in enumerate(names) if name not in UNBOUNDED}
    return FamilyRegressor(
        family=family,
        features=features,
        boosters=boosters,
        ranges={name: _range(values) for name, values in told.items() if name not in CODES},
        known={name: tuple(np.unique(values).astype(int).tolist()) for name, values in told.items() if name in CODES},
        book=book,
        fades=FADES.get(family, BOARD_FADES),
    )


def in_graphs(examples: Examples, book: KernelBook) -> NDArray[np.bool_]:
    """Rows of kernels that were not timed with their launch: those stand for a kernel that is not known."""
    floors: dict[tuple[str, str], float] = {}
    for use in book.uses:
        floors[use.kind, use.dtype] = min(use.floor_s, floors.get((use.kind, use.dtype), np.inf))
    slow = {(use.label, use.gpu) for use in book.uses if use.floor_s > LAUNCH_BOUND * floors[use.kind, use.dtype]}
    return np.array([(label, gpu) not in slow for label, gpu in zip(examples.label, examples.gpu, strict=True)], dtype=bool)


def power_rows(examples: Examples) -> NDArray[np.int64]:
    """Rows whose power can be trusted: measured, and long enough for the meter."""
    return np.flatnonzero(np.isfinite(examples.power_w) & (examples.time_s >= LEAST_POWER_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Teacher:
    settings: Mapping[str, Settings]
    seed: int
    jobs: int

    def fit(self, what: str, matrix: NDArray[np.float32], target: Floats, hideable: NDArray[np.bool_]) -> Booster:
        """A booster for "family/target"; some rows teach once more without what a deployment does not know."""
        names = FEATURES[what]
        again = np.flatnonzero((np.random.default_rng(self.seed).random(len(matrix)) < FORGET) & hideable)
        copies = matrix[again]
        copies[:, [number for number, name in enumerate(names) if name in FORGOTTEN]] = np.nan
        matrix, target = np.concatenate([matrix, copies]), np.concatenate([target, target[again]])
        rising = tuple(int(name in RISING) for name in names)
        learner = BoostedTrees(**asdict(self.settings[what]), monotone=rising if any(rising) else None, seed=self.seed, jobs=self.jobs)
        return pack(learner.fit(matrix, target).saved_, what=what)


def _range(values: NDArray[np.float32]) -> tuple[float, float]:
    return float(np.min(values)), float(np.max(values))


def profiled_time_s(regressor: FamilyRegressor, examples: Examples, roofline: Roofline) -> Floats:
    """The regressor's answer for rows whose kernel is known from the profile [s]."""
    return regressor.time_s(examples.with_book(regressor.book).columns, roofline)


def profiled_power_w(regressor: FamilyRegressor, examples: Examples, time_s: Floats) -> Floats:
    """Board power of the same rows, running again and again for `time_s` each [W]."""
    columns = examples.with_book(regressor.book).columns
    idle_w = columns["active_idle_w"]
    return np.asarray(idle_w + (columns["limit_w"] - idle_w) * regressor.share(columns, time_s))
