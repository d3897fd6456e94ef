"""`pie-p doctor`: what is installed and visible here, and what to do about each gap."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Annotated, Final, NamedTuple

import typer

from pie_p.console import console, print_json


class Extra(NamedTuple):
    """What an optional part brings, and for what."""

    modules: tuple[str, ...]
    purpose: str


EXTRAS: Final = {
    "train": Extra(("xgboost", "sklearn", "scipy", "pyarrow"), "to train predictors (train-cpu: the same without NVIDIA's NCCL, 0.5 GB)"),
    "profile": Extra(("torch", "pynvml", "pyarrow"), "to measure operators and power on GPUs"),
    "lossy": Extra(("pysz", "pyarrow"), "to keep raw power samples in fewer bytes, within a bound"),
    "plot": Extra(("matplotlib",), "for pictures in notebooks"),
    "place": Extra(("scipy",), "to place requests on LLMs and systems"),
    "bench": Extra(("httpx", "pyarrow"), "to benchmark a running server"),
    "watch": Extra(("httpx", "prometheus_client", "pyarrow"), "to follow a running server"),
    "dask": Extra(("dask", "distributed"), "to spread large sweeps and traces over machines"),
}


class Finding(NamedTuple):
    """One line of the answer."""

    what: str
    state: str
    do: str  # about the gap; empty where there is none


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list of what, state, do.")] = False) -> None:
    """Say what is installed, which GPUs and meters are visible, which predictor answers, and what to do about each gap."""
    findings = [_package(), *_extras(), *_boards(), *_predictors()]
    if as_json:
        print_json([finding._asdict() for finding in findings])
        return
    from pie_p.report import names_table

    console().print(names_table("pie_p on this machine", ("what", "state", "what to do"), findings))


def _package() -> Finding:
    try:
        installed = version("pie_p")
    except PackageNotFoundError:
        installed = "not installed as a package"
    return Finding("pie_p", f"{installed}, Python {platform.python_version()}", "")


def _extras() -> list[Finding]:
    findings = []
    for name, extra in EXTRAS.items():
        missing = [module for module in extra.modules if find_spec(module) is None]
        todo = f"pip install 'pie_p[{name}]' {extra.purpose}" if missing else ""
        findings.append(Finding(f"extra {name}", f"missing: {', '.join(missing)}" if missing else "installed", todo))
    return findings


def _boards() -> list[Finding]:
    if find_spec("pynvml") is None:
        return [Finding("GPUs", "not looked for: nvidia-ml-py is missing", "nothing, to predict; pip install 'pie_p[profile]' to profile")]
    from pie_p.errors import PiePError
    from pie_p.profiling.nvml_meter import nvml_boards

    try:
        boards = nvml_boards()
    except PiePError as error:
        return [Finding("GPUs", f"none visible: {error}", "nothing, to predict; profile where a GPU is (pie-p profile)")]
    if not boards:
        return [Finding("GPUs", "the driver runs, but shows no board", "nothing, to predict; check nvidia-smi and CUDA_VISIBLE_DEVICES")]
    seen = Finding("GPUs", f"{len(boards)} visible through NVML", "pie-p profile measures them")
    return [seen, *(found for number, board in enumerate(boards) for found in _board(number, board.uuid, board.name, board.driver))]


def _board(number: int, uuid: str, name: str, driver: str) -> list[Finding]:
    from pie_p.errors import PiePError
    from pie_p.hardware import load_gpu
    from pie_p.profiling.nvml_meter import NvmlMeter

    try:
        known, todo = f"in the catalogue as {load_gpu(name).name}", ""
    except PiePError:
        known, todo = "not in the catalogue", "describe it in a TOML file: docs/how-to/add-a-gpu.md"
    board = Finding(f"GPU {number}", f"{name}, {known}; driver {driver}", todo)
    try:
        with NvmlMeter(uuid) as meter:
            fields, limit_w = meter.fields, meter.read_state().limit_w
    except PiePError as error:
        return [board, Finding(f"meter {number}", f"does not answer: {error}", "profile its times alone, then pie-p train --time-only")]
    limit = "" if limit_w is None else f"; power limit {limit_w:g} W"
    return [board, _meter(number, frozenset(fields), limit)]


def _meter(number: int, fields: frozenset[str], limit: str) -> Finding:
    words = {"instant": "instant power", "average": "average power", "counter": "energy counter"}
    found = [text for name, text in words.items() if name in fields]
    if not found:
        return Finding(f"meter {number}", f"none on this board{limit}", "profile its times alone, then pie-p train --time-only")
    lacking = "instant" not in fields
    todo = "short kernels are measured less surely; a newer driver (530 or later) brings instant power" if lacking else ""
    return Finding(f"meter {number}", f"{', '.join(found)}{limit}", todo)


def _predictors() -> list[Finding]:
    from pie_p.model_files import shipped
    from pie_p.predictor import load_predictor

    used = load_predictor()
    findings = []
    if used.intervals is None:
        tested, todo = "no tested interval", "pie-p train ... --learn end-to-end makes one with intervals"
    else:
        domain = used.intervals.domain
        tested = f"energy measured on {', '.join(domain.gpus)} under {', '.join(domain.engines)}, up to {domain.most_gpus} GPUs"
        todo = "elsewhere its intervals are wider; a few own measurements adapt it: Predictor.calibrate"
    findings.append(Finding("predictor", f"{used.name} ({used.sha256[:8]}): {tested}", todo))
    others = sorted({"physics", *shipped()} - {used.name})
    return [*findings, Finding("others", ", ".join(others), "use one with --predictor NAME, or an own folder")]
