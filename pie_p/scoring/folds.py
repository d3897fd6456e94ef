"""Folds run: the physics fitted without a group, its answers for every run, and a pool of processes for many folds.

Every fold is fitted from the priors by `pie_p.fitting`, with the settings it ships with; nothing is chosen on what is scored.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from pie_p.end_to_end import MeasuredRuns
from pie_p.fitting import ROOFLINE_WIDTHS, SERVING_WIDTHS, Physics, fit_power, fit_time, power_at, seconds_per_token
from pie_p.physics import Floats, Roofline
from pie_p.power import PowerLaw
from pie_p.predictor import Predictor
from pie_p.scoring.splits import Fold, Mask
from pie_p.serving import Assembly, Case, ServingCosts, assemble
from pie_p.settling import Run, mean_power_w

TIME_SCALARS: Final[tuple[str, ...]] = (*ROOFLINE_WIDTHS, *SERVING_WIDTHS)
PRIOR_COSTS: Final = ServingCosts()
Progress = Callable[[int, int, str], None]  # done, of how many, what


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The formulation that is fitted: as shipped, or with one of its terms taken out or changed."""

    name: str = "fitted physics"
    cases: Callable[[Case], Case] | None = None  # changes what is expanded
    assembly: Callable[[Assembly], Assembly] | None = None  # changes what is counted
    roofline: Roofline = field(default_factory=Roofline)
    costs: ServingCosts = PRIOR_COSTS
    power: PowerLaw = field(default_factory=PowerLaw)
    free: tuple[str, ...] = TIME_SCALARS
    power_only: bool = False  # time is that of the formulation as shipped

    def prepare(self, cases: Sequence[Case]) -> Assembly:
        """Cases assembled the variant's way."""
        assembly = assemble([self.cases(case) for case in cases] if self.cases else cases)
        return self.assembly(assembly) if self.assembly else assembly


SHIPPED: Final = Variant()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What one predictor says about every run. Arrays have one value per run."""

    time_s: Floats  # per output token of one running sequence [s]
    itl_s: Floats  # decode-only step [s]
    power_w: Floats  # of one board, at the predicted time [W]
    given_time_w: Floats  # of one board, at the measured time [W]

    def put(self, which: Mask, other: Answers) -> None:
        """Take the answers of another predictor for some runs."""
        for name in self.__slots__:
            getattr(self, name)[which] = getattr(other, name)[which]


def no_answers(count: int) -> Answers:
    """Nothing known yet: NaN everywhere."""
    return Answers(**{name: np.full(count, np.nan) for name in Answers.__slots__})


def energy_j(runs: MeasuredRuns, time_s: Floats, power_w: Floats) -> Floats:
    """Energy per output token of all boards: `GPUs * P * T / running requests` [J]."""
    running = np.array([case.request.batch * case.deployment.plan.dp for case in runs.cases])
    return np.asarray(runs.gpus * power_w * time_s / running)


def fit(runs: MeasuredRuns, fold: Fold, variant: Variant = SHIPPED, *, time: Physics | None = None) -> Physics:
    """Time on the timed rows of a fold, then power on the metered ones.

    Args:
        runs: all runs.
        fold: which of them teach.
        variant: formulation.
        time: fitted already; then power alone is.
    """
    if time is None:
        timed = runs.take(fold.timed)
        roofline, costs = fit_time(
            timed, roofline=variant.roofline, costs=variant.costs, free=variant.free, assembly=variant.prepare(timed.cases)
        )
    else:
        roofline, costs = time.roofline, time.costs
    metered = runs.take(fold.metered)
    law = fit_power(metered, roofline=roofline, costs=costs, law=variant.power, assembly=variant.prepare(metered.cases))
    return Physics(roofline=roofline, costs=costs, power=law)


def predictor_of(physics: Physics, cases: Sequence[Case]) -> Predictor:
    """A predictor with these scalars; every engine among the cases costs the same."""
    serving = {case.deployment.engine.name: physics.costs for case in cases}
    return Predictor(name="fold", roofline=physics.roofline, power=physics.power, serving=serving)


def run_physics(assembly: Assembly, physics: Physics) -> Run:
    """The predictor's own run of the cases."""
    return predictor_of(physics, assembly.cases).run(assembly)


def answers_of(runs: MeasuredRuns, assembly: Assembly, physics: Physics) -> Answers:
    """Time, decode step and power of every run."""
    run = run_physics(assembly, physics)
    seconds, step_s = seconds_per_token(assembly, run.clock)
    given = power_at(runs.time_per_token_s, assembly, run.clock, run.time_s, physics.power)
    return Answers(time_s=seconds, itl_s=step_s, power_w=mean_power_w(run), given_time_w=given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One fit to be done."""

    fold: Fold
    variant: Variant = SHIPPED
    time: Physics | None = None  # for variants that change power alone

    @property
    def key(self) -> tuple[str, bytes, bytes]:
        """Equal for fits that would come out equal."""
        return self.variant.name, np.packbits(self.fold.timed).tobytes(), np.packbits(self.fold.metered).tobytes()


class Fits:
    """Fits of many folds; a fold that repeats is fitted once."""

    def __init__(self, runs: MeasuredRuns, *, jobs: int = 2, progress: Progress | None = None) -> None:
        self.runs = runs
        self.jobs = jobs
        self.progress = progress
        self._done: dict[tuple[str, bytes, bytes], Physics] = {}

    def __getitem__(self, job: Job) -> Physics:
        return self._done[job.key]

    def run(self, wanted: Sequence[Job]) -> None:
        """Fit what is not fitted yet, on `jobs` processes."""
        new = list({job.key: job for job in wanted if job.key not in self._done}.values())
        if self.jobs > 1 and len(new) > 1:
            context = multiprocessing.get_context("spawn")  # forking a process that holds threads can hang
            with ProcessPoolExecutor(self.jobs, mp_context=context, initializer=_set_runs, initargs=(self.runs,)) as pool:
                self._collect(new, pool.map(_fit_job, new))
        else:
            self._collect(new, (fit(self.runs, job.fold, job.variant, time=job.time) for job in new))

    def _collect(self, new: Sequence[Job], results: Any) -> None:
        for number, (job, physics) in enumerate(zip(new, results, strict=True), start=1):
            self._done[job.key] = physics
            if self.progress:
                self.progress(number, len(new), f"{job.variant.name}, without {job.fold.name}")


_RUNS: list[MeasuredRuns] = []  # of a worker process, so that runs travel once and not with every fold


def _set_runs(runs: MeasuredRuns) -> None:
    _RUNS[:] = [runs]


def _fit_job(job: Job) -> Physics:
    return fit(_RUNS[0], job.fold, job.variant, time=job.time)


def answers_over(
    runs: MeasuredRuns, folds: Sequence[Fold], fits: Fits, *, variant: Variant = SHIPPED, times: Mapping[str, Physics] | None = None
) -> Answers:
    """Each fold's scored rows answered by the fit that never saw them; other rows NaN."""
    whole = no_answers(len(runs))
    assembly = variant.prepare(runs.cases)
    for fold in folds:
        physics = fits[Job(fold=fold, variant=variant, time=(times or {}).get(fold.name))]
        whole.put(fold.scored, answers_of(runs, assembly, physics))
    return whole


def unfitted() -> Physics:
    """The priors."""
    return Physics(roofline=Roofline(), costs=ServingCosts(), power=PowerLaw())


def without_waits(physics: Physics) -> Physics:
    """The same without host, launch, skew and imbalance: operators one after the other."""
    nothing = ServingCosts(**dict.fromkeys(SERVING_WIDTHS, 0.0))
    return replace(physics, costs=nothing)
