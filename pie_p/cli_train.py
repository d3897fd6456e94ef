"""`pie-p train`: profiles to a predictor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from pie_p.console import print_json, progress

Learn = Literal["auto", "operators", "end-to-end"]


def train_predictor(
    profiles: Annotated[list[Path], typer.Argument(help="Profile folders, from pie-p import or pie-p profile.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the predictor.")],
    name: Annotated[str, typer.Option(help="Its name, shown in every answer.")] = "own",
    learn: Annotated[str, typer.Option(help="operators (boosters), end-to-end (fitted physics), auto: what they hold.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of the split and the boosters.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Learn a predictor from profiles."""
    from pie_p.errors import InputError
    from pie_p.features import FAMILIES
    from pie_p.training import has_end_to_end, train, train_end_to_end

    if learn not in ("auto", "operators", "end-to-end"):
        raise InputError(f"learn = {learn!r} is not known; allowed: auto, operators, end-to-end")
    fitted = learn == "end-to-end" or (learn == "auto" and has_end_to_end(profiles))
    with progress("train", quiet=as_json) as show:
        constants = train_end_to_end(profiles, progress=show) if fitted else None
        families = () if learn == "end-to-end" else FAMILIES
        manifest = train(profiles, out, name=name, seed=seed, families=families, end_to_end=constants, progress=show)
    rows = [row.model_dump(mode="json") for row in manifest.errors]
    if as_json:
        print_json({"out": str(out), "name": manifest.name, "families": sorted(manifest.families), "errors": rows})
        return
    for text in constants.left_out if constants else ():
        sys.stderr.write(f"left out: {text}\n")
    for row in manifest.errors:
        sys.stdout.write(f"{row.family} {row.target} ({row.regressor}, {row.split}): {row.rows} rows, MAPE {100 * row.mape:.1f} %\n")
    sys.stdout.write(f"predictor {manifest.name} written to {out}; use it with --predictor {out}\n")
