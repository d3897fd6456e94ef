"""`pie-p train`: profiles to a predictor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from pie_p.console import print_json, progress

Learn = Literal["auto", "operators", "profile", "end-to-end"]


def train_predictor(
    profiles: Annotated[list[Path], typer.Argument(help="Profile folders, from pie-p import or pie-p profile.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the predictor.")],
    name: Annotated[str, typer.Option(help="Its name, shown in every answer.")] = "own",
    learn: Annotated[
        str, typer.Option(help="operators (boosters), profile (and waits), end-to-end (fitted physics), auto: what they hold.")
    ] = "auto",
    time_only: Annotated[bool, typer.Option(help="For a cluster without power meters: times from there, power as it is known.")] = False,
    power_from: Annotated[
        str | None, typer.Option(help="With --time-only: predictor whose power law stays, by name or folder; default the shipped one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the split and the boosters.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Learn a predictor from profiles."""
    from pie_p.errors import InputError, PredictorError
    from pie_p.features import FAMILIES
    from pie_p.fitting import Physics
    from pie_p.model_files import FORMAT
    from pie_p.physics import Roofline
    from pie_p.predictor import load_predictor
    from pie_p.profile_constants import constants_of
    from pie_p.profile_intervals import add_intervals
    from pie_p.serving import ServingCosts
    from pie_p.storage import check_target
    from pie_p.training import has_end_to_end, has_waits, train, train_end_to_end

    if learn not in get_args(Learn):
        raise InputError(f"learn = {learn!r} is not known; allowed: {', '.join(get_args(Learn))}")
    if power_from is not None and not time_only:
        raise InputError(f"--power-from {power_from} goes with --time-only; without it, power is learned from the profiles")
    check_target(out, mark=FORMAT, error=PredictorError)
    own = learn == "profile" or (learn == "auto" and has_waits(profiles))
    fitted = learn == "end-to-end" or (learn == "auto" and not own and has_end_to_end(profiles))
    if time_only and fitted:
        raise InputError("--time-only learns times of operators; an end-to-end fit needs power: give --learn operators or profile")
    if power_from is not None and not own:
        raise InputError(f"--power-from {power_from} needs profiles with waits, or --learn profile")
    start = Physics(roofline=Roofline(), costs=ServingCosts(), power=load_predictor(power_from).power) if time_only else None
    with progress("train", quiet=as_json) as show:
        constants = train_end_to_end(profiles, progress=show) if fitted else None
        families = () if learn == "end-to-end" else FAMILIES
        measured = constants_of(profiles, start=start, time_only=time_only) if own else None
        manifest = train(
            profiles,
            out,
            name=name,
            seed=seed,
            families=families,
            end_to_end=constants,
            constants=measured,
            time_only=time_only,
            progress=show,
        )
    tested, interval = add_intervals(out, profiles) if own else (True, "")
    rows = [row.model_dump(mode="json") for row in manifest.errors]
    if as_json:
        print_json({"out": str(out), "name": manifest.name, "families": sorted(manifest.families), "errors": rows, "interval": interval})
        return
    for text in constants.left_out if constants else ():
        sys.stderr.write(f"left out: {text}\n")
    if interval:
        (sys.stdout if tested else sys.stderr).write(f"{interval}\n")
    for row in manifest.errors:
        sys.stdout.write(f"{row.family} {row.target} ({row.regressor}, {row.split}): {row.rows} rows, MAPE {100 * row.mape:.1f} %\n")
    sys.stdout.write(f"predictor {manifest.name} written to {out}; use it with --predictor {out}\n")
