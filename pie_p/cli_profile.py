"""The command that measures: a plan into a profile, inside a time box, with the time left on standard error."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pie_p.console import console, print_json
from pie_p.errors import InputError

if TYPE_CHECKING:
    from pie_p.profiling.progress import Progress

LONGEST_LINE: Final = 120


def profile(
    plan: Annotated[Path, typer.Argument(help="What to measure, as TOML or YAML: kernels, meetings of ranks, or parallel runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the profile.")],
    budget: Annotated[str | None, typer.Option(help="Time box: 90s, 8m or 1.5h. The most informative points come first.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on with the profile in the folder.")] = False,
    check: Annotated[bool, typer.Option(help="Measure nothing: say how long it takes and what this host lacks for it.")] = False,
    simulated: Annotated[bool, typer.Option(help="Boards with a known law instead of real ones; rows are marked as simulated.")] = False,
    samples_bound_w: Annotated[
        float | None, typer.Option(help="Keep raw power samples, each within so many watts of what was read (extra lossy).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure kernels, collectives, waits or parallel runs into a profile that `pie-p train` learns from."""
    from pie_p.profile_manifest import MANIFEST
    from pie_p.profiling.plans import parse_budget
    from pie_p.profiling.start import lacks, load_any_plan, start, with_samples_bound

    wanted, budget_s = load_any_plan(plan), None if budget is None else parse_budget(budget)
    if samples_bound_w is not None:
        wanted = with_samples_bound(wanted, samples_bound_w)
    if check:
        _show(lacks(wanted, out, simulated=simulated), as_json=as_json)
        return
    if (out / MANIFEST).exists() and not resume:
        raise InputError(f"{out} holds a profile already; add --resume to go on with it, or choose another folder")
    progress = start(wanted, out, budget_s=budget_s, simulated=simulated, on_progress=tell)
    _report(out, progress, as_json=as_json)


def tell(progress: Progress) -> None:
    """One line on standard error for each point; ranks call it from their own processes."""
    sys.stderr.write(f"{str(progress)[:LONGEST_LINE]}\n")
    sys.stderr.flush()


def _show(findings: list[tuple[str, str, str]], *, as_json: bool) -> None:
    if as_json:
        print_json([{"what": what, "state": state, "do": what_to_do} for what, state, what_to_do in findings])
        return
    from pie_p.report import names_table

    console().print(names_table("This plan on this host", ("what", "state", "what to do"), findings))


def _report(out: Path, progress: Progress, *, as_json: bool) -> None:
    """What the profile holds now, and how to go on."""
    from pie_p.profiles import verify_profile
    from pie_p.tables import SCHEMA

    manifest = verify_profile(out)
    rows = {name: manifest.rows(name) for name in SCHEMA if manifest.rows(name)}
    left = progress.total - progress.done
    if as_json:
        print_json({"out": str(out), "rows": rows, "points": progress.total, "left": left, "rejected": len(manifest.rejected)})
        return
    told = ", ".join(f"{name} {count}" for name, count in rows.items()) or "no rows"
    sys.stdout.write(f"{out}: {told}; {len(manifest.rejected)} rejected, {left} of {progress.total} points left\n")
    if left:
        sys.stdout.write("the same command with --resume measures the rest\n")
