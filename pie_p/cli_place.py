"""`pie-p place`: which system should answer which request of a trace."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pie_p.cli_options import complete_predictor, complete_scope, figure, numbers_of, several, words_of
from pie_p.console import console, print_json
from pie_p.quantities import as_int

if TYPE_CHECKING:
    from pie_p.placement import Placement
    from pie_p.traces import RequestTrace


def place(
    trace: Annotated[Path, typer.Argument(help="File of arrivals: .csv, .jsonl (each perhaps .gz) or .parquet.")],
    systems: Annotated[Path, typer.Option(help="TOML or JSON file: [[systems]] with llm, gpu, tp, batch, accuracy, slots, ...")],
    zeta: Annotated[list[str] | None, several("1 makes energy least, 0 accuracy largest; several for a curve; default 0.5.")] = None,
    coverage: Annotated[bool, typer.Option(help="Every LLM answers at least one request.")] = True,
    least_share: Annotated[list[str] | None, several("LLM=SHARE of the requests that it must answer.")] = None,
    most_share: Annotated[list[str] | None, several("LLM=SHARE of the requests that it may answer.")] = None,
    max_latency_s: Annotated[float | None, figure("No request goes where it takes longer in service [s].")] = None,
    within_s: Annotated[float | None, figure("Each system serves at most slots times so many seconds of requests [s].")] = None,
    weigh_tokens: Annotated[bool, typer.Option(help="Accuracy counts per token, not per request.")] = False,
    penalty: Annotated[float, figure("Greedy rule: weight of waiting as long as the longest request takes.")] = 1,
    seed: Annotated[float, figure("Of the random baseline.")] = 0,
    first: Annotated[float | None, figure("Only the first so many requests.")] = None,
    strict: Annotated[bool, typer.Option(help="Refuse a trace with bad rows instead of counting them.")] = False,
    scope: Annotated[str, typer.Option(help="gpu, host or facility.", autocompletion=complete_scope)] = "gpu",
    pue: Annotated[float | None, figure("Power usage effectiveness, for --scope facility.")] = None,
    predictor: Annotated[str | None, typer.Option(help="Name or path of a predictor.", autocompletion=complete_predictor)] = None,
    time_limit_s: Annotated[float, figure("After that long the best placement found is the answer, with its gap [s].")] = 60,
    fits: Annotated[Path | None, typer.Option(help="Write the systems' fits to a .json file, for --systems again.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the best placement, one row per request, to a .csv or .json file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: placements by zeta, each beside its baselines.")] = False,
) -> None:
    """Place the requests of a trace on systems: the proven optimum beside simple rules. Accuracies are yours to give, never guessed."""
    from pie_p.accounting import Accounting
    from pie_p.system_files import load_systems
    from pie_p.systems import save_systems
    from pie_p.traces import load_trace

    requests = load_trace(trace, strict=strict)
    if first is not None:
        requests = requests.only(slice(0, as_int("first", first)))
    reads, writes = (_steps(tokens) for tokens in (requests.prompt_tokens, requests.output_tokens))
    accounting = Accounting(scope=scope, pue=pue)  # type: ignore[arg-type]
    hosted = load_systems(systems, prompts=reads, outputs=writes, predictor=predictor, accounting=accounting)
    if fits is not None:
        save_systems(fits, hosted)
    zetas = _zetas(zeta)
    wishes: dict[str, Any] = {
        "coverage": coverage, "least_share": _shares("--least-share", least_share), "most_share": _shares("--most-share", most_share),
        "max_latency_s": max_latency_s, "within_s": within_s, "weigh_tokens": weigh_tokens, "time_limit_s": time_limit_s,
    }  # fmt: skip
    found = [_placed(requests, hosted, one, wishes, penalty=penalty, seed=as_int("seed", seed, least=0)) for one in zetas]
    if out is not None:
        if len(zetas) > 1:
            raise typer.BadParameter(f"--out holds one placement, and --zeta has {len(zetas)} values; give one")
        found[0][0].save(out)
        sys.stderr.write(f"{len(requests)} requests written to {out}\n")
    if as_json:
        print_json(_plain(requests, hosted, found))
        return
    _show(requests, hosted, found)


def _placed(requests: Any, hosted: Any, zeta: float, wishes: dict[str, Any], *, penalty: float, seed: int) -> list[Placement]:
    from pie_p.placement import baselines, place_online
    from pie_p.placement import place as run

    with _solver_kept_quiet():
        best = run(requests, hosted, zeta=zeta, **wishes)
    return [best, place_online(best.problem, penalty=penalty, bound=best.bound), *baselines(best.problem, bound=best.bound, seed=seed)]


@contextmanager
def _solver_kept_quiet() -> Iterator[None]:
    """HiGHS prints a line of its own from C now and then, which would stand in our JSON: meanwhile the descriptor leads nowhere."""
    try:
        sys.stdout.flush()
        kept = os.dup(1)
    except (OSError, ValueError):  # closed: nothing can stand in it
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        if os.name == "posix":
            ctypes.CDLL(None).fflush(None)  # C's own buffer, before the descriptor leads back
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _steps(tokens: Any) -> list[float]:
    """Token counts to predict at: from the trace's least to its most, in about equal ratios."""
    import numpy as np

    least, most = float(tokens.min()), float(tokens.max())
    return sorted(set(np.geomspace(max(least, 1.0), max(most, 4.0 * least, 8.0), 10).round().tolist()))


def _zetas(values: list[str] | None) -> list[float]:
    numbers = numbers_of("--zeta", values) or [0.5]
    if None in numbers:
        raise typer.BadParameter("--zeta takes numbers from 0 to 1")
    return [0.0 if number is None else number for number in numbers]


def _shares(option: str, values: list[str] | None) -> dict[str, float]:
    from pie_p.cli_options import number

    shares = {}
    for word in words_of(values) or []:
        llm, equals, share = word.rpartition("=")
        if not equals or not llm:
            raise typer.BadParameter(f"{option} {word!r} is not LLM=SHARE; give one like llama-3.1-8b=0.25")
        shares[llm.strip()] = number(share)
    return shares


def _plain(requests: RequestTrace, hosted: Any, found: list[list[Placement]]) -> dict[str, Any]:
    return {
        "trace": {"name": requests.name, "requests": len(requests), "bad_rows": [str(rows) for rows in requests.bad_rows]},
        "systems": [each.to_dict() for each in hosted],
        "placements": [{"best": best.to_dict(), "rules": [each.to_dict() for each in rules]} for best, *rules in found],
    }


def _show(requests: RequestTrace, hosted: Any, found: list[list[Placement]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from pie_p.wording import quantity

    screen, short = console(), {each.name: f"S{number}" for number, each in enumerate(hosted, start=1)}
    for best, *rules in found:
        table = Table(
            title=Text(f"{len(requests)} requests of {requests.name}, zeta {best.problem.zeta:g}"), title_justify="left", box=None
        )
        for heading in ("", "energy", "accuracy", "objective", *short.values(), "limits"):
            table.add_column(heading, justify="left" if heading in ("", "limits") else "right")
        for each in (best, *rules):
            accuracy = "" if each.mean_accuracy is None else f"{each.mean_accuracy:.4g}"
            counts = [str(count) for count in each.counts().values()]
            kept = "kept" if each.feasible else "; ".join(text.partition(":")[0] for text in each.broken)
            rule = f"all on {short[each.rule[7:]]}" if each.rule[7:] in short else each.rule
            table.add_row(Text(rule), quantity(each.energy_j, "J"), accuracy, f"{each.objective:.6g}", *counts, Text(kept))
        screen.print(table)
        proof = "proven best (gap 0)" if best.gap == 0.0 else f"within {best.gap:.2g} of the best (time limit)"
        screen.print(f"integer program: {proof}; {len(best.problem.counts)} distinct pairs of token counts", style="dim", markup=False)
    for each in hosted:
        score = each.energy_j.score
        error = "" if score is None else f", energy fit off by {100 * score.mape:.2g} % on {score.rows} rows"
        screen.print(f"{short[each.name]} is {each.name}: {each.slots} slots, {each.rows_from}{error}", style="dim", markup=False)
    for rows in requests.bad_rows:
        screen.print(f"warning: {rows}", style="yellow", markup=False)
