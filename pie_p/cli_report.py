"""`pie-p report`: a prediction or a sweep as one page for people."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pie_p.console import print_json

if TYPE_CHECKING:
    from pie_p.result_files import Result


def report(
    result: Annotated[
        Path, typer.Argument(help="JSON of pie-p predict --json or pie-p sweep --json, told apart by content; - reads it from a pipe.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: what was read, and where the page is.")] = False,
) -> None:
    """Write a prediction or a sweep as one HTML page that needs nothing else: no network, no server."""
    made = _from_pipe(out) if str(result) == "-" else _from_file(result, out)
    if as_json:
        print_json({"out": str(out), "kind": made.kind, "bytes": out.stat().st_size})
        return
    sys.stdout.write(f"{made.kind} written to {out}; open it in a browser\n")


def _from_file(result: Path, out: Path) -> Result:
    from pie_p.report_html import write_report

    return write_report(result, out)


def _from_pipe(out: Path) -> Result:
    from pie_p.report_html import write_page
    from pie_p.result_files import MOST_BYTES, parsed

    made = parsed(sys.stdin.buffer.read(MOST_BYTES + 1), what="standard input")
    write_page(made, out, source="")
    return made
