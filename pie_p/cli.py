"""The command line: parses, calls, prints. Exit codes: 0 done, 2 a mistake the user can mend (one line), 1 ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from errno import ENOSPC
from io import TextIOWrapper
from typing import Annotated, Final

import typer

from pie_p import (
    cli_bench,
    cli_compare,
    cli_data,
    cli_doctor,
    cli_estimate_log,
    cli_evaluate,
    cli_place,
    cli_predict,
    cli_profile,
    cli_replay,
    cli_report,
    cli_sweep,
    cli_train,
    cli_watch,
)
from pie_p.cli_options import usage_text
from pie_p.console import console, print_json
from pie_p.errors import PiePError

USAGE_ERROR: Final[type[Exception]] = typer.BadParameter.__bases__[0]  # click's; newer typer carries its own copy of click

app = typer.Typer(
    name="pie-p",
    help="Joules per LLM request on multi-GPU clusters, without a GPU or a power meter at hand.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command(
    "predict",
    epilog="Example: pie-p predict llama-3.1-70b --gpu h100-sxm-80gb --tp 4 --batch 32 --prompt-tokens 500 --output-tokens 300 "
    "--what-if power_limit_w=500 --what-if dtype=fp8 --grid DE-2024",
)(cli_predict.predict)
app.command("grids", epilog="Example: pie-p grids --json")(cli_predict.grids)
app.command("import", epilog="Example: pie-p import mlenergy_v3 leaderboard/ -o imported/mlenergy_v3")(cli_data.import_data)
app.command("train", epilog="Example: pie-p train imported/mlenergy_v3 imported/mlenergy_v2 -o trained/own --learn end-to-end")(
    cli_train.train_predictor
)
app.command("evaluate", epilog="Example: pie-p evaluate imported/mlenergy_v3 imported/mlenergy_v2 --docs docs")(cli_evaluate.evaluate)
app.command(
    "sweep",
    epilog="Example: pie-p sweep llama-3.1-70b --gpu h100-sxm-80gb,l40s-48gb --prompt-tokens 500 --output-tokens 300 --max-tpot-s 0.05",
)(cli_sweep.sweep)
app.command(
    "compare",
    epilog="Example: pie-p compare llama-3.1-70b --gpu h100-sxm-80gb --tp 2,4,8 --batch 16 --prompt-tokens 500 --output-tokens 300",
)(cli_compare.compare)
app.command("replay", epilog="Example: pie-p replay trace.csv --llm llama-3.1-70b --gpu h100-sxm-80gb --tp 4 --replicas 2 -o served")(
    cli_replay.replay
)
app.command(
    "place", epilog="Example: pie-p place trace.csv --systems systems.toml --zeta 0.5 --most-share llama-3.1-70b=0.2 -o placed.csv"
)(cli_place.place)
app.command("report", epilog="Example: pie-p report prediction.json -o report.html")(cli_report.report)
app.command("bench", epilog="Example: pie-p bench http://localhost:8000 -o run --llm llama-3.1-8b --gpu h100-sxm-80gb --meter nvml")(
    cli_bench.bench
)
app.command(
    "watch", epilog="Example: pie-p watch http://localhost:8000 --llm llama-3.1-8b --gpu h100-sxm-80gb --listen 9401 --state watch.json"
)(cli_watch.watch)
app.command("estimate-log", epilog="Example: pie-p estimate-log requests.csv --llm llama-3.1-8b --gpu h100-sxm-80gb -o energy.parquet")(
    cli_estimate_log.estimate_log
)
app.command("doctor", epilog="Example: pie-p doctor --json")(cli_doctor.doctor)
app.command("profile", epilog="Example: pie-p profile plan.toml -o profiles/mine --budget 8m")(cli_profile.profile)

Json = Annotated[bool, typer.Option("--json", help="Print JSON with the same keys as Prediction.to_dict().")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `pie-p`: one line and exit code 2 for what the user can mend; help when nothing was asked."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if sys.stdout is None:  # the caller closed it: nobody reads
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    _bear_any_encoding()
    try:
        sys.exit(app(words, prog_name="pie-p", standalone_mode=False))
    except PiePError as error:
        _refuse(f"{type(error).__name__}: {error}")
    except USAGE_ERROR as error:
        _refuse(f"UsageError: {usage_text(error)}")
    except typer.Abort:
        _refuse("stopped")
    except OSError as error:
        if error.errno != ENOSPC:
            raise
        _refuse(f"cannot write: {error.strerror}; give the output a place with room")


def _bear_any_encoding() -> None:
    """A letter that the terminal's encoding lacks is shown as `?`, not as a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _refuse(text: str) -> None:
    sys.stderr.write(" ".join(text.split()) + "\n")
    sys.exit(2)


def _print_version(asked: bool) -> None:
    if asked:
        from pie_p import __version__

        sys.stdout.write(f"pie_p {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and stop.")] = False,
) -> None:
    """Joules per LLM request on multi-GPU clusters, without a GPU or a power meter at hand."""


@app.command(epilog="Example: pie-p llms --json")
def llms(as_json: Json = False) -> None:
    """List the bundled LLMs with their parameter counts."""
    from pie_p.llm import llm_names, load_llm

    shapes = [load_llm(name) for name in llm_names()]
    if as_json:
        print_json([{"name": s.name, "parameters": s.parameters, "active_parameters": s.active_parameters} for s in shapes])
        return
    from pie_p.report import names_table
    from pie_p.wording import quantity

    rows = [(s.name, quantity(s.parameters, ""), quantity(s.active_parameters, ""), s.dtype) for s in shapes]
    console().print(names_table("Bundled LLMs", ("name", "parameters", "active", "dtype"), rows))


@app.command(epilog="Example: pie-p hardware --json")
def hardware(as_json: Json = False) -> None:
    """List the GPU boards of the catalogue."""
    from pie_p.hardware import gpu_names, load_gpu

    boards = [load_gpu(name) for name in gpu_names()]
    if as_json:
        print_json([board.model_dump(mode="json") for board in boards])
        return
    from pie_p.report import names_table
    from pie_p.wording import quantity

    rows = [
        (b.name, quantity(b.memory_bytes, "B"), quantity(b.hbm_bytes_per_s, "B/s"), quantity(b.limit_w, "W"), quantity(b.idle_w, "W"))
        for b in boards
    ]
    console().print(names_table("GPU boards", ("name", "memory", "bandwidth", "power limit", "idle"), rows))
