"""What a notebook shows of a sweep: its Pareto front as picture and table, and a matplotlib figure on request."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final

from pie_p.candidates import FIGURES, Candidate, Infeasible
from pie_p.extras import require
from pie_p.scatter import scatter_svg
from pie_p.wording import quantity

FRONT, OTHER = "#0f8b6d", "#9a9a9a"
MOST_ROWS: Final = 12  # of a table in a notebook
MOST_POINTS: Final = 1500  # of a picture in a notebook; the front is always there


def label_of(name: str) -> str:
    """A figure in words with its unit.

    >>> label_of("latency_s")
    'latency [s]'
    """
    known = FIGURES[name]
    return f"{known.words} [{known.unit}]" if known.unit else known.words


def pareto_figure(candidates: Sequence[Candidate], front: Sequence[Candidate], *, x: str, y: str, title: str) -> Any:
    """A matplotlib figure of all candidates and the front among them, on logarithmic axes.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure = require("matplotlib.figure", extra="plot").Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.plot([getattr(c, x) for c in candidates], [getattr(c, y) for c in candidates], ".", color=OTHER, alpha=0.6, label="feasible plans")
    axes.plot([getattr(c, x) for c in front], [getattr(c, y) for c in front], "o", color=FRONT, drawstyle="steps-post", linestyle="-",
              linewidth=1, label="Pareto front")  # fmt: skip
    axes.set(title=title, xlabel=label_of(x), ylabel=label_of(y), xscale="log", yscale="log")
    ticks = require("matplotlib.ticker", extra="plot")
    for one in (axes.xaxis, axes.yaxis):
        one.set_major_locator(ticks.LogLocator(subs=(1.0, 2.0, 5.0)))
        one.set_major_formatter(ticks.FormatStrFormatter("%g"))
        one.set_minor_locator(ticks.NullLocator())
    for place, candidate in enumerate(front):
        if place in {0, len(front) // 2, len(front) - 1}:
            axes.annotate(
                candidate.plan, (getattr(candidate, x), getattr(candidate, y)), fontsize=7, xytext=(6, 5), textcoords="offset points"
            )
    axes.legend(frameon=False)
    axes.grid(visible=True, which="major", alpha=0.25)
    return figure


def sweep_html(
    candidates: Sequence[Candidate], front: Sequence[Candidate], infeasible: Sequence[Infeasible], *, objective: str, title: str, scope: str
) -> str:
    """A sweep in a notebook: colours of the page, no script, nothing from elsewhere."""
    refused = sum(each.configurations for each in infeasible)
    head = f"<b>{escape(title)}</b><br>{len(candidates):,} feasible plans, {refused:,} that cannot run · scope {escape(scope)}"
    drawn = _drawn(candidates, front)
    picture = scatter_svg(
        [each.latency_s for each in drawn],
        [getattr(each, objective) for each in drawn],
        front=[place for place, each in enumerate(drawn) if place < len(front)],
        x_label=label_of("latency_s"),
        y_label=label_of(objective),
        titles=[_title(each, objective) for each in drawn],
    )  # fmt: skip
    body = picture + (_front_table(front, objective) if front else "")
    return f'<div style="max-width:760px">{head}{body}{_refusals(infeasible)}</div>'


def _drawn(candidates: Sequence[Candidate], front: Sequence[Candidate]) -> list[Candidate]:
    """The front, then the others, thinned out evenly where there are too many."""
    on_front = {id(each) for each in front}
    others = [each for each in candidates if id(each) not in on_front]
    every = max(1, -(-len(others) // MOST_POINTS))
    return [*front, *others[::every]]


def _title(candidate: Candidate, objective: str) -> str:
    return f"{candidate.plan}: {getattr(candidate, objective):.3g} J, {candidate.latency_s:.3g} s"


def _front_table(front: Sequence[Candidate], objective: str) -> str:
    shown = front[:: max(1, -(-len(front) // MOST_ROWS))]
    heads = ("plan", FIGURES[objective].words, "latency", "per token", "first token", "power", "tokens/s")
    rows = "".join(
        "<tr><td style='text-align:left'>" + "</td><td>".join((escape(each.plan), *_figures(each, objective))) + "</td></tr>"
        for each in shown
    )
    note = "" if len(shown) == len(front) else f", {len(shown)} of its {len(front)} plans"
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    return f"<table><caption style='text-align:left'>Pareto front{note}</caption><tr>{head}</tr>{rows}</table>"


def _figures(each: Candidate, objective: str) -> tuple[str, ...]:
    joules = quantity(getattr(each, objective), "J")
    times = (quantity(value, "s") for value in (each.latency_s, each.tpot_s, each.ttft_s))
    return (joules, *times, quantity(each.avg_power_w, "W"), quantity(each.tokens_per_s, "").strip())


def _refusals(infeasible: Sequence[Infeasible]) -> str:
    if not infeasible:
        return ""
    reasons = dict.fromkeys(f"{each.gpu}: {each.reason}" for each in infeasible)
    items = "".join(f"<li>{escape(reason)}</li>" for reason in list(reasons)[:MOST_ROWS])
    more = f"<li>and {len(reasons) - MOST_ROWS} more reasons: see <code>.infeasible</code></li>" if len(reasons) > MOST_ROWS else ""
    return f"<details><summary>what cannot run, and why</summary><ul>{items}{more}</ul></details>"
