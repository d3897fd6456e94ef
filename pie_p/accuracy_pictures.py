"""Pictures of an evaluation report, as SVG; needs the extra `plot`, and without it there are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from pie_p.errors import MissingExtraError
from pie_p.extras import require
from pie_p.physics import Floats
from pie_p.scoring.end_to_end import EvaluationReport

DENSE, EXPERTS, ODD = "#3b6ea5", "#d1711f", "#9a9a9a"
STYLE: Final = {"svg.hashsalt": "pie_p", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
METADATA: Final = {"Date": None, "Creator": None}  # the same report gives the same bytes


def draw_pictures(report: EvaluationReport, folder: Path) -> tuple[str, ...]:
    """Predicted against measured, and error by LLM; returns the file names, none where matplotlib is missing."""
    try:
        matplotlib = require("matplotlib", extra="plot")
        figures = require("matplotlib.figure", extra="plot")
    except MissingExtraError:
        return ()
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, draw in (("accuracy-predicted.svg", _predicted), ("accuracy-groups.svg", _by_llm)):
            figure = figures.Figure(figsize=(9, 3.2), layout="constrained")
            draw(figure, report)
            figure.savefig(folder / name, format="svg", metadata=METADATA)
    return "accuracy-predicted.svg", "accuracy-groups.svg"


def _predicted(figure: Any, report: EvaluationReport) -> None:
    points = report.points
    panels = (
        ("time per token [ms]", "log", 1e3 * points.measured_s, 1e3 * points.predicted_s),
        ("power of one board [W]", "linear", points.measured_w, points.predicted_w),
        ("energy per output token [J]", "log", points.measured_j, points.predicted_j),
    )
    for axes, (title, scale, measured, predicted) in zip(figure.subplots(1, 3), panels, strict=True):
        _against(axes, report, measured, predicted)
        axes.set_xscale(scale)
        axes.set_yscale(scale)
        axes.set_title(title)
        axes.set_xlabel("measured")
    figure.axes[0].set_ylabel("predicted, LLM never seen")
    figure.axes[0].legend(frameon=False, fontsize=8)


def _against(axes: Any, report: EvaluationReport, measured: Floats, predicted: Floats) -> None:
    points = report.points
    ends = np.array([min(measured.min(), predicted.min()), max(measured.max(), predicted.max())])
    axes.fill_between(ends, 0.8 * ends, 1.25 * ends, color="#eeeeee", linewidth=0)
    axes.plot(ends, ends, color="#666666", linewidth=0.8)
    kinds = (("dense", ~points.moe & ~points.odd, DENSE), ("experts", points.moe & ~points.odd, EXPERTS), ("odd groups", points.odd, ODD))
    for label, which, color in kinds:
        axes.plot(measured[which], predicted[which], ".", markersize=4, color=color, label=label)


def _by_llm(figure: Any, report: EvaluationReport) -> None:
    points = report.points
    names = sorted(set(points.llm))
    llm, error = np.array(points.llm), 100 * (points.predicted_j / points.measured_j - 1.0)
    axes = figure.subplots()
    axes.boxplot([error[(llm == name) & ~points.odd] for name in names], widths=0.5, showfliers=False, medianprops={"color": "black"})
    for place, name in enumerate(names, start=1):
        own = np.flatnonzero(llm == name)
        spread = place + np.linspace(-0.2, 0.2, len(own))
        odd = points.odd[own]
        axes.plot(spread[~odd], error[own[~odd]], ".", markersize=3, color=EXPERTS if points.moe[own[0]] else DENSE)
        axes.plot(spread[odd], error[own[odd]], ".", markersize=3, color=ODD)
    axes.axhline(0.0, color="#666666", linewidth=0.8)
    axes.set_xticks(range(1, len(names) + 1), names, rotation=30, ha="right", fontsize=7)
    axes.set_ylabel("error of E, LLM never seen [%]")
