"""Calibration: a handful of measured rows moves the few scalars that they can tell, and the rows left out say whether it helped.

Another engine version or another host CPU changes what a step and a sequence cost on the host far more than it changes kernels. So only
serving costs move, and power only where it was measured; each scalar is the logarithm of a factor on its prior.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pie_p.end_to_end import MeasuredRuns, measured_runs
from pie_p.engine import Engine
from pie_p.errors import InputError, did_you_mean
from pie_p.fitting import PRIOR_WEIGHT, power_at, seconds_per_token
from pie_p.least_squares import least_squares
from pie_p.physics import Floats, Roofline
from pie_p.power import PowerLaw
from pie_p.quantities import as_float, shown
from pie_p.serving import Assembly, Clock, ServingCosts, assemble, run_clock
from pie_p.settling import Run, mean_power_w, settle
from pie_p.tables import METER_SCOPES, Table, schema_of
from pie_p.units import DTYPES

Target = Literal["time", "power", "energy"]
TARGETS: Final[tuple[Target, ...]] = ("time", "power", "energy")
Split = Literal["llm", "row", "none"]

_DEGREES: Final = ("batch", "tp", "pp", "dp", "ep")
MEASURED: Final = ("time_per_token_s", "avg_power_w", "energy_per_output_token_j")
MOST_OF_LIMIT: Final = 1.2  # of a board's limit [-]: meters and limits differ by a few percent, units by a factor
LEAST_OF_IDLE: Final = 0.5  # of a board's idle power [-]: hosts differ
MOST_FACTOR: Final = 100.0  # between measured and expected time [-]: no host is so slow
LEAST_LLMS: Final = 3  # base LLMs from which on one LLM at a time is left out, and not one row
MOST_FOLDS: Final = 10  # groups left out one after the other; more groups than this share folds


class Scalar(NamedTuple):
    """One number that calibration may move: a factor on the fields it names."""

    name: str
    fields: tuple[str, ...]
    width: float  # of the prior, in natural logarithms: 0.7 is about a factor of two
    least_rows: int  # rows from which on it is free [-]
    most_rows: int = 10**9  # rows up to which it is free [-]


# Widths from how far engines differ: vLLM 0.5.4's host time per sequence is 13 times that of 0.11.1, its time per step 1.4 times.
TIME_SCALARS: Final = (
    Scalar("host", ("dispatch_s", "dispatch_step_s", "step_s", "sequence_s", "overlapped_sequence_s", "prompt_s"), 1.5, 1, 1),
    Scalar("step_s", ("step_s",), 1.0, 2),
    Scalar("sequence_s", ("sequence_s",), 2.0, 2),
    Scalar("dispatch_s", ("dispatch_s",), 1.0, 5),
    Scalar("prompt_s", ("prompt_s",), 0.7, 20),
    Scalar("launch_s", ("launch_s",), 0.5, 20),
)
_DEMANDS: Final = ("kernel", "collective", "weight", "expert_weight", "kv", "activation", "flop", "expert_flop", "attention_flop", "link")
POWER_SCALARS: Final = (Scalar("demand", _DEMANDS, 0.5, 5), Scalar("wait", ("wait",), 0.7, 10))


class Calibratable(Protocol):
    """What calibration needs of a predictor, a frozen dataclass with these fields."""

    @property
    def name(self) -> str:
        """Name that stands in every result."""

    @property
    def roofline(self) -> Roofline:
        """Physical base of time."""

    @property
    def power(self) -> PowerLaw:
        """Power law."""

    @property
    def serving(self) -> Mapping[str, ServingCosts]:
        """Costs by engine."""

    def costs_of(self, engine: Engine) -> ServingCosts:
        """Costs of one engine."""

    def time_s(self, assembly: Assembly) -> Floats:
        """Seconds per call of each operator."""

    def run(self, assembly: Assembly) -> Run:
        """Times, waits and powers."""


P = TypeVar("P", bound=Calibratable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(Generic[P]):
    """A calibrated predictor, what changed, and the error before and after on rows that were left out.

    Errors are mean absolute relative errors [-] by target, "time", "power", "energy"; a target that was not measured is absent.
    """

    predictor: P
    changed: Mapping[str, tuple[float, float]]  # "vllm==0.5.4 sequence_s" or "power kernel": (before, after)
    before: Mapping[Target, float]
    after: Mapping[Target, float]
    split: Split  # left out in turn: one LLM, one row, or nothing (a single row cannot be tested)
    rows: int  # that taught [-]
    left_out: tuple[str, ...]  # rows that could not be used, and why
    notes: tuple[str, ...]

    def __str__(self) -> str:
        tested = {"llm": "one LLM left out at a time", "row": "one row left out at a time", "none": "untested"}[self.split]
        errors = ", ".join(f"{name} {100 * self.before[name]:.1f} -> {100 * self.after[name]:.1f} %" for name in self.before)
        moved = ", ".join(f"{name} {old:.3g} -> {new:.3g}" for name, (old, new) in self.changed.items())
        lost = [f"{_rows(len(self.left_out))} left out, the first: {self.left_out[0]}"] if self.left_out else []
        return "; ".join([f"{_rows(self.rows)}, {tested}: {errors}", f"changed: {moved or 'nothing'}", *self.notes, *lost])


def _rows(count: int) -> str:
    return f"{count} row" if count == 1 else f"{count} rows"


def calibrate(predictor: P, rows: Iterable[Mapping[str, Any]] | Table | MeasuredRuns, *, name: str | None = None) -> Calibration[P]:
    """A predictor whose host costs, and with measured power its demands, fit a handful of rows.

    How many scalars move follows from the number of rows (`TIME_SCALARS`, `POWER_SCALARS`). Time, and power after it, are kept only where
    they make the rows left out better; otherwise a note says so, and a predictor that nothing could mend comes back unchanged.

    Args:
        predictor: what answered so far; it stays as it is.
        rows: mappings with the columns of an `end_to_end` table, such a table, or measured runs. Needed: llm, gpu, batch, prompt_tokens,
            output_tokens, time_per_token_s. Without avg_power_w or energy_per_output_token_j of the boards, power stays untouched.
        name: of the calibrated predictor; default the old name with "-calibrated".

    Raises:
        InputError: a value that cannot be, or no row with a measured time.
    """
    bench = _Bench.of(predictor, _believable(predictor, _runs(rows)))
    split, folds = _folds(bench.runs)
    before = bench.errors(bench.answers((), bench.everyone))
    best: tuple[str, ...] = ()
    tested, notes = before, []
    for part in bench.movable:
        errors = bench.errors(_left_out_answers(bench, (*best, part), folds)) if folds else before
        if folds and _score(errors) >= _score(tested):
            notes.append(f"{part} left as it was: the rows left out got no better")
        else:
            best, tested = (*best, part), errors
    if not folds:
        notes.append("a single row cannot be left out: the errors after are those before, and nothing is tested")
    calibrated, changed = bench.calibrated(best, bench.everyone, name or f"{predictor.name}-calibrated")
    return Calibration(
        predictor=calibrated,
        changed=changed,
        before=before,
        after=tested,
        split=split,
        rows=len(bench.runs),
        left_out=bench.runs.left_out,
        notes=tuple(notes),
    )


def _score(errors: Mapping[Target, float]) -> float:
    """One figure of merit: the mean over what was measured [-]."""
    return float(np.mean(list(errors.values())))


def _free(scalars: Sequence[Scalar], rows: int) -> list[Scalar]:
    return [scalar for scalar in scalars if scalar.least_rows <= rows <= scalar.most_rows]


class _Answers(NamedTuple):
    time_s: Floats  # per output token [s]
    power_w: Floats  # mean of one board [W]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench(Generic[P]):
    """Measured runs with all that does not change while scalars move."""

    predictor: P
    runs: MeasuredRuns
    assembly: Assembly
    time_s: Floats  # per call of each operator [s]
    costs: list[ServingCosts]  # of each run's engine, as they were
    limits_w: Floats  # cap of each run's boards, infinite where there is none [W]

    @classmethod
    def of(cls, predictor: P, runs: MeasuredRuns) -> _Bench[P]:
        """Assemble the runs once."""
        assembly = assemble(runs.cases)
        return cls(
            predictor=predictor,
            runs=runs,
            assembly=assembly,
            time_s=predictor.time_s(assembly),
            costs=[predictor.costs_of(case.deployment.engine) for case in runs.cases],
            limits_w=np.array([case.power_limit_w or np.inf for case in runs.cases]),
        )

    @property
    def everyone(self) -> NDArray[np.bool_]:
        """A mask of all runs."""
        return np.ones(len(self.runs), dtype=bool)

    @property
    def movable(self) -> tuple[str, ...]:
        """Parts with scalars that may move, time first."""
        return ("time", "power") if self.power_scalars else ("time",)

    def clock(self, costs: Sequence[ServingCosts]) -> Clock:
        """Steps and waits under these costs."""
        if np.isinf(self.limits_w).all():
            return run_clock(self.assembly, self.time_s, costs)
        law, roofline = self.predictor.power, self.predictor.roofline
        return settle(self.assembly, self.time_s, costs=costs, law=law, roofline=roofline, limits_w=self.limits_w).clock

    def fitted(self, parts: Sequence[str], which: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Logarithms of the factors of time and of power, as far as `parts` go, that make the runs of a mask likely."""
        time_logs = self._fit_time(which) if "time" in parts else np.zeros(len(self.time_scalars))
        power_logs = self._fit_power(which, time_logs) if "power" in parts else np.zeros(len(self.power_scalars))
        return time_logs, power_logs

    @property
    def time_scalars(self) -> list[Scalar]:
        """What may move in time."""
        return _free(TIME_SCALARS, int(np.isfinite(self.runs.time_per_token_s).sum()))

    @property
    def power_scalars(self) -> list[Scalar]:
        """What may move in power."""
        return _free(POWER_SCALARS, int(np.isfinite(self.runs.power_w).sum()))

    def _fit_time(self, which: NDArray[np.bool_]) -> Floats:
        scalars, widths = self.time_scalars, _widths(self.time_scalars)

        def errors(logs: Floats) -> Floats:
            time_s, _ = seconds_per_token(self.assembly, self.clock([moved(one, scalars, logs) for one in self.costs]))
            return np.concatenate([np.log(time_s / self.runs.time_per_token_s)[which], PRIOR_WEIGHT * logs / widths])

        return least_squares(errors, len(scalars))

    def _fit_power(self, which: NDArray[np.bool_], time_logs: Floats) -> Floats:
        """On the measured time, so that no error of the time hides in the power."""
        scalars, widths = self.power_scalars, _widths(self.power_scalars)
        clock = self.clock([moved(one, self.time_scalars, time_logs) for one in self.costs])
        known = which & np.isfinite(self.runs.power_w)

        def errors(logs: Floats) -> Floats:
            law = moved(self.predictor.power, scalars, logs)
            power_w = power_at(self.runs.time_per_token_s, self.assembly, clock, self.time_s, law)
            power_w = np.minimum(power_w, law.ceiling * self.limits_w)
            return np.concatenate([np.log(power_w / self.runs.power_w)[known], PRIOR_WEIGHT * logs / widths])

        return least_squares(errors, len(scalars))

    def answers(self, parts: Sequence[str], which: NDArray[np.bool_]) -> _Answers:
        """Answers for all runs after a fit to those of a mask."""
        predictor, _ = self.calibrated(parts, which, self.predictor.name)
        run = predictor.run(self.assembly)
        return _Answers(seconds_per_token(self.assembly, run.clock)[0], mean_power_w(run))

    def errors(self, answers: _Answers) -> dict[Target, float]:
        """Mean absolute relative error by target [-]."""
        runs = self.runs
        sharing = np.array([case.request.batch * case.deployment.plan.dp for case in runs.cases])
        energy_j = answers.time_s * answers.power_w * runs.gpus / sharing
        pairs: dict[Target, tuple[Floats, Floats]] = {
            "time": (answers.time_s, runs.time_per_token_s),
            "power": (answers.power_w, runs.power_w),
            "energy": (energy_j, runs.energy_per_output_token_j),
        }
        return {name: float(np.nanmean(np.abs(ours / theirs - 1.0))) for name, (ours, theirs) in pairs.items() if np.isfinite(theirs).any()}

    def calibrated(self, parts: Sequence[str], which: NDArray[np.bool_], name: str) -> tuple[P, dict[str, tuple[float, float]]]:
        """The predictor with the scalars that fit the runs of a mask, and what changed: nothing when no part is free."""
        if not parts:
            return self.predictor, {}
        time_logs, power_logs = self.fitted(parts, which)
        changed: dict[str, tuple[float, float]] = {}
        serving = dict(self.predictor.serving)
        for engine in {str(case.deployment.engine): case.deployment.engine for case in self.runs.cases}.values():
            old = self.predictor.costs_of(engine)
            new = serving[str(engine)] = moved(old, self.time_scalars, time_logs)
            if "time" in parts:
                changed |= {f"{engine} {field}": pair for field, pair in _differences(old, new, self.time_scalars).items()}
        law = moved(self.predictor.power, self.power_scalars, power_logs)
        if "power" in parts:
            pairs = _differences(self.predictor.power, law, self.power_scalars)
            changed |= {f"power {field}": pair for field, pair in pairs.items()}
        return replace(self.predictor, name=name, serving=serving, power=law), changed  # type: ignore[type-var]


def moved(start: Any, scalars: Sequence[Scalar], logs: Floats) -> Any:
    """`ServingCosts` or a `PowerLaw` with its fields multiplied by the factors of the scalars that name them.

    >>> moved(ServingCosts(), [Scalar("step_s", ("step_s",), 1.0, 1)], np.log([2.0])).step_s / ServingCosts().step_s
    2.0
    """
    changes: dict[str, float] = {}
    for scalar, factor in zip(scalars, np.exp(logs), strict=True):
        for field in scalar.fields:
            changes[field] = float(changes.get(field, getattr(start, field)) * factor)
    return start._replace(**changes) if isinstance(start, ServingCosts) else replace(start, **changes)


def _widths(scalars: Sequence[Scalar]) -> Floats:
    return np.array([scalar.width for scalar in scalars])


def _differences(old: Any, new: Any, scalars: Sequence[Scalar]) -> dict[str, tuple[float, float]]:
    fields = dict.fromkeys(field for scalar in scalars for field in scalar.fields)
    pairs = {field: (float(getattr(old, field)), float(getattr(new, field))) for field in fields}
    return {field: pair for field, pair in pairs.items() if pair != (0.0, 0.0)}  # a cost of nothing stays nothing, times any factor


def _folds(runs: MeasuredRuns) -> tuple[Split, list[NDArray[np.bool_]]]:
    """Masks of what is left out in turn: one base LLM where there are enough, else one row."""
    split: Split = "llm" if len(np.unique(runs.base)) >= LEAST_LLMS else "row"
    if len(runs) == 1:
        return "none", []
    group = np.unique(runs.base, return_inverse=True)[1].ravel() if split == "llm" else np.arange(len(runs))
    return split, [group % MOST_FOLDS == fold for fold in range(min(MOST_FOLDS, int(group.max()) + 1))]


def _left_out_answers(bench: _Bench[P], parts: Sequence[str], folds: Sequence[NDArray[np.bool_]]) -> _Answers:
    """Each run answered after a fit to the others."""
    time_s, power_w = np.zeros(len(bench.runs)), np.zeros(len(bench.runs))
    for fold in folds:
        answers = bench.answers(parts, ~fold)
        time_s[fold], power_w[fold] = answers.time_s[fold], answers.power_w[fold]
    return _Answers(time_s, power_w)


def _runs(rows: Iterable[Mapping[str, Any]] | Table | MeasuredRuns) -> MeasuredRuns:
    """Runs with a measured time; watts that hold more than boards are taken out."""
    if isinstance(rows, MeasuredRuns):
        runs = rows
    else:
        given = rows.iter_rows() if isinstance(rows, Table) else rows
        if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)) or hasattr(given, "columns"):
            raise InputError(f"rows = {shown(rows)} is not a list of rows; give mappings, of a pandas frame: frame.to_dict('records')")
        runs = measured_runs([_checked(number, row) for number, row in enumerate(given)])
    timed = np.isfinite(runs.time_per_token_s)
    if not timed.any():
        raise InputError(f"none of the {len(runs)} measured runs has time_per_token_s; calibration needs measured times")
    return _without(runs, dict.fromkeys(np.flatnonzero(~timed).tolist(), "time_per_token_s was not measured"))


def _believable(predictor: Calibratable, runs: MeasuredRuns) -> MeasuredRuns:
    """Runs without those that no host could explain: a time or a power in other units would move every scalar to nonsense."""
    assembly = assemble(runs.cases)
    factor = runs.time_per_token_s / seconds_per_token(assembly, predictor.run(assembly).clock)[0]
    reasons: dict[int, str] = {}
    for number, (case, power_w) in enumerate(zip(runs.cases, runs.power_w.tolist(), strict=True)):
        gpu, gpus = case.deployment.cluster.gpu, case.deployment.plan.gpus
        if power_w > MOST_OF_LIMIT * gpu.limit_w or power_w < LEAST_OF_IDLE * gpu.idle_w:
            reasons[number] = (
                f"{power_w:.4g} W is no power of one {gpu.name}, which idles at {gpu.idle_w:g} W and has {gpu.limit_w:g} W at most; "
                f"avg_power_w is that of {'the board' if gpus == 1 else f'all {gpus} boards together'} [W], and "
                f"energy_per_output_token_j the energy of all [J]"
            )
        if not 1.0 / MOST_FACTOR < factor[number] < MOST_FACTOR:
            reasons[number] = (
                f"time_per_token_s = {runs.time_per_token_s[number]:.4g} is {factor[number]:.2g} times the expected; it is in s"
            )
    if len(reasons) == len(runs):
        raise InputError(f"no measured run can be believed; row 0 ({runs.cases[0].deployment.llm.name}): {reasons[0]}")
    return _without(runs, reasons)


def _without(runs: MeasuredRuns, reasons: Mapping[int, str]) -> MeasuredRuns:
    """The other runs, these named with their reason."""
    if not reasons:
        return runs
    kept = np.array([number not in reasons for number in range(len(runs))])
    told = tuple(f"run {number} ({runs.cases[number].deployment.llm.name}): {reason}" for number, reason in reasons.items())
    return replace(runs.take(kept), left_out=(*runs.left_out, *told))


_COLUMNS: Final = tuple(column.name for column in schema_of("end_to_end"))


def _checked(number: int, row: object) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise InputError(
            f"row {number} is {shown(row)}; give a mapping with llm, gpu, batch, prompt_tokens, output_tokens, time_per_token_s"
        )
    for column in row:
        if column not in _COLUMNS:
            raise InputError(f"row {number} has no column {shown(column)}.{did_you_mean(str(column)[:80], _COLUMNS)} Columns: docs/data.md")
    for name in (*MEASURED, *_DEGREES):
        value = row.get(name)
        if value is not None and not (isinstance(value, float) and isnan(value)):
            as_float(f"{name} of row {number}", value, above=True)
    for name, allowed in (("dtype", DTYPES), ("kv_dtype", DTYPES), ("meter_scope", METER_SCOPES)):
        value = row.get(name) or None
        if not (value is None or value in allowed or value != value):
            raise InputError(f"{name} of row {number} = {shown(value)} is not known; allowed: {', '.join(allowed)}")
    beyond = row.get("meter_scope") in METER_SCOPES and row["meter_scope"] != "gpu"  # wall watts say nothing about boards
    return {**row, **({"avg_power_w": None, "energy_per_output_token_j": None} if beyond else {})}
