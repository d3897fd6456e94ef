"""`pie-p compare`: configurations side by side, predicted now or read from files."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pie_p.cli_options import (
    complete_dtype,
    complete_engine,
    complete_gpu,
    complete_llm,
    complete_predictor,
    complete_scope,
    figure,
    numbers_of,
    several,
    words_of,
)
from pie_p.console import console, print_json


def compare(
    what: Annotated[
        list[str],
        typer.Argument(
            help="JSON files of pie-p predict --json, or LLMs, for which the options say the rest.", autocompletion=complete_llm
        ),
    ],
    gpu: Annotated[list[str] | None, several("GPU boards.", complete=complete_gpu)] = None,
    tp: Annotated[list[str] | None, several("Tensor-parallel ranks.")] = None,
    pp: Annotated[list[str] | None, several("Pipeline stages.")] = None,
    dp: Annotated[list[str] | None, several("Data-parallel ranks.")] = None,
    ep: Annotated[list[str] | None, several("Ranks the experts are spread over.")] = None,
    batch: Annotated[list[str] | None, several("Requests in flight per data-parallel rank.")] = None,
    prompt_tokens: Annotated[list[str] | None, several("Tokens in.")] = None,
    output_tokens: Annotated[list[str] | None, several("Tokens out.")] = None,
    dtype: Annotated[list[str] | None, several("Storage of the weights.", complete=complete_dtype)] = None,
    kv_dtype: Annotated[list[str] | None, several("Storage of the KV cache.", complete=complete_dtype)] = None,
    engine: Annotated[list[str] | None, several("Serving engines.", complete=complete_engine)] = None,
    power_limit_w: Annotated[list[str] | None, several("Power caps per board [W]; none is the board's own.")] = None,
    scope: Annotated[str, typer.Option(help="gpu, host or facility.", autocompletion=complete_scope)] = "gpu",
    pue: Annotated[float | None, figure("Power usage effectiveness, for --scope facility.")] = None,
    predictor: Annotated[str | None, typer.Option(help="Name or path of a predictor.", autocompletion=complete_predictor)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: every answer, and its ratios to the first.")] = False,
) -> None:
    """Set configurations side by side.

    A list (A,B,...) has commas between its entries, or is the option given several times. It gives one entry to each column; a single
    entry holds for all.
    """
    lists = {
        "gpu": words_of(gpu), "dtype": words_of(dtype), "kv_dtype": words_of(kv_dtype), "engine": words_of(engine),
        **{
            name: numbers_of(f"--{name.replace('_', '-')}", values)
            for name, values in (
                ("tp", tp), ("pp", pp), ("dp", dp), ("ep", ep), ("batch", batch), ("prompt_tokens", prompt_tokens),
                ("output_tokens", output_tokens), ("power_limit_w", power_limit_w),
            )
        },
    }  # fmt: skip
    given = {name: values for name, values in lists.items() if values}
    names, answers = _read(what, given) if any(word.endswith(".json") and not _is_config(word) for word in what) else _predicted(
        {"llm": what, **given}, {"scope": scope, "pue": pue, "predictor": predictor}
    )  # fmt: skip
    from pie_p.report_tables import comparison_footer, comparison_table, ratios

    if as_json:
        print_json({"answers": answers, "ratios": ratios(answers)})
        return
    screen = console()
    screen.print(comparison_table(answers, names))
    for line in comparison_footer(answers, names):
        screen.print(line, style="yellow" if line.startswith("warning") else "dim", markup=False)


def _is_config(word: str) -> bool:
    return word.endswith("config.json")


def _read(files: list[str], given: dict[str, Any]) -> tuple[list[str], list[dict[str, Any]]]:
    from pathlib import Path

    from pie_p.errors import InputError
    from pie_p.result_files import read_result

    if given:
        raise InputError(f"--{next(iter(given)).replace('_', '-')} beside files: they say it themselves; give files or options")
    results = [read_result(file) for file in files]
    odd = next((file for file, result in zip(files, results, strict=True) if result.kind != "prediction"), None)
    if odd:
        raise InputError(f"{odd} is a sweep; compare takes predictions (pie-p report {odd} shows a sweep)")
    _enough(len(results))
    return [Path(file).stem for file in files], [result.data for result in results]


def _predicted(lists: dict[str, Any], shared: dict[str, Any]) -> tuple[list[str], list[dict[str, Any]]]:
    from pie_p.errors import InputError
    from pie_p.predictor import predict_energy

    columns = max(map(len, lists.values()))
    for name, values in lists.items():
        if len(values) not in (1, columns):
            raise InputError(
                f"{name} has {len(values)} values where another option has {columns}; give one value for all columns, or {columns}"
            )
    _enough(columns)
    for name in ("prompt_tokens", "output_tokens"):
        if name not in lists:
            raise InputError(f"--{name.replace('_', '-')} is missing; give one number, or one per column")
    chosen = [{name: values[number % len(values)] for name, values in lists.items()} for number in range(columns)]
    asked = [{name: value for name, value in each.items() if value is not None} for each in chosen]
    return [""] * columns, [predict_energy(**each, **shared).to_dict() for each in asked]


def _enough(count: int) -> None:
    from pie_p.errors import InputError

    if count < 2:
        raise InputError("one configuration is nothing to compare; give two files, or an option with two values as --gpu a,b")
