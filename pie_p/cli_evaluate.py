"""`pie-p evaluate`: how far off, on what was never seen."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pie_p.console import print_json, progress


def evaluate(
    profiles: Annotated[list[Path], typer.Argument(help="Profile folders with end-to-end rows, from pie-p import.")],
    docs: Annotated[Path | None, typer.Option(help="Folder to write accuracy.md and its pictures into.")] = None,
    ablations: Annotated[bool, typer.Option(help="Also refit without each term; most of the time goes there.")] = True,
    operators: Annotated[
        bool, typer.Option("--operators", help="Score operators instead: boosters beside physics, on every split.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of every random draw.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score time, power and energy on groups that the fit never saw, beside simpler methods."""
    if operators:
        _evaluate_operators(profiles, docs=docs, seed=seed, as_json=as_json)
        return
    from pie_p.accuracy_page import accuracy_page, write_accuracy
    from pie_p.scoring import evaluate_end_to_end

    with progress("evaluate", quiet=as_json) as show:
        report = evaluate_end_to_end(profiles, seed=seed, ablations=ablations, progress=lambda done, total, text: show(text, done, total))
    for text in report.left_out:
        sys.stderr.write(f"left out: {text}\n")
    if docs is not None:
        from pie_p.model_files import load_predictor_manifest, shipped
        from pie_p.operators_page import modules_section

        modules = modules_section(load_predictor_manifest(shipped()["operators"])) if "operators" in shipped() else ""
        sys.stderr.write(f"written: {write_accuracy(report, docs, operators=modules, command='pie-p evaluate')}\n")
    if as_json:
        print_json(report.to_dict())
    elif docs is None:
        sys.stdout.write(accuracy_page(report))


def _evaluate_operators(profiles: list[Path], *, docs: Path | None, seed: int, as_json: bool) -> None:
    from pie_p.evaluation import evaluate_operators
    from pie_p.operators_page import operators_page
    from pie_p.storage import write_atomically

    with progress("evaluate operators", quiet=as_json) as show:
        report = evaluate_operators(profiles, seed=seed, progress=show)
    page = operators_page(report)
    if docs is not None:
        write_atomically(docs / "accuracy-operators.md", page.encode())
        sys.stderr.write(f"written: {docs / 'accuracy-operators.md'}\n")
    if as_json:
        print_json(report.to_dict())
    elif docs is None:
        sys.stdout.write(page)
