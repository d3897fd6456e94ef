"""`pie-p report`: a prediction or a sweep as one page for people."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pie_p.console import print_json


def report(
    result: Annotated[Path, typer.Argument(help="JSON of pie-p predict --json or pie-p sweep --json; which, is seen from its content.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: what was read, and where the page is.")] = False,
) -> None:
    """Write a prediction or a sweep as one HTML page that needs nothing else: no network, no server."""
    from pie_p.report_html import write_report

    made = write_report(result, out)
    if as_json:
        print_json({"out": str(out), "kind": made.kind, "bytes": out.stat().st_size})
        return
    sys.stdout.write(f"{made.kind} written to {out}; open it in a browser\n")
