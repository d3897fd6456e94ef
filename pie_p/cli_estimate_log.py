"""`pie-p estimate-log`: energy of past work, from a table of requests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pie_p.cli_options import complete_dtype, complete_engine, complete_gpu, complete_llm, complete_predictor, complete_scope, figure
from pie_p.console import console, print_json
from pie_p.errors import InputError

if TYPE_CHECKING:
    from pie_p.request_log import EstimatedLog


def estimate_log(
    log: Annotated[Path, typer.Argument(help="Requests: .csv, .tsv, .txt, .jsonl or .parquet with start, end, prompt and output tokens.")],
    llm: Annotated[str | None, typer.Option(help="Name of the LLM (pie-p llms), or a config.json.", autocompletion=complete_llm)] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU board (pie-p hardware).", autocompletion=complete_gpu)] = None,
    cluster: Annotated[str | None, typer.Option(help="TOML file of an own cluster, instead of --gpu.")] = None,
    tp: Annotated[float, figure("Tensor-parallel ranks.")] = 1,
    pp: Annotated[float, figure("Pipeline stages.")] = 1,
    dp: Annotated[float, figure("Data-parallel ranks.")] = 1,
    ep: Annotated[float, figure("Ranks the experts are spread over.")] = 1,
    dtype: Annotated[str | None, typer.Option(help="Storage of the weights.", autocompletion=complete_dtype)] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="Storage of the KV cache.", autocompletion=complete_dtype)] = None,
    engine: Annotated[str, typer.Option(help="vllm, sglang or trtllm, optionally ==VERSION.", autocompletion=complete_engine)] = "vllm",
    power_limit_w: Annotated[float | None, figure("Power cap per board [W].")] = None,
    idle_w: Annotated[float | None, figure("Power per board with nothing to do [W]; default the catalogue's active idle.")] = None,
    deployments: Annotated[Path | None, typer.Option(help="TOML file: one table per name in the column `deployment`.")] = None,
    jobs: Annotated[Path | None, typer.Option(help="When the boards were held: a table of jobs, as sacct -P prints it.")] = None,
    scope: Annotated[str, typer.Option(help="gpu, host or facility.", autocompletion=complete_scope)] = "gpu",
    pue: Annotated[float | None, figure("Power usage effectiveness, for --scope facility.")] = None,
    exclusive_host: Annotated[bool, typer.Option(help="Count the whole host, idle neighbour boards included.")] = False,
    predictor: Annotated[str | None, typer.Option(help="Name or path of a predictor.", autocompletion=complete_predictor)] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write one row per request: .parquet, .csv or .jsonl.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with the same keys as EstimatedLog.to_dict().")] = False,
) -> None:
    """Estimate the energy of past requests from their times and tokens."""
    if (llm is None) == (deployments is None):
        raise InputError("give --llm and --gpu for one deployment, or --deployments FILE.toml for several")
    deployment: dict[str, Any] | None = None
    if llm is not None:
        deployment = {
            "llm": llm, "gpu": gpu, "cluster": cluster, "tp": tp, "pp": pp, "dp": dp, "ep": ep, "dtype": dtype, "kv_dtype": kv_dtype,
            "engine": engine, "power_limit_w": power_limit_w,
        }  # fmt: skip
    from pie_p.accounting import Accounting
    from pie_p.request_log import estimate_log as run

    accounting = Accounting(scope=scope, pue=pue, exclusive_host=exclusive_host)  # type: ignore[arg-type]
    result = run(
        log, deployment, deployments=deployments, jobs=jobs, accounting=accounting, idle_w=idle_w, predictor=predictor
    )  # fmt: skip
    if out is not None:
        result.save(out)
        sys.stderr.write(f"{len(result.rows)} requests written to {out}\n")
    for bad in result.bad_rows:
        sys.stderr.write(f"left out: {bad.count} rows: {bad.reason} (first in line {bad.first_line})\n")
    if as_json:
        print_json(result.to_dict())
        return
    _show(result)


def _show(result: EstimatedLog) -> None:
    from pie_p.report import names_table
    from pie_p.wording import SCOPE_WORDS, quantity, share

    sums = result.to_dict()
    total_j = sums["total_j"]
    rows = [("all", quantity(total_j, "J"), SCOPE_WORDS[result.scope])]
    rows += [(f"  {name.removesuffix('_j')}", quantity(joules, "J"), share(joules, total_j)) for name, joules in sums["breakdown"].items()]
    rows += [("  idle", quantity(sums["idle_j"], "J"), f"{share(sums['idle_j'], total_j)}, no request in flight")]
    rows += [("per request", quantity(sums["requests_j"] / sums["requests"], "J"), f"{sums['requests']} requests, idle left out")]
    rows += [("per output token", quantity(sums["energy_per_output_token_j"], "J"), f"{sums['output_tokens']:.0f} tokens, idle left out")]
    for one in sums["deployments"]:
        rows.append((f"busy {one['deployment']}".rstrip(), quantity(one["busy_s"], "s"), f"and {quantity(one['idle_s'], 's')} idle"))
    screen = console()
    screen.print(names_table("Estimated, not metered", ("what", "figure", "remark"), rows))
    screen.print(f"predictor {result.predictor['name']} ({result.predictor['sha256'][:8]})", style="dim", markup=False)
    for text in result.warnings:
        screen.print(f"warning: {text}", style="yellow", markup=False)
