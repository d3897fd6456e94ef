"""What a terminal shows: tables with units and scope, rounded by `wording`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from pie_p.footprint import Footprint
from pie_p.prediction import Prediction
from pie_p.what_if import COMPARED, WhatIf, changes_words
from pie_p.wording import PART_WORDS, SCOPE_WORDS, change, deployment_words, quantity, request_words, share

if TYPE_CHECKING:
    from rich.console import RenderableType


def prediction_lines(prediction: Prediction) -> list[tuple[str, str, str]]:
    """Name, figure and remark of each line of the summary."""
    p, total = prediction, prediction.energy_j
    lines = [
        ("energy per request", quantity(total, "J"), SCOPE_WORDS[p.scope]),
        *_interval_line(p),
        ("energy per output token", quantity(p.energy_per_output_token_j, "J"), "prefill included"),
    ]
    for name, value in p.breakdown.to_dict().items():
        label, meaning = PART_WORDS[name]
        lines.append((f"  {label}", quantity(value, "J"), f"{share(value, total)}, {meaning}"))
    lines += [
        ("prefill", quantity(p.prefill.total_j, "J"), f"{share(p.prefill.total_j, total)}, reading the prompt"),
        ("decode", quantity(p.decode.total_j, "J"), f"{share(p.decode.total_j, total)}, writing the answer"),
        ("latency", quantity(p.latency_s, "s"), "first prefill start to last token"),
        ("time to first token", quantity(p.ttft_s, "s"), "without queueing"),
        ("time per output token", quantity(p.tpot_s, "s"), "after the first"),
        ("decode step", quantity(p.itl_s, "s"), "no prompt in it"),
        ("power of all GPUs", quantity(p.avg_power_w, "W"), f"mean over the request's life; {p.gpus} x {p.deployment.cluster.gpu.name}"),
    ]
    return lines


def _interval_line(p: Prediction) -> list[tuple[str, str, str]]:
    if p.spread is None:
        return []
    low, high = p.interval(0.9)
    return [("  90 % interval", f"{quantity(low, 'J')} to {quantity(high, 'J')}", "from errors on LLMs the fit never saw")]


def prediction_table(prediction: Prediction, *, footprint: Footprint | None = None) -> Table:
    """The summary a terminal shows, carbon and cost at its end where they were asked for."""
    answer = prediction.to_dict()
    title = f"{deployment_words(answer)}\n{request_words(answer)}"
    table = Table(title=Text(title), title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for name, figure, remark in prediction_lines(prediction) + (footprint.lines() if footprint else []):
        table.add_row(name, figure, Text(remark))
    return table


def prediction_footer(prediction: Prediction) -> list[str]:
    """Where the figures come from, and what to be careful about."""
    p = prediction
    lines = [f"cluster {p.cluster} · engine {p.engine} · predictor {p.predictor['name']} ({p.predictor['sha256'][:8]})"]
    return lines + [f"warning: {text}" for text in p.warnings]


def what_if_table(what_if: WhatIf[Prediction]) -> RenderableType:
    """Before, after and change of every figure."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for head in ("before", "after", "change"):
        table.add_column(head, justify="right", no_wrap=True)
    for name, before, after, ratio in what_if.rows():
        unit, words = COMPARED[name]
        table.add_row(words, quantity(before, unit), quantity(after, unit), change(ratio))
    return Group(Text(f"\nWhat if {changes_words(what_if.changes)}", style="italic"), table)


def what_if_footer(what_if: WhatIf[Prediction]) -> list[str]:
    """Warnings that come with the change."""
    return [
        f"warning, if {changes_words(what_if.changes)}: {text}" for text in what_if.after.warnings if text not in what_if.before.warnings
    ]


def tree_table(prediction: Prediction, *, depth: int) -> Table:
    """GPU energy by place in the operator tree, largest first."""
    sums = prediction.tree(depth)
    whole = sum(sums.values())
    table = Table(title="GPU energy by operator", title_justify="left", box=None, pad_edge=False)
    table.add_column("path", no_wrap=True)
    table.add_column("energy", justify="right")
    table.add_column("share", justify="right")
    for path, energy_j in sorted(sums.items(), key=lambda item: -item[1]):
        table.add_row(Text(path), quantity(energy_j, "J"), share(energy_j, whole))
    return table


def names_table(title: str, header: Iterable[str], rows: Iterable[Iterable[str]]) -> RenderableType:
    """A plain table of catalogue entries; brackets in names are no markup."""
    table = Table(*header, title=Text(title), title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))
    return table
