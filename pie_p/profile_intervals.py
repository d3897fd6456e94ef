"""Intervals for a predictor whose constants come from operators, collectives and waits: tested on end-to-end runs that taught it nothing.

Such a predictor has seen no deployment, so every measured run of a whole deployment is one left out. The errors of at least `LEAST_LLMS`
LLMs make the interval, by the same rule as the shipped predictor's (`pie_p.intervals`); with fewer, a coverage of nine in ten could not
be told from one of seven in ten, and there is no interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from pie_p.end_to_end import MeasuredRuns, measured_runs
from pie_p.errors import InputError, ProfileError
from pie_p.intervals import Domain, Intervals, widths_of
from pie_p.model_files import CARD, file_of, load_predictor_manifest, save_predictor
from pie_p.predictor import Predictor
from pie_p.profiles import load_tables

LEAST_LLMS: Final = 10  # (n + 1) * 0.9 <= n: from nine groups on the largest error bounds nine in ten; one more for level 0.9 itself
NEEDED: Final = f"an interval needs measured energies of {LEAST_LLMS} base LLMs or more, as end_to_end rows of boards in the catalogue"


def intervals_from_runs(predictor: Predictor, runs: MeasuredRuns) -> Intervals:
    """Intervals from the errors of a predictor on runs that did not teach it.

    Args:
        predictor: what answers; fitted to none of the runs, which only the caller can know.
        runs: whole deployments with measured energy of their boards.

    Raises:
        ProfileError: too few LLMs among them; the line says how many are needed.
    """
    runs = runs.take(np.isfinite(runs.energy_per_output_token_j) & ~runs.attention_dp & (runs.odd == ""))
    count = len(np.unique(runs.base))
    if count < LEAST_LLMS:
        raise ProfileError(f"{count} LLM{'' if count == 1 else 's'} with measured energy; {NEEDED}")
    answers = predictor.predict(runs.cases, keep_working=False)
    pairs = {
        "energy": (np.array([answer.energy_per_output_token_j for answer in answers]), runs.energy_per_output_token_j),
        "time": (np.array([answer.time_per_token_s for answer in answers]), runs.time_per_token_s),
        "power": (np.array([answer.avg_power_w / answer.gpus for answer in answers]), runs.power_w),
    }
    widths = {}
    for target, (ours, theirs) in pairs.items():
        known = np.isfinite(theirs)
        if len(np.unique(runs.base[known])) >= LEAST_LLMS:
            widths[target] = {"llm": widths_of(np.log(ours[known] / theirs[known]), runs.base[known])}
    return Intervals(widths=widths, domain=Domain.of(runs.cases))


def add_intervals(folder: str | Path, profiles: Sequence[str | Path]) -> tuple[bool, str]:
    """Give a trained predictor the interval that the end-to-end runs of its own profiles allow, and write it down.

    Args:
        folder: of the predictor, which the runs did not teach.
        profiles: whose `end_to_end` rows test it.

    Returns:
        Whether there is an interval now, and one line that says on what it was tested or what to profile.
    """
    table = load_tables(profiles, "end_to_end")
    try:
        runs = measured_runs(table.iter_rows()) if len(table) else None
    except InputError as error:
        return False, f"no interval: {error}; {NEEDED}"
    if runs is None:
        return False, f"no interval: the profiles hold no end-to-end runs; {NEEDED}"
    predictor = Predictor.load(folder)
    try:
        intervals = intervals_from_runs(predictor, runs)
    except ProfileError as error:
        return False, f"no interval: {error}"
    text = f"interval tested on {len(runs)} runs of {len(np.unique(runs.base))} LLMs, none of which taught the predictor"
    manifest = load_predictor_manifest(folder)
    families = predictor.operators.families if predictor.operators is not None else {}
    files = {file_of(family, target): booster for family, one in families.items() for target, booster in one.boosters.items()}
    card = (Path(folder) / CARD).read_text(encoding="utf-8")
    told = manifest.model_copy(update={"intervals": intervals.to_plain(), "notes": (*manifest.notes, text)})
    save_predictor(folder, told, files, card=f"{card}- {text}\n")
    return True, text
