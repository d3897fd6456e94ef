"""`pie-p replay`: the energy of a trace, served by replicas of a deployment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pie_p.cli_options import complete_dtype, complete_engine, complete_gpu, complete_llm, complete_predictor, complete_scope, figure
from pie_p.console import console, print_json, progress
from pie_p.quantities import as_int

if TYPE_CHECKING:
    from pie_p.replay_result import Replay


def replay(
    trace: Annotated[Path, typer.Argument(help="File of arrivals: .csv, .jsonl (each perhaps .gz) or .parquet.")],
    llm: Annotated[str, typer.Option(help="Name of an LLM (pie-p llms), or path of a config.json.", autocompletion=complete_llm)],
    gpu: Annotated[
        str | None, typer.Option(help="GPU board (pie-p hardware); its common host is assumed.", autocompletion=complete_gpu)
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="TOML file of an own cluster, instead of --gpu.")] = None,
    tp: Annotated[float, figure("Tensor-parallel ranks.")] = 1,
    pp: Annotated[float, figure("Pipeline stages.")] = 1,
    dp: Annotated[float, figure("Data-parallel ranks: engines of their own, or attention-DP with --ep.")] = 1,
    ep: Annotated[float, figure("Ranks the experts are spread over: 1 or a divisor of tp * dp.")] = 1,
    micro_batches: Annotated[float | None, figure("Pieces of a batch in the pipeline; default pp.")] = None,
    replicas: Annotated[float, figure("Copies of the deployment.")] = 1,
    dtype: Annotated[
        str | None, typer.Option(help="Storage of the weights; default as the checkpoint says.", autocompletion=complete_dtype)
    ] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="Storage of the KV cache.", autocompletion=complete_dtype)] = None,
    engine: Annotated[str, typer.Option(help="vllm, sglang or trtllm, optionally ==VERSION.", autocompletion=complete_engine)] = "vllm",
    max_sequences: Annotated[
        float | None, figure("Requests at once on a data-parallel rank; default what the engine's graphs hold.")
    ] = None,
    chunk_tokens: Annotated[float | None, figure("Tokens of one iteration on a data-parallel rank; default the engine's.")] = None,
    preemption: Annotated[str, typer.Option(help="recompute or reserve: what happens when the KV cache is full.")] = "recompute",
    routing: Annotated[str, typer.Option(help="least_loaded or round_robin.")] = "least_loaded",
    attribution: Annotated[str, typer.Option(help="marginal or proportional: who pays for a step.")] = "marginal",
    scope: Annotated[str, typer.Option(help="gpu, host or facility.", autocompletion=complete_scope)] = "gpu",
    pue: Annotated[float | None, figure("Power usage effectiveness, for --scope facility.")] = None,
    bin_s: Annotated[float | None, figure("Width of the power bins [s]; default about 500 of them.")] = None,
    faster: Annotated[float, figure("Let requests arrive so many times as fast.")] = 1,
    first: Annotated[float | None, figure("Only the first so many requests.")] = None,
    strict: Annotated[bool, typer.Option(help="Refuse a trace with bad rows instead of counting them.")] = False,
    predictor: Annotated[str | None, typer.Option(help="Name or path of a predictor.", autocompletion=complete_predictor)] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write requests, power bins and the summary into this folder.")] = None,
    form: Annotated[str, typer.Option(help="Form of the tables in it: csv or parquet.")] = "csv",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with the same keys as Replay.to_dict().")] = False,
) -> None:
    """Serve a trace of requests and say what each costs."""
    from pie_p.replaying import replay as run
    from pie_p.traces import load_trace

    requests = load_trace(trace, strict=strict)
    if first is not None:
        requests = requests.only(slice(0, as_int("first", first)))
    if faster != 1:
        requests = requests.faster(faster)
    with progress("replay", quiet=as_json) as tell:
        served = run(
            requests, llm, gpu=gpu, cluster=cluster, tp=_whole(tp), pp=_whole(pp), dp=_whole(dp), ep=_whole(ep),
            micro_batches=_whole(micro_batches), replicas=_whole(replicas), dtype=dtype, kv_dtype=kv_dtype, engine=engine,  # type: ignore[arg-type]
            max_sequences=_whole(max_sequences), chunk_tokens=_whole(chunk_tokens), preemption=preemption, routing=routing,  # type: ignore[arg-type]
            attribution=attribution, scope=scope, pue=pue, bin_s=bin_s, predictor=predictor, progress=tell,  # type: ignore[arg-type]
        )  # fmt: skip
    if out is not None:
        served.save(out, form=form)
        sys.stderr.write(f"{len(served)} requests, {len(served.bins.start_s)} power bins and the summary written to {out}\n")
    if as_json:
        print_json(served.to_dict())
        return
    _show(served)


def _whole(value: float | None) -> Any:  # the library checks that it is whole, and says what was wrong
    return value


def _show(served: Replay) -> None:
    from rich.table import Table
    from rich.text import Text

    from pie_p.replay_view import fleet_words, replay_notes, replay_rows

    summary, screen = served.to_dict(), console()
    title = f"{summary['requests']} requests of {summary['trace']}\n{fleet_words(summary)}"
    table = Table(title=Text(title), title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for name, value, meaning in replay_rows(summary):
        table.add_row(Text(name), value, Text(meaning))
    screen.print(table)
    for line in replay_notes(summary):
        screen.print(line, style="yellow" if line.startswith("warning") else "dim", markup=False)
