"""`pie-p predict`: one request, with what-ifs, carbon and cost on request; and the grids that can be named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pie_p.cli_options import (
    UNSET,
    complete_dtype,
    complete_engine,
    complete_gpu,
    complete_grid,
    complete_llm,
    complete_predictor,
    complete_scope,
    figure,
)
from pie_p.console import console, print_json
from pie_p.errors import InputError
from pie_p.quantities import as_int, shown

if TYPE_CHECKING:
    from pie_p.footprint import Footprint
    from pie_p.prediction import Prediction
    from pie_p.what_if import WhatIf

TRUTH = {"true": True, "false": False}


def predict(
    llm: Annotated[
        str, typer.Argument(help="Name of an LLM (pie-p llms), or path of a Hugging Face config.json.", autocompletion=complete_llm)
    ],
    prompt_tokens: Annotated[float, figure("Tokens in, cached ones included.")],
    output_tokens: Annotated[float, figure("Tokens out; 0 is prefill only.")],
    gpu: Annotated[
        str | None, typer.Option(help="GPU board (pie-p hardware); its common host is assumed.", autocompletion=complete_gpu)
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="TOML file of an own cluster, instead of --gpu.")] = None,
    tp: Annotated[float, figure("Tensor-parallel ranks.")] = 1,
    pp: Annotated[float, figure("Pipeline stages.")] = 1,
    dp: Annotated[float, figure("Data-parallel ranks.")] = 1,
    ep: Annotated[float, figure("Ranks the experts are spread over: 1 or a divisor of tp * dp.")] = 1,
    micro_batches: Annotated[float | None, figure("Pieces of a batch in the pipeline; default pp.")] = None,
    batch: Annotated[float, figure("Requests in flight per data-parallel rank.")] = 1,
    cached_prompt_tokens: Annotated[float, figure("Prompt tokens found in the prefix cache.")] = 0,
    dtype: Annotated[
        str | None, typer.Option(help="Storage of the weights: bf16 fp16 fp8 int8 int4 mxfp4 nvfp4.", autocompletion=complete_dtype)
    ] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="Storage of the KV cache.", autocompletion=complete_dtype)] = None,
    engine: Annotated[str, typer.Option(help="vllm, sglang or trtllm, optionally ==VERSION.", autocompletion=complete_engine)] = "vllm",
    mode: Annotated[str | None, typer.Option(help="static or steady; default static at batch 1, steady above.")] = None,
    scope: Annotated[str, typer.Option(help="gpu, host or facility.", autocompletion=complete_scope)] = "gpu",
    pue: Annotated[float | None, figure("Power usage effectiveness, for --scope facility.")] = None,
    exclusive_host: Annotated[bool, typer.Option(help="Count the whole host, idle neighbour boards included.")] = False,
    power_limit_w: Annotated[float | None, figure("Power cap per board [W].")] = None,
    predictor: Annotated[str | None, typer.Option(help="Name or path of a predictor.", autocompletion=complete_predictor)] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="The same question with an argument changed: power_limit_w=500. Several at once: with commas. Another: the option again.",
        ),
    ] = None,
    grid: Annotated[
        str | None, typer.Option(help="Carbon with a grid's yearly mean, DE-2024 (pie-p grids).", autocompletion=complete_grid)
    ] = None,
    grid_g_per_kwh: Annotated[float | None, figure("Carbon with an intensity of your own, instead of --grid [g CO2e/kWh].")] = None,
    price_per_kwh: Annotated[float | None, figure("Cost with this price of electricity.")] = None,
    currency: Annotated[str, typer.Option(help="What the price is in.")] = "",
    tree: Annotated[float, figure("Also print GPU energy by operator, this deep; with --json as `tree`.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with the same keys as Prediction.to_dict().")] = False,
) -> None:
    """Predict the energy of one request."""
    given = dict(locals())
    factors = {name: given.pop(name) for name in ("grid", "grid_g_per_kwh", "price_per_kwh", "currency")}
    question = {name: value for name, value in given.items() if name not in ("llm", "what_if", "tree", "as_json")}
    depth = as_int("tree", tree, least=0, most=6)
    scenarios = [changes_of(text) for text in what_if or ()]
    from pie_p.predictor import predict_energy

    prediction = predict_energy(llm, **question)
    what_ifs = [prediction.what_if(**changes) for changes in scenarios]
    footprint = prediction.footprint(**factors) if any(value not in (None, "") for value in factors.values()) else None
    if as_json:
        print_json(_plain(prediction, footprint, what_ifs, depth))
    else:
        _print_tables(prediction, footprint, what_ifs, depth)


def changes_of(text: str) -> dict[str, Any]:
    """Changes out of a word of the command line: numbers where they read as numbers, "none" for the default.

    Raises:
        InputError: not NAME=VALUE.

    >>> changes_of("power-limit-w=500,engine=vllm==0.5.4,kv_dtype=none")
    {'power_limit_w': 500.0, 'engine': 'vllm==0.5.4', 'kv_dtype': None}
    """
    changes: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if not name.strip() or not value.strip():
            raise InputError(f"--what-if {shown(text)} is no change; give NAME=VALUE like power_limit_w=500, several with commas")
        changes[name.strip().replace("-", "_")] = _value(value.strip())
    return changes


def _value(word: str) -> Any:
    if word.lower() in UNSET:
        return None
    try:
        return float(word)
    except ValueError:
        return TRUTH.get(word.lower(), word)


def _plain(prediction: Prediction, footprint: Footprint | None, what_ifs: list[WhatIf[Prediction]], depth: int) -> dict[str, Any]:
    """`Prediction.to_dict()`, and what was asked for beside it."""
    more: dict[str, Any] = {"footprint": footprint.to_dict()} if footprint else {}
    if what_ifs:
        more["what_if"] = [each.to_dict() for each in what_ifs]
    if depth:
        more["tree"] = prediction.tree(depth)
    return prediction.to_dict() | more


def _print_tables(prediction: Prediction, footprint: Footprint | None, what_ifs: list[WhatIf[Prediction]], depth: int) -> None:
    from pie_p import report

    screen = console()
    screen.print(report.prediction_table(prediction, footprint=footprint))
    if depth:
        screen.print(report.tree_table(prediction, depth=depth))
    for each in what_ifs:
        screen.print(report.what_if_table(each))
    lines = report.prediction_footer(prediction) + [line for each in what_ifs for line in report.what_if_footer(each)]
    for line in lines:
        screen.print(line, style="dim" if not line.startswith("warning") else "yellow", markup=False)


def grids(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the electricity grids whose yearly mean intensity is known, with their source."""
    from pie_p.footprint import grid_names, load_grid

    known = [load_grid(name) for name in grid_names()]
    if as_json:
        print_json([grid.model_dump(mode="json") for grid in known])
        return
    from pie_p.report import names_table

    rows = [(grid.name, grid.region, f"{grid.g_per_kwh:g} g CO2e/kWh") for grid in known]
    console().print(names_table("Electricity grids, life cycle of generation, mean of the year", ("name", "region", "intensity"), rows))
    for cite in dict.fromkeys(grid.source.cite for grid in known):
        console().print(f"source: {cite}", style="dim", markup=False)
