"""The commands about data and this machine: import public measurements, and say what is installed and visible."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final, get_args

import typer

from pie_p.console import console, print_json, progress

EXTRAS: Final = {
    "train": ("xgboost", "sklearn", "scipy", "pyarrow"),
    "profile": ("torch", "pynvml", "pyarrow"),
    "plot": ("matplotlib",),
}

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
        what = f"{rejected.rows} rows of {rejected.file}" if rejected.rows else rejected.file
        sys.stdout.write(f"left out: {what}: {rejected.reason}\n")
    sys.stdout.write(f"profile written to {out}\n")


def doctor(as_json: AsJson = False) -> None:
    """Say what is installed, which GPUs are visible, which predictor answers, and what to do about each gap."""
    findings = [*_extras(), _gpus(), _predictor()]
    if as_json:
        print_json([{"what": what, "state": state, "do": what_to_do} for what, state, what_to_do in findings])
        return
    from pie_p.report import names_table

    console().print(names_table("pie_p on this machine", ("what", "state", "what to do"), findings))


Finding = tuple[str, str, str]


def _extras() -> list[Finding]:
    findings = [("pie_p", _version("pie_p"), "")]
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if find_spec(module) is None]
        state = f"missing: {', '.join(missing)}" if missing else "installed"
        findings.append((f"extra {extra}", state, f"pip install 'pie_p[{extra}]'" if missing else ""))
    return findings


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed as a package"


def _gpus() -> Finding:
    if find_spec("pynvml") is None:
        return ("GPUs", "not looked for: nvidia-ml-py is missing", "pip install 'pie_p[profile]' (predicting needs no GPU)")
    from pie_p.errors import PiePError
    from pie_p.profiling.nvml_meter import NvmlMeter

    try:
        meter = NvmlMeter()
    except PiePError as error:
        return ("GPUs", f"none visible: {error}", "nothing, to predict; an NVIDIA driver, to profile")
    return ("GPUs", f"visible through NVML: {type(meter).__name__}", "pie-p profile --help")


def _predictor() -> Finding:
    from pie_p.predictor import load_predictor

    predictor = load_predictor()
    return ("predictor", f"{predictor.name} ({predictor.sha256[:8]})", "")
