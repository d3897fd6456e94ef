"""Pictures: a prediction as a matplotlib figure - the parts of its energy as bars, and the tree of its operators as an icicle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import Any, Final

from pie_p.card import COLOURS
from pie_p.extras import require
from pie_p.wording import PART_WORDS, SCOPE_WORDS, deployment_words, interval_words, quantity, request_words, share

INK, INNER, EDGE = "#1f2328", "#e9ebee", "white"
LEVELS: Final = 5  # of the icicle below its root
NARROWEST: Final = 0.004  # of the width; narrower places are drawn together as "…"
CHARACTERS: Final = 125  # of the icicle's type that fit its whole width
TURNED: Final = 12  # characters that fit the height of a box


@dataclass(slots=True)
class Place:
    """A node of the operator tree."""

    energy_j: float = 0.0
    kind: str = ""  # of a leaf: "compute", "communication", "wait"
    below: dict[str, Place] = field(default_factory=dict)


def tree_of(operators: Mapping[str, tuple[str, float]]) -> Place:
    """Nested places out of paths.

    >>> tree = tree_of({"decode/layer/mlp": ("compute", 2.0), "decode/wait/host": ("wait", 1.0)})
    >>> tree.energy_j, tree.below["decode"].below["wait"].energy_j
    (3.0, 1.0)
    """
    root = Place()
    for path, (kind, energy_j) in operators.items():
        place = root
        place.energy_j += energy_j
        for part in path.split("/"):
            place = place.below.setdefault(part, Place())
            place.energy_j += energy_j
        place.kind = kind
    return root


def prediction_figure(answer: Mapping[str, Any], operators: Mapping[str, tuple[str, float]]) -> Any:
    """The figure: bars above, icicle below. It belongs to no window and shows itself in a notebook.

    Args:
        answer: `Prediction.to_dict()`.
        operators: energy kind and energy of every operator and wait by its path [J].

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure = require("matplotlib.figure", extra="plot").Figure(figsize=(10.0, 7.2), layout="constrained", facecolor="white")
    bars, icicle = figure.subplots(2, 1, height_ratios=(1.0, 2.6))
    bounds = interval_words(answer)
    figure.suptitle(f"{deployment_words(answer)}\n{request_words(answer)}", x=0.012, ha="left", fontsize=11, color=INK)
    total = sum(answer["breakdown"].values())
    title = f"{quantity(total, 'J')} per request" + (f" ({bounds})" if bounds else "") + f"; {SCOPE_WORDS[answer['scope']]}"
    _draw_bars(bars, answer, title)
    _draw_icicle(icicle, tree_of(operators))
    figure._repr_png_ = partial(_png, figure)
    return figure


def _png(figure: Any) -> bytes:
    """What a notebook shows, whether or not pyplot was ever imported."""
    sink = BytesIO()
    figure.savefig(sink, format="png", dpi=110)
    return sink.getvalue()


def _draw_bars(axes: Any, answer: Mapping[str, Any], title: str) -> None:
    """Whole request, prefill and decode in joules, by kind."""
    factor, prefix = _scale(sum(answer["breakdown"].values()))
    rows = (("decode", answer["decode"]), ("prefill", answer["prefill"]), ("whole request", answer["breakdown"]))
    for height, (_, parts) in enumerate(rows):
        left = 0.0
        for name, value in parts.items():
            width = max(value, 0.0) / factor
            label = PART_WORDS[name][0] if height == 2 else None
            axes.barh(height, width, left=left, height=0.62, color=COLOURS[name], edgecolor=EDGE, linewidth=0.6, label=label)
            left += width
        place = max(left, answer["interval"]["high_j"] / factor) if height == 2 and answer["interval"] is not None else left
        axes.text(place, height, f"  {quantity(sum(parts.values()), 'J')}", va="center", fontsize=9, color=INK)
    if answer["interval"] is not None:
        bounds = [answer["interval"][bound] / factor for bound in ("low_j", "high_j")]
        axes.plot(bounds, [2, 2], color=INK, linewidth=1.4, marker="|", markersize=9)
    whole = sum(answer["breakdown"].values())
    labels = [f"{PART_WORDS[name][0]} {share(value, whole)}" for name, value in answer["breakdown"].items()]
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.set_yticks(range(3), [label for label, _ in rows])
    axes.set_xlabel(f"energy per request [{prefix}J]", fontsize=9)
    axes.margins(x=0.12)
    axes.tick_params(labelsize=9, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    handles, _ = axes.get_legend_handles_labels()
    axes.legend(
        handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.32), ncols=len(labels), frameon=False, fontsize=9, handlelength=1
    )


def _scale(value: float) -> tuple[float, str]:
    """Factor and prefix that an axis of this length is read in."""
    words = quantity(value, "")
    prefix = words.split(" ")[1]
    return {"G": 1e9, "M": 1e6, "k": 1e3, "": 1.0, "m": 1e-3, "µ": 1e-6, "n": 1e-9}[prefix], prefix


def _draw_icicle(axes: Any, root: Place) -> None:
    """Each place as wide as its share of the boards' energy, its parts below it."""
    axes.set_title(f"where the {quantity(root.energy_j, 'J')} of the GPU boards go: width is energy", loc="left", fontsize=10, color=INK)
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(-min(_depth(root), LEVELS + 1), 0.0)
    axes.set_axis_off()
    if root.energy_j > 0:
        _draw_place(axes, root, "GPU boards", left=0.0, level=0, whole=root.energy_j)


def _depth(place: Place) -> int:
    return 1 + max((_depth(below) for below in place.below.values()), default=0)


def _draw_place(axes: Any, place: Place, name: str, *, left: float, level: int, whole: float) -> None:
    deepest = level == LEVELS or not place.below
    kinds = _kinds(place)
    colour = COLOURS[f"{max(kinds, key=lambda kind: kinds[kind])}_j"] if deepest else INNER
    _draw_box(axes, left, place.energy_j / whole, level, colour, name=name.replace("_", " "), energy_j=place.energy_j, whole=whole)
    if deepest:
        return
    small_j = 0.0
    for part, below in sorted(place.below.items(), key=lambda item: -item[1].energy_j):
        if below.energy_j / whole < NARROWEST:
            small_j += max(below.energy_j, 0.0)
            continue
        _draw_place(axes, below, part, left=left, level=level + 1, whole=whole)
        left += below.energy_j / whole
    if small_j > 0:
        _draw_box(axes, left, small_j / whole, level + 1, INNER, name="", energy_j=small_j, whole=whole)


def _kinds(place: Place) -> dict[str, float]:
    """Energy by kind below a place [J]."""
    if not place.below:
        return {place.kind: place.energy_j}
    sums: dict[str, float] = {}
    for below in place.below.values():
        for kind, energy_j in _kinds(below).items():
            sums[kind] = sums.get(kind, 0.0) + energy_j
    return sums


def _draw_box(axes: Any, left: float, width: float, level: int, colour: str, *, name: str, energy_j: float, whole: float) -> None:
    """A box with as much text as fits: on lines, or turned where it is narrow."""
    rectangle = require("matplotlib.patches", extra="plot").Rectangle
    axes.add_patch(rectangle((left, -level - 1.0), width, 0.96, facecolor=colour, edgecolor=EDGE, linewidth=1.0))
    figure, part = quantity(energy_j, "J"), share(energy_j, whole)
    fitting = next((text for text in (f"{name}\n{figure}, {part}", f"{name}\n{figure}", name) if _fits(text, width)), "")
    turned = not fitting and width * CHARACTERS > 1.6 and len(name) <= TURNED
    if fitting or turned:
        axes.text(
            left + width / 2, -level - 0.52, fitting or name, ha="center", va="center", fontsize=8, color=INK, rotation=90 if turned else 0,
            linespacing=1.35, clip_on=True,
        )  # fmt: skip


def _fits(text: str, width: float) -> bool:
    return max(len(line) for line in text.split("\n")) <= width * CHARACTERS - 1
