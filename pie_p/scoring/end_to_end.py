"""The whole evaluation: every split, baseline, ablation and decision in one report of plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pie_p.end_to_end import MeasuredRuns, measured_runs
from pie_p.errors import InputError
from pie_p.fitting import Physics
from pie_p.physics import Floats
from pie_p.profiles import load_profile
from pie_p.scoring.ablations import ABLATIONS
from pie_p.scoring.baselines import BASELINES, RESIDUAL_TREES, Estimate, boosted
from pie_p.scoring.decisions import MARGINS, DecisionScore, decision_score, inner_margins
from pie_p.scoring.engines import EngineScore, new_engine
from pie_p.scoring.facts import Facts, facts_of
from pie_p.scoring.folds import Answers, Fits, Job, Progress, Variant, answers_of, answers_over, energy_j, unfitted, without_waits
from pie_p.scoring.inner_nodes import children_j, description, weighted_sum
from pie_p.scoring.scores import Scored, score
from pie_p.scoring.splits import (
    UNSEEN_COUNT,
    UNSEEN_FAMILY,
    UNSEEN_LLM,
    Fold,
    Mask,
    Roles,
    Split,
    everything,
    ranges_of_batch,
    roles_of,
    splits_of,
)
from pie_p.scoring.working import Coverage, Sensitivity, WorstRow, coverage, sensitivities, worst_rows
from pie_p.serving import Assembly, assemble
from pie_p.units import BYTES_PER_VALUE

FITTED: Final = "fitted physics"
UNFITTED: Final = "physics as it is before any fit (priors, not held out)"
PLAIN_SUM: Final = "operator sum: no waits, no host (priors)"
RESIDUAL: Final = "fitted physics × residual boosted trees"
WEIGHTED: Final = "fitted physics, children weighted (PIE-P)"
CAREFUL: Final = f"{FITTED}, margin on T chosen on the other LLMs"
ALL: Final = "all"
NO_ODD: Final = "without odd groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A profile that was read."""

    name: str
    sha256: tuple[str, ...]  # of its end-to-end parts
    rows: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "sha256": list(self.sha256), "rows": self.rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Predicted and measured figures of the unseen-LLM split, for pictures: one value per scored row."""

    measured_j: Floats
    predicted_j: Floats
    measured_s: Floats
    predicted_s: Floats
    measured_w: Floats
    predicted_w: Floats
    odd: NDArray[np.bool_]
    moe: NDArray[np.bool_]
    llm: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """What was scored, and how it came out. Errors are shares; nothing is rounded."""

    sources: tuple[Source, ...]
    left_out: tuple[str, ...]
    seed: int
    rows: dict[str, int]
    scores: tuple[Scored, ...]
    engines: tuple[EngineScore, ...]
    decisions: tuple[DecisionScore, ...]
    intervals: dict[str, Coverage]
    sensitivities: tuple[Sensitivity, ...]
    worst: dict[str, tuple[WorstRow, ...]]
    points: Points

    def find(self, *, split: str, method: str = FITTED, target: str = "E", part: str = ALL) -> Scored | None:
        """The one score with these labels, or None where it was not made."""
        wanted = (split, method, target, part)
        return next((one for one in self.scores if (one.split, one.method, one.target, one.part) == wanted), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "sources": [each.to_dict() for each in self.sources],
            "left_out": list(self.left_out),
            "seed": self.seed,
            "rows": dict(self.rows),
            "scores": [each.to_dict() for each in self.scores],
            "engines": [each.to_dict() for each in self.engines],
            "decisions": [each.to_dict() for each in self.decisions],
            "intervals": {name: each.to_dict() for name, each in self.intervals.items()},
            "sensitivities": [each.to_dict() for each in self.sensitivities],
            "worst": {name: [each.to_dict() for each in rows] for name, rows in self.worst.items()},
        }


def evaluate_end_to_end(
    profiles: Sequence[str | Path], *, progress: Progress | None = None, seed: int = 0, jobs: int = 2, ablations: bool = True
) -> EvaluationReport:
    """Fit and score every split, with baselines, ablations and decisions beside it.

    Args:
        profiles: folders of imported profiles; rows of `mlenergy_v3` are scored, those of `mlenergy_v2` teach power and are the other
            engine version.
        progress: told after each fit: how many are done, of how many, and what it was.
        seed: of every random draw.
        jobs: processes that fit.
        ablations: also refit the physics without each of its terms (most of the time goes there).

    Raises:
        InputError: no row that can be scored.
        ProfileError: a folder that holds no sound profile.
    """
    loaded = [load_profile(folder, tables=("end_to_end",)) for folder in profiles]
    runs = measured_runs(row for profile in loaded for row in profile.end_to_end.iter_rows())
    sources = tuple(
        Source(
            name=profile.manifest.name,
            sha256=tuple(part.sha256 for part in profile.manifest.parts if part.table == "end_to_end"),
            rows=profile.end_to_end.rows,
        )
        for profile in loaded
    )
    return evaluate_runs(runs, sources=sources, progress=progress, seed=seed, jobs=jobs, ablations=ablations)


def evaluate_runs(
    runs: MeasuredRuns,
    *,
    sources: tuple[Source, ...] = (),
    progress: Progress | None = None,
    seed: int = 0,
    jobs: int = 2,
    ablations: bool = True,
) -> EvaluationReport:
    """The same for runs at hand."""
    bench = _Bench(runs, seed=seed, jobs=jobs, progress=progress)
    answers = {split.name: answers_over(runs, split.folds, bench.fits) for split in bench.splits}
    unseen, physics = answers[UNSEEN_LLM], bench.fits[Job(fold=bench.whole)]
    energy = energy_j(runs, unseen.time_s, unseen.power_w)
    scored = [*bench.physics_scores(answers), *bench.baseline_scores()]
    if ablations:
        scored += bench.ablation_scores()
    groups = bench.roles.shape
    return EvaluationReport(
        sources=sources,
        left_out=runs.left_out,
        seed=seed,
        rows=bench.counts(),
        scores=tuple(scored),
        engines=bench.engine_scores(),
        decisions=tuple(bench.decisions(unseen)),
        intervals={
            name: coverage(energy, runs.energy_per_output_token_j, groups, which) for name, which in bench.parts(bench.roles.scored)
        },
        sensitivities=tuple(sensitivities(runs, bench.assembly, physics, unfitted(), bench.roles.scored)),
        worst={name: tuple(worst_rows(runs, unseen, bench.assembly, physics, which)) for name, which in bench.parts(bench.roles.scored)},
        points=bench.points(unseen),
    )


class _Bench:
    """Runs with their roles, splits and fits, and what is scored on them."""

    def __init__(self, runs: MeasuredRuns, *, seed: int, jobs: int, progress: Progress | None) -> None:
        self.runs, self.seed, self.progress = runs, seed, progress
        self.roles: Roles = roles_of(runs)
        self.splits: tuple[Split, ...] = splits_of(runs, self.roles)
        for name, fold in ((split.name, fold) for split in self.splits for fold in split.folds):
            if not (fold.timed.any() and fold.metered.any()):
                raise InputError(
                    f"{name}: without {fold.name} no run is left to learn from; give runs of several LLMs, families and GPU counts"
                )
        self.whole: Fold = everything(self.roles)
        self.known_engine = replace(self.whole, name="the other engine version", metered=self.whole.metered & ~self.roles.older)
        self.assembly: Assembly = assemble(runs.cases)
        self.facts: Facts = facts_of(runs, self.assembly, unfitted())
        self._estimates: dict[str, dict[str, Estimate]] = {}
        self.fits = Fits(runs, jobs=jobs, progress=progress)
        folds = [fold for split in self.splits for fold in split.folds]
        self.fits.run([Job(fold=fold) for fold in (*folds, self.whole, self.known_engine)])

    def parts(self, which: Mask) -> Iterator[tuple[str, Mask]]:
        """The rows, and the rows without the odd groups."""
        yield ALL, which
        yield NO_ODD, which & (self.runs.odd == "")

    def counts(self) -> dict[str, int]:
        """Rows by role."""
        roles = self.roles
        return {
            "scored": int(roles.scored.sum()),
            "without odd groups": int(roles.timed.sum()),
            "teach power only": int((roles.metered & ~roles.timed).sum()),
            "hybrids, scored apart": int(roles.apart.sum()),
            "other engine version": int(roles.older.sum()),
            "LLMs": len(set(roles.shape[roles.scored])),
        }

    def physics_scores(self, answers: dict[str, Answers]) -> Iterator[Scored]:
        """All targets on all splits; groups of rows on the unseen-LLM split; hybrids apart."""
        for split in self.splits:
            which = np.logical_or.reduce([fold.scored for fold in split.folds])
            for part, rows in self.parts(which):
                yield from self._targets(split.name, FITTED, part, answers[split.name], rows)
        for part, rows in self.groups():
            yield from self._targets(UNSEEN_LLM, FITTED, part, answers[UNSEEN_LLM], rows)
        for fold in self.splits[0].folds:
            yield from self._targets(UNSEEN_LLM, FITTED, f"LLM {fold.name}", answers[UNSEEN_LLM], fold.scored & (self.runs.odd == ""))
        for split in self.splits[1:3]:
            for fold in split.folds:
                yield from self._targets(split.name, FITTED, fold.name, answers[split.name], fold.scored)
        if self.roles.apart.any():
            hybrids = answers_of(self.runs, self.assembly, self.fits[Job(fold=self.whole)])
            yield from self._targets("Nemotron hybrids, never seen", FITTED, ALL, hybrids, self.roles.apart)

    def groups(self) -> Iterator[tuple[str, Mask]]:
        """Groups of scored rows worth a look of their own."""
        runs, roles = self.runs, self.roles
        kept = roles.scored & (runs.odd == "")
        dtypes = np.array([case.deployment.dtype for case in runs.cases], dtype=object)
        moe = np.array([case.deployment.llm.is_moe for case in runs.cases])
        small = np.array([BYTES_PER_VALUE[dtype] < 2 for dtype in dtypes])
        for dtype in sorted(set(dtypes[kept])):
            yield f"{dtype}{' without attention-DP' if dtype == 'fp8' else ''}", kept & (dtypes == dtype)
        for odd in sorted(set(runs.odd[roles.scored]) - {""}):
            yield f"odd group {odd}", roles.scored & (runs.odd == odd)
        yield "dense", kept & ~moe
        yield "dense, 16 bits", kept & ~moe & ~small
        yield "mixture of experts", kept & moe
        for labels in (np.array([f"{count} GPUs" for count in runs.gpus]), runs.workload, runs.gpu, ranges_of_batch(self._batches())):
            for label in sorted(set(labels[kept].tolist())):
                yield str(label), kept & (labels == label)

    def _batches(self) -> Floats:
        return np.array([case.request.batch for case in self.runs.cases])

    def _targets(self, split: str, method: str, part: str, answers: Answers, which: Mask) -> Iterator[Scored]:
        runs = self.runs
        pairs = {
            "T": (answers.time_s, runs.time_per_token_s),
            "P": (answers.power_w, runs.power_w),
            "E": (energy_j(runs, answers.time_s, answers.power_w), runs.energy_per_output_token_j),
            "P given T": (answers.given_time_w, runs.power_w),
            "E given T": (energy_j(runs, runs.time_per_token_s, answers.given_time_w), runs.energy_per_output_token_j),
            "ITL": (answers.itl_s, runs.itl_s),
        }
        for target, (predicted, measured) in pairs.items():
            if (which & np.isfinite(predicted) & np.isfinite(measured)).any():
                yield Scored(split=split, method=method, target=target, part=part, score=score(predicted, measured, which))

    def baseline_scores(self) -> Iterator[Scored]:
        """Every baseline on every split, taught on the rows that teach time."""
        for number, split in enumerate(self.splits, start=1):
            which = np.logical_or.reduce([fold.scored for fold in split.folds])
            for method, estimate in self.estimates(split).items():
                yield from self._estimate_scores(split.name, method, estimate, which)
            if self.progress:
                self.progress(number, len(self.splits), f"baselines, {split.name}")

    def estimates(self, split: Split) -> dict[str, Estimate]:
        """What every other method says about the rows of a split."""
        if split.name not in self._estimates:
            found = {name: self._estimate(split, self._taught(method)) for name, method in BASELINES.items()}
            plain, prior = self._of_physics(without_waits(unfitted())), self._of_physics(unfitted())
            found[PLAIN_SUM] = self._estimate(split, lambda _: plain)
            found[UNFITTED] = self._estimate(split, lambda _: prior)
            found[RESIDUAL] = self._estimate(split, self._residual)
            found[WEIGHTED] = self._estimate(split, self._weighted)
            self._estimates[split.name] = found
        return self._estimates[split.name]

    def _estimate(self, split: Split, method: Callable[[Fold], Estimate]) -> Estimate:
        """Answers of a method, fold by fold."""
        whole = {name: np.full(len(self.runs), np.nan) for name in ("time_s", "power_w", "energy_j")}
        given_time = False
        for fold in split.folds:
            one = method(fold)
            given_time = one.given_time
            for name, values in whole.items():
                values[fold.scored] = getattr(one, name)[fold.scored]
        return Estimate(**whole, given_time=given_time)

    def _taught(self, method: Any) -> Callable[[Fold], Estimate]:
        return lambda fold: method(self.facts, self.runs, fold.timed, self.seed)

    def _of_physics(self, physics: Physics) -> Estimate:
        answers = answers_of(self.runs, self.assembly, physics)
        energy = energy_j(self.runs, answers.time_s, answers.power_w)
        return Estimate(time_s=answers.time_s, power_w=answers.power_w, energy_j=energy)

    def _residual(self, fold: Fold) -> Estimate:
        """Boosted trees on what the fold's physics leaves over, in logarithms, for time and power."""
        base = answers_of(self.runs, self.assembly, self.fits[Job(fold=fold)])
        more = [
            np.exp(boosted(self.facts.physical, np.log(measured / said), fold.timed, RESIDUAL_TREES, self.seed))
            for said, measured in ((base.time_s, self.runs.time_per_token_s), (base.power_w, self.runs.power_w))
        ]
        time_s, power_w = base.time_s * more[0], base.power_w * more[1]
        return Estimate(time_s=time_s, power_w=power_w, energy_j=energy_j(self.runs, time_s, power_w))

    def _weighted(self, fold: Fold) -> Estimate:
        """PIE-P's inner node over the children that the fold's physics predicts."""
        children = children_j(self.assembly, self.fits[Job(fold=fold)])
        energy = weighted_sum(children, description(self.facts), self.runs.energy_per_output_token_j, fold.timed)
        nothing = np.full(len(self.runs), np.nan)
        return Estimate(time_s=nothing, power_w=nothing, energy_j=energy)

    def _estimate_scores(self, split: str, method: str, estimate: Estimate, which: Mask) -> Iterator[Scored]:
        runs = self.runs
        names = {"E": "E given T", "P": "P given T"} if estimate.given_time else {"E": "E", "P": "P"}
        pairs = {
            "T": (estimate.time_s, runs.time_per_token_s),
            names["P"]: (estimate.power_w, runs.power_w),
            names["E"]: (estimate.energy_j, runs.energy_per_output_token_j),
        }
        for part, rows in self.parts(which):
            for target, (predicted, measured) in pairs.items():
                if np.isfinite(predicted[rows]).any():
                    yield Scored(split=split, method=method, target=target, part=part, score=score(predicted, measured, rows))

    def ablation_scores(self) -> Iterator[Scored]:
        """The physics refitted without each term, on unseen LLMs."""
        folds = self.splits[0].folds
        times = {fold.name: self.fits[Job(fold=fold)] for fold in folds}
        self.fits.run([self._job(fold, variant, times) for variant in ABLATIONS for fold in folds])
        moe = np.array([case.deployment.llm.is_moe for case in self.runs.cases])
        kept = self.roles.scored & (self.runs.odd == "")
        for variant in ABLATIONS:
            answers = answers_over(self.runs, folds, self.fits, variant=variant, times=times if variant.power_only else None)
            for part, rows in (
                *self.parts(self.roles.scored),
                ("mixture of experts", kept & moe),
                ("several GPUs", kept & (self.runs.gpus > 1)),
            ):
                yield from self._targets(UNSEEN_LLM, variant.name, part, answers, rows)
        for part, rows in (("mixture of experts", kept & moe), ("several GPUs", kept & (self.runs.gpus > 1))):
            yield from self._targets(UNSEEN_LLM, FITTED, part, answers_over(self.runs, folds, self.fits), rows)

    def _job(self, fold: Fold, variant: Variant, times: dict[str, Physics]) -> Job:
        return Job(fold=fold, variant=variant, time=times[fold.name] if variant.power_only else None)

    def engine_scores(self) -> tuple[EngineScore, ...]:
        """The other engine version, where its rows are at hand."""
        if not self.roles.older.any():
            return ()
        physics = self.fits[Job(fold=self.known_engine)]
        return new_engine(self.runs, self.roles.older, physics, seed=self.seed, progress=self.progress)

    def decisions(self, answers: Answers) -> Iterator[DecisionScore]:
        """Choices of the physics on unseen LLMs, with and without a margin, and of the other methods that predict both figures."""
        runs, groups = self.runs, self.roles.shape
        energy = energy_j(runs, answers.time_s, answers.power_w)
        for part, which in self.parts(self.roles.scored):
            yield decision_score(FITTED, runs, answers.time_s, energy, which, part=part)
            margins = inner_margins(runs, answers.time_s, energy, which, groups)
            yield decision_score(CAREFUL, runs, answers.time_s, energy, which, margin=margins, part=part)
        which = self.roles.scored
        for margin in MARGINS[1:]:
            yield decision_score(f"{FITTED}, margin {100 * margin:.0f} %", runs, answers.time_s, energy, which, margin=margin)
        for name, estimate in self.estimates(self.splits[0]).items():
            if name != UNFITTED and np.isfinite(estimate.time_s[which]).all():
                yield decision_score(name, runs, estimate.time_s, estimate.energy_j, which)
        yield decision_score("largest batch, no limit looked at", runs, np.full(len(runs), 1e-9), 1.0 / self._batches(), which)

    def points(self, answers: Answers) -> Points:
        """Predicted against measured on the unseen-LLM split."""
        runs, rows = self.runs, np.flatnonzero(self.roles.scored)
        return Points(
            measured_j=runs.energy_per_output_token_j[rows],
            predicted_j=energy_j(runs, answers.time_s, answers.power_w)[rows],
            measured_s=runs.time_per_token_s[rows],
            predicted_s=answers.time_s[rows],
            measured_w=runs.power_w[rows],
            predicted_w=answers.power_w[rows],
            odd=runs.odd[rows] != "",
            moe=np.array([runs.cases[row].deployment.llm.is_moe for row in rows]),
            llm=tuple(str(name) for name in self.roles.shape[rows]),
        )


__all__ = ["UNSEEN_COUNT", "UNSEEN_FAMILY", "UNSEEN_LLM", "EvaluationReport", "evaluate_end_to_end", "evaluate_runs"]
