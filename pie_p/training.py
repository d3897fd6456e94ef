"""Training: profiles -> a saved predictor, the same to the bit from the same profiles and seed on the same machine.

A fifth of the rows is drawn by the seed and held out; the boosters learn from the rest, and the manifest's error table is the error of
these very boosters on the held-out rows, scored once.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pie_p.end_to_end_training import EndToEnd, train_end_to_end
from pie_p.engine import ENGINES
from pie_p.errors import InputError, PredictorError, ProfileError
from pie_p.examples import Examples, family_examples
from pie_p.features import FAMILIES, MEETING, Family
from pie_p.fitting import Physics
from pie_p.learning import SETTINGS, Settings, learn_family, power_rows, profiled_power_w, profiled_time_s
from pie_p.model_files import (
    FORMAT,
    ErrorRow,
    FamilyEntry,
    PredictorManifest,
    TrainedOn,
    base_times_s,
    entry_of,
    error_row,
    file_of,
    load_parts,
    save_predictor,
    shipped,
    stored_constants,
    summed_errors,
)
from pie_p.physics import Roofline
from pie_p.power import PowerLaw
from pie_p.profile_manifest import load_manifest
from pie_p.profiles import load_tables
from pie_p.quantities import shown
from pie_p.regressors import Booster, FamilyRegressor, Target
from pie_p.serving import ServingCosts
from pie_p.storage import check_target
from pie_p.tables import TableName

Progress = Callable[[str, int, int], None]  # (what is done, steps done, steps in all)

HELD_OUT: Final = 0.2  # share of rows
STREAM: Final = 4  # beside the seed: the held-out rows are none of those that settings were chosen on
MOST_NAME: Final = 80  # characters of a predictor's name
LEAST_ROWS: Final = 200  # a family with fewer rows stays on the base
NOTES: Final = (
    "power is learned from rows of at least 0.1 ms; shorter kernels are seen by one or two readings of the meter",
    "readings far below their neighbours are not dropped but pull with constant force (Huber)",
    "norms, activations, embeddings and scans have no public measurements and stay on the physical base",
)


END_TO_END_NOTES: Final = (
    "end to end the predictor is physics with fitted constants: operator boosters and residual trees made time and energy of unseen LLMs "
    "worse (docs/log.md), so none answers here",
    "fitted on H100 and B200 under vLLM 0.11.1 (time, power) and vLLM 0.5.4 (power); host costs of SGLang and TensorRT-LLM from times only",
    "never tested end to end: pipeline parallelism, several hosts, boards other than H100 and B200, batch below 8, prompts over 2,000",
    "fails on: attention-DP (one LLM, half as much energy as measured) and single B200 boards whose hosts were busy (GPQA runs)",
)
PROFILE_NOTES: Final = (
    "shares, floors, demands, jitter and gaps are those of the profiles, which know no serving engine: they hold for every one",
)
BORROWED_NOTES: Final = ("host costs of engines are those of the shipped default: tables of operators say nothing about them",)
UNSEEN: Final = {"llm": "LLM", "gpus": "GPU count", "gpu": "board", "dtype": "format", "range": "range of batches"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One family's regressor with its account."""

    regressor: FamilyRegressor
    rows: dict[Target, int]
    errors: list[ErrorRow]


def train(
    profiles: Sequence[str | Path],
    folder: str | Path,
    *,
    name: str = "default",
    seed: int = 0,
    jobs: int = 1,
    families: Sequence[Family] = FAMILIES,
    end_to_end: EndToEnd | None = None,
    constants: Physics | None = None,
    time_only: bool = False,
    progress: Progress | None = None,
    settings: Mapping[str, Settings] = SETTINGS,
) -> PredictorManifest:
    """Learn from profiles and save a predictor.

    Args:
        profiles: folders as `pie-p import` or the profiler write them.
        folder: where the predictor goes.
        name: of the predictor.
        seed: of the split and of every other random draw.
        jobs: threads; the result may depend on them.
        families: operators that boosters learn; none: the predictor is the fitted physics alone.
        end_to_end: constants and intervals that travel with the predictor (`train_end_to_end`); default the priors, and no interval.
        constants: measured by the profiles themselves (`profile_constants.constants_of`), in place of the priors; not beside `end_to_end`.
        time_only: boosters learn times alone, for profiles of a cluster without power meters; power follows the law.
        progress: called after every step.
        settings: of the boosters.

    Returns:
        The manifest that was written.

    Raises:
        ProfileError: a profile that cannot be read, or none with enough operator rows.
        PredictorError: the folder cannot be written, or holds something else; said before the work.
    """
    check_target(folder, mark=FORMAT, error=PredictorError)
    if not name.strip() or not name.isprintable() or len(name) > MOST_NAME:
        raise InputError(f"name = {shown(name)} is not a name; give 1 to {MOST_NAME} printable characters")
    base, law, serving = _base(end_to_end, constants)
    trained = _train_families(
        profiles, base, law, families=families, seed=seed, jobs=jobs, settings=settings, power=not time_only, progress=progress
    )
    if not trained and end_to_end is None and constants is None:
        raise ProfileError(f"no profile of {', '.join(map(str, profiles)) or 'none given'} has {LEAST_ROWS} operator rows of one family")
    manifest = PredictorManifest(
        name=name,
        pie_p_version=_version("pie_p"),
        libraries={"python": platform.python_version(), **{one: _version(one) for one in ("numpy", "scikit-learn", "xgboost")}},
        profiles=tuple(_trained_on(profile) for profile in profiles),
        seed=seed,
        split=f"{HELD_OUT:.0%} of rows, drawn with the seed, held out of training and scored once",
        notes=_notes(end_to_end, constants, boosters=bool(trained)),
        roofline=stored_constants(base),
        power=stored_constants(law),
        serving={engine: stored_constants(costs) for engine, costs in sorted(serving.items())},
        intervals=end_to_end.intervals.to_plain() if end_to_end else {},
        families={family: _entry(one, settings) for family, one in trained.items()},
        base_s=base_times_s(base) if trained else (),
        errors=(*_end_to_end_errors(end_to_end), *(row for one in trained.values() for row in one.errors)),
    )
    files = {file_of(family, target): booster for family, one in trained.items() for target, booster in one.regressor.boosters.items()}
    save_predictor(folder, manifest, files, card=card(manifest, files))
    if progress is not None:
        progress(f"saved {name}", len(families) + 1, len(families) + 1)
    return manifest


def _notes(end_to_end: EndToEnd | None, constants: Physics | None, *, boosters: bool) -> tuple[str, ...]:
    """What to know before use."""
    borrowed = () if end_to_end or constants else BORROWED_NOTES
    return (*(END_TO_END_NOTES if end_to_end else ()), *(PROFILE_NOTES if constants else ()), *borrowed, *(NOTES if boosters else ()))


def _base(end_to_end: EndToEnd | None, constants: Physics | None) -> tuple[Roofline, PowerLaw, Mapping[str, ServingCosts]]:
    """The constants that travel with a predictor; those of profiles hold for any engine, because none was profiled."""
    if end_to_end is not None:
        return end_to_end.roofline, end_to_end.power, end_to_end.serving
    if constants is not None:
        return constants.roofline, constants.power, {engine.name: constants.costs for engine in ENGINES}
    return Roofline(), PowerLaw(), shipped_serving()


def shipped_serving() -> Mapping[str, ServingCosts]:
    """Host costs of engines of the shipped default: tables of operators say nothing about an engine's host side."""
    place = shipped().get("default")
    return {} if place is None else load_parts(place)["serving"]


def has_waits(profiles: Sequence[str | Path]) -> bool:
    """Whether any profile holds measured waits, as ours do and imported ones do not."""
    return any(load_manifest(profile).rows("waits") for profile in profiles)


def has_end_to_end(profiles: Sequence[str | Path]) -> bool:
    """Whether any profile holds end-to-end runs."""
    return any(load_manifest(profile).rows("end_to_end") for profile in profiles)


def _train_families(
    profiles: Sequence[str | Path],
    base: Roofline,
    law: PowerLaw,
    *,
    families: Sequence[Family],
    seed: int,
    jobs: int,
    settings: Mapping[str, Settings],
    power: bool,
    progress: Progress | None,
) -> dict[Family, Trained]:
    names: tuple[TableName, ...] = ("operators", "collectives")
    tables = {name: load_tables(profiles, name) for name in names}
    trained: dict[Family, Trained] = {}
    for done, family in enumerate(families, start=1):
        examples = family_examples(tables["collectives" if family in MEETING else "operators"], family)
        if len(examples) >= LEAST_ROWS:
            trained[family] = _train_family(examples, base, law, seed=seed, jobs=jobs, settings=settings, power=power)
        if progress is not None:
            progress(f"{family}: {len(examples)} rows", done, len(families) + 1)
    return trained


def _train_family(
    examples: Examples, base: Roofline, law: PowerLaw, *, seed: int, jobs: int, settings: Mapping[str, Settings], power: bool
) -> Trained:
    held = held_out(len(examples), seed=seed)
    teach, test = examples.select(~held), examples.select(held)
    regressor = learn_family(teach, base, seed=seed, jobs=jobs, power=power, settings=settings)
    rows = {target: len(teach) if target == "time" else len(power_rows(teach)) for target in regressor.boosters}
    return Trained(regressor=regressor, rows=rows, errors=_errors(regressor, test, base, law))


def held_out(rows: int, *, seed: int) -> NDArray[np.bool_]:
    """Mask of the rows that do not teach."""
    return np.random.default_rng([STREAM, seed]).random(rows) < HELD_OUT


def _errors(regressor: FamilyRegressor, test: Examples, base: Roofline, law: PowerLaw) -> list[ErrorRow]:
    """Learned and physical figures side by side: time, and energy where power was measured."""
    base_s, time_s = base.time_s(test.columns), profiled_time_s(regressor, test, base)
    pairs = [("time", "learned", time_s, test.time_s), ("time", "physics", base_s, test.time_s)]
    if "power" in regressor.boosters:
        rows = power_rows(test)
        loud = test.select(rows)
        energy_j, law_w = loud.power_w * loud.time_s, law.power_w(loud.columns, base_s[rows])
        learned_w = profiled_power_w(regressor, loud, time_s[rows])
        pairs += [("power", "learned", learned_w, loud.power_w), ("power", "physics", law_w, loud.power_w)]
        pairs += [("energy", "learned", learned_w * time_s[rows], energy_j), ("energy", "physics", law_w * base_s[rows], energy_j)]
    return [
        error_row(predicted, measured, family=regressor.family, target=target, regressor=who, split=f"random {HELD_OUT:.0%} of rows")
        for target, who, predicted, measured in pairs
    ]


def _end_to_end_errors(end_to_end: EndToEnd | None) -> list[ErrorRow]:
    """Errors on runs of groups that the fit never saw, as the card shows them."""
    if end_to_end is None:
        return []
    return [
        summed_errors(errors, family="end to end", target=target, regressor="fitted physics", split=f"unseen {UNSEEN[split]}")
        for split, of in end_to_end.errors.items()
        for target, errors in of.items()
    ]


def _entry(one: Trained, settings: Mapping[str, Settings]) -> FamilyEntry:
    family = one.regressor.family
    used = {target: asdict(settings[f"{family}/{target}"]) for target in one.regressor.boosters}
    return entry_of(one.regressor, rows=one.rows, settings=used)


def _trained_on(profile: str | Path) -> TrainedOn:
    manifest = load_manifest(profile)
    parts = tuple(part.sha256 for part in manifest.parts)
    return TrainedOn(name=manifest.name, source=manifest.source, origin=manifest.origin, parts=parts)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # pie_p in a checkout, or xgboost-cpu instead of xgboost
        return "unknown"


def card(manifest: PredictorManifest, files: Mapping[str, Booster]) -> str:
    """What a person should know before trusting a predictor, as Markdown."""
    size = sum(len(booster.content) for booster in files.values())
    lines = [
        f"# Predictor `{manifest.name}`",
        "",
        f"Times and powers of operators, learned as corrections to a physical base. {len(files)} boosters, {size / 1e6:.1f} MB; "
        "XGBoost's JSON, gzipped."
        if files
        else "A physical base whose constants were fitted to measured runs, with intervals from groups that the fit never saw.",
        "",
        "## Learned from",
        "",
        *(f"- {one.name} ({one.origin}; {one.source})" for one in manifest.profiles),
        "",
        f"Split of operator rows: {manifest.split}; seed {manifest.seed}. End-to-end runs: every group left out in turn.",
        "",
        "## Error on rows held out",
        "",
        "| family | target | regressor | left out | rows | MAPE % | median % | p90 % | bias % |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_line(row) for row in manifest.errors),
        "",
        "## Know before use",
        "",
        *(f"- {note}" for note in manifest.notes),
        "- a random split of operator rows is the kindest one: for shapes, engines and boards never profiled see docs/accuracy.md",
        "",
    ]
    return "\n".join(lines)


def _line(row: ErrorRow) -> str:
    figures = " | ".join(f"{100 * value:.1f}" for value in (row.mape, row.median, row.p90, row.bias))
    return f"| {row.family} | {row.target} | {row.regressor} | {row.split} | {row.rows} | {figures} |"


__all__ = ["Trained", "card", "has_end_to_end", "held_out", "train", "train_end_to_end"]
