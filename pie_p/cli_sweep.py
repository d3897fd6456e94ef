"""`pie-p sweep`: every plan, its Pareto front, and the best within limits."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pie_p.cli_options import (
    complete_dtype,
    complete_engine,
    complete_figure,
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

if TYPE_CHECKING:
    from pie_p.sweeping import Sweep


def sweep(
    llm: Annotated[str, typer.Argument(help="Name of an LLM (pie-p llms), or path of a config.json.", autocompletion=complete_llm)],
    gpu: Annotated[list[str], several("GPU boards (pie-p hardware), or TOML files of clusters.", complete=complete_gpu)],
    prompt_tokens: Annotated[float, figure("Tokens in, cached ones included.")],
    output_tokens: Annotated[float, figure("Tokens out; 0 is prefill only.")],
    tp: Annotated[list[str] | None, several("Tensor-parallel ranks; default powers of two up to one host.")] = None,
    pp: Annotated[list[str] | None, several("Pipeline stages; default powers of two up to one host.")] = None,
    dp: Annotated[list[str] | None, several("Data-parallel ranks; default 1.")] = None,
    ep: Annotated[list[str] | None, several("Ranks the experts are spread over; default 1 and tp * dp.")] = None,
    batch: Annotated[list[str] | None, several("Requests in flight per data-parallel rank; default powers of two up to 256.")] = None,
    dtype: Annotated[list[str] | None, several("Storage of the weights; default as the checkpoint says.", complete=complete_dtype)] = None,
    engine: Annotated[list[str] | None, several("vllm, sglang, trtllm, optionally ==VERSION.", complete=complete_engine)] = None,
    power_limit_w: Annotated[list[str] | None, several("Power cap per board [W]; none is the board's own.")] = None,
    cached_prompt_tokens: Annotated[float, figure("Prompt tokens found in the prefix cache.")] = 0,
    kv_dtype: Annotated[str | None, typer.Option(help="Storage of the KV cache.", autocompletion=complete_dtype)] = None,
    mode: Annotated[str | None, typer.Option(help="static or steady; default static at batch 1, steady above.")] = None,
    scope: Annotated[str, typer.Option(help="gpu, host or facility.", autocompletion=complete_scope)] = "gpu",
    pue: Annotated[float | None, figure("Power usage effectiveness, for --scope facility.")] = None,
    exclusive_host: Annotated[bool, typer.Option(help="Count the whole host, idle neighbour boards included.")] = False,
    predictor: Annotated[str | None, typer.Option(help="Name or path of a predictor.", autocompletion=complete_predictor)] = None,
    objective: Annotated[
        str | None, typer.Option(help="Figure to choose by; default energy_per_output_token_j.", autocompletion=complete_figure)
    ] = None,
    max_tpot_s: Annotated[float | None, figure("Choose among plans with at most so long per output token after the first [s].")] = None,
    max_ttft_s: Annotated[float | None, figure("... with at most so long to the first token [s].")] = None,
    max_latency_s: Annotated[float | None, figure("... with at most this latency [s].")] = None,
    max_gpus: Annotated[float | None, figure("... with at most so many GPUs.")] = None,
    min_tokens_per_s: Annotated[float | None, figure("... with at least so many output tokens per second.")] = None,
    margin: Annotated[float, figure("Share by which predicted figures must stay clear of their limits, as 0.05.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write every plan to a .csv, .json or .parquet file.")] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a dask cluster whose workers answer, as tcp://host:8786; same figures (extra dask).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with the same keys as Sweep.to_dict(), and `best`.")] = False,
) -> None:
    """Try every combination of plans, and choose. A list (A,B,...) has commas between its entries, or is the option given several times."""
    from pie_p.sweeping import sweep as run

    with _answering(predictor, scheduler) as answering:
        plans = run(
            llm, gpus=words_of(gpu) or [], tp=_numbers("tp", tp), pp=_numbers("pp", pp), dp=_numbers("dp", dp), ep=_numbers("ep", ep),
            batch=_numbers("batch", batch), dtype=_words(dtype), engine=words_of(engine) or "vllm",
            power_limit_w=_numbers("power-limit-w", power_limit_w), prompt_tokens=prompt_tokens, output_tokens=output_tokens,
            cached_prompt_tokens=cached_prompt_tokens, kv_dtype=kv_dtype, mode=mode, scope=scope, pue=pue, exclusive_host=exclusive_host,  # type: ignore[arg-type]
            predictor=answering, progress=not as_json,
        )  # fmt: skip
    if out is not None:
        plans.save(out)
        sys.stderr.write(f"{len(plans)} feasible plans and {plans.refused} that cannot run written to {out}\n")
    limits: dict[str, float | None] = {
        "max_tpot_s": max_tpot_s, "max_ttft_s": max_ttft_s, "max_latency_s": max_latency_s, "max_gpus": max_gpus,
        "min_tokens_per_s": min_tokens_per_s,
    }  # fmt: skip
    chosen = plans.best(objective, margin=margin, **limits)
    if as_json:
        print_json(plans.to_dict() | {"best": plans.candidates.index(chosen)})
        return
    _show(plans, chosen, objective or plans.objective, limits=limits | {"margin": margin})


@contextmanager
def _answering(predictor: str | None, scheduler: str | None) -> Iterator[Any]:
    """The predictor's name, or a predictor whose cases the workers of a cluster answer."""
    if scheduler is None:
        yield predictor
        return
    from pie_p.scale_out import workers

    with workers(scheduler=scheduler) as crew:
        yield crew.predictor(predictor)


def _numbers(name: str, values: list[str] | None) -> Any:
    return numbers_of(f"--{name}", values)


def _words(values: list[str] | None) -> Any:
    words = words_of(values)
    return None if words is None else [None if word == "default" else word for word in words]


def _show(plans: Sweep, chosen: Any, objective: str, *, limits: Mapping[str, float | None]) -> None:
    from pie_p.report_tables import WIDE, sweep_footer, sweep_table

    screen = console()
    screen.print(sweep_table(plans, chosen, objective, wide=screen.width >= WIDE))
    for line in sweep_footer(plans, chosen, objective, limits=limits):
        screen.print(line, style="yellow" if line.startswith("warning") else "dim", markup=False)
