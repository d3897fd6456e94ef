"""Another engine version from ten rows: time and power known for one version, a handful of rows of another, the rest of its rows scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from pie_p.calibration import calibrate
from pie_p.end_to_end import MeasuredRuns
from pie_p.fitting import Physics, seconds_per_token
from pie_p.physics import Floats
from pie_p.predictor import Predictor
from pie_p.scoring.folds import Progress, energy_j, predictor_of
from pie_p.scoring.scores import Score, mean_score, score
from pie_p.scoring.splits import Mask
from pie_p.serving import assemble
from pie_p.settling import mean_power_w

ROWS: Final = 10
DRAWS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineScore:
    """Errors on a new engine version before and after calibration; means over the draws."""

    method: str
    rows: int  # calibration rows [-]
    draws: int
    scores: Mapping[str, Score]  # by target: T, P, E
    spread: float  # standard deviation of E's MAPE over the draws

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def new_engine(
    runs: MeasuredRuns, which: Mask, physics: Physics, *, seed: int = 0, progress: Progress | None = None
) -> tuple[EngineScore, ...]:
    """Draws of `ROWS` rows calibrate; rows whose LLM is in the draw are left out of that draw's score.

    Args:
        runs: all runs.
        which: rows of the new engine version.
        physics: fitted on another version, these rows not among its teachers.
        seed: of the draws.
        progress: told after each draw.

    Returns:
        The scores without and with calibration, on the same rows; nothing where no draw leaves an LLM to score.
    """
    new = runs.take(which)
    predictor = predictor_of(physics, new.cases)  # the known version's costs are the best guess
    draw = np.random.default_rng(seed)
    before: list[dict[str, Score]] = []
    after: list[dict[str, Score]] = []
    plain = _answers(predictor, new)
    for number in range(DRAWS):
        rows = np.sort(draw.choice(len(new), size=min(ROWS, len(new)), replace=False))
        others = ~np.isin(new.base, new.base[rows])
        if not others.any():
            continue
        calibrated = calibrate(predictor, new.take(rows)).predictor
        before.append(_scores(new, plain, others))
        after.append(_scores(new, _answers(calibrated, new), others))
        if progress:
            progress(number + 1, DRAWS, "another engine version")
    if not before:
        return ()
    return _mean("as fitted on the known version", before), _mean(f"calibrated with {ROWS} rows", after)


def _answers(predictor: Predictor, runs: MeasuredRuns) -> tuple[Floats, Floats]:
    run = predictor.run(assemble(runs.cases))
    return seconds_per_token(run.assembly, run.clock)[0], mean_power_w(run)


def _scores(runs: MeasuredRuns, answers: tuple[Floats, Floats], which: Mask) -> dict[str, Score]:
    time_s, power_w = answers
    energy = energy_j(runs, time_s, power_w)
    return {
        "T": score(time_s, runs.time_per_token_s, which),
        "P": score(power_w, runs.power_w, which),
        "E": score(energy, runs.energy_per_output_token_j, which),
    }


def _mean(method: str, scores: list[dict[str, Score]]) -> EngineScore:
    means = {target: mean_score([each[target] for each in scores]) for target in scores[0]}
    spread = float(np.std([each["E"].mape for each in scores]))
    return EngineScore(method=method, rows=ROWS, draws=len(scores), scores=means, spread=spread)
