"""`pie-p import`: public measurements to a profile."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, get_args

import typer

from pie_p.console import print_json, progress

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def import_data(
    source: Annotated[str, typer.Argument(help="Name of a public data set, as in profiles/sources.toml.")],
    path: Annotated[Path, typer.Argument(help="Clone of the repository, unpacked wheel, or a folder with the same files.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the new profile.")],
    replace: Annotated[bool, typer.Option(help="Replace a profile that is there, once the new one is complete.")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn public measurements into a profile that `pie-p train` learns from."""
    from pie_p.importers import import_source
    from pie_p.tables import TableName

    with progress(source, quiet=as_json) as show:
        manifest = import_source(source, path, out, progress=show, replace_existing=replace)
    rows = {table: manifest.rows(table) for table in get_args(TableName) if manifest.rows(table)}
    if as_json:
        print_json({"out": str(out), "rows": rows, "rejected": [rejected.model_dump(mode="json") for rejected in manifest.rejected]})
        return
    for name, count in rows.items():
        sys.stdout.write(f"{name}: {count} rows\n")
    for rejected in manifest.rejected:
        what = f"{rejected.rows} {'row' if rejected.rows == 1 else 'rows'} of {rejected.file}" if rejected.rows else rejected.file
        sys.stdout.write(f"left out: {what}: {rejected.reason}\n")
    sys.stdout.write(f"profile written to {out}\n")
