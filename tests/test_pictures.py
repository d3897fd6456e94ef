"""Pictures: every joule of the answer is drawn once, to scale, with units and scope, and nothing pops up."""

from __future__ import annotations

import pickle
import sys
from itertools import pairwise
from typing import Any

import pytest

from pie_p import Prediction, predict_energy
from pie_p.card import COLOURS
from pie_p.errors import InputError, MissingExtraError
from pie_p.pictures import LEVELS, prediction_figure, tree_of
from pie_p.wording import SCOPE_WORDS, quantity

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


def predicted(llm: str = "llama-3.1-8b", **more: Any) -> Prediction:
    return predict_energy(llm, **{"gpu": "h100-sxm-80gb", "prompt_tokens": 200, "output_tokens": 100, **more})


def texts(axes: Any) -> list[str]:
    return [each.get_text() for each in axes.texts]


MANY: list[dict[str, Any]] = [
    {"tp": 2, "batch": 16},
    {"scope": "facility", "pue": 1.3},
    {"output_tokens": 0},
    {"llm": "qwen3-30b-a3b", "tp": 4, "ep": 4, "pp": 2, "batch": 64},
    {"llm": "nemotron-h-8b", "batch": 3.5},
]


@pytest.mark.parametrize("more", MANY, ids=str)
def test_the_bars_are_the_parts_of_request_prefill_and_decode(more: dict[str, Any]) -> None:
    p = predicted(**more)
    axes = p.plot().axes[0]
    unit = {"energy per request [J]": 1.0, "energy per request [kJ]": 1e3, "energy per request [mJ]": 1e-3}[axes.get_xlabel()]
    expected = [value for parts in (p.decode, p.prefill, p.breakdown) for value in parts.to_dict().values()]
    assert [bar.get_width() * unit for bar in axes.patches] == pytest.approx([max(value, 0.0) for value in expected], abs=1e-9)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["decode", "prefill", "whole request"]
    assert f"{quantity(p.energy_j, 'J')} per request" in axes.get_title(loc="left")
    assert SCOPE_WORDS[p.scope] in axes.get_title(loc="left")
    assert [text.split(" ")[0] for text in (entry.get_text() for entry in axes.get_legend().get_texts())] == [
        name.removesuffix("_j") for name in p.breakdown.to_dict()
    ]


def test_the_interval_is_drawn_on_the_whole_request() -> None:
    p = predicted(batch=8)
    low_j, high_j = p.interval(0.9)
    [line] = p.plot().axes[0].lines
    assert list(line.get_xdata()) == pytest.approx([low_j, high_j])
    assert not predicted(predictor="physics").plot().axes[0].lines


@pytest.mark.parametrize("more", MANY, ids=str)
def test_the_icicle_is_as_wide_as_the_energy_and_children_lie_below_their_parent(more: dict[str, Any]) -> None:
    p = predicted(**more)
    levels: dict[int, list[tuple[float, float]]] = {}
    for box in p.plot().axes[1].patches:
        levels.setdefault(round(-box.get_y() - 1), []).append((box.get_x(), box.get_x() + box.get_width()))
    assert levels[0] == [(0.0, 1.0)]
    assert sum(end - start for start, end in levels[1]) == pytest.approx(1.0, abs=0.005)
    for level in range(1, len(levels)):
        for start, end in levels[level]:
            assert any(left - 1e-9 <= start and end <= right + 1e-9 for left, right in levels[level - 1])
        ordered = sorted(levels[level])
        assert all(one[1] <= other[0] + 1e-9 for one, other in pairwise(ordered))
    assert len(levels) <= LEVELS + 1


def test_boxes_name_their_place_and_their_energy() -> None:
    p = predicted(tp=2, batch=16)
    shown = texts(p.plot().axes[1])
    assert f"GPU boards\n{quantity(p.breakdown.gpu_j, 'J')}, 100.0 %" in shown
    assert any(text.startswith(f"decode\n{quantity(p.decode.gpu_j, 'J')}") for text in shown)
    assert any("all reduce" in text for text in shown)


def test_a_tree_keeps_every_joule() -> None:
    p = predicted("qwen3-30b-a3b", tp=4, ep=4, batch=64)
    tree = tree_of(p._places(depth=100))
    assert tree.energy_j == pytest.approx(p.breakdown.gpu_j)
    for place in (tree, *tree.below.values()):
        assert sum(below.energy_j for below in place.below.values()) == pytest.approx(place.energy_j)
    assert tree.below["decode"].energy_j == pytest.approx(p.decode.gpu_j)


def test_nothing_is_shown_and_no_window_is_needed() -> None:
    before = "matplotlib.pyplot" in sys.modules
    figure = predicted().plot()
    assert ("matplotlib.pyplot" in sys.modules) == before
    assert type(figure).__name__ == "Figure"


def test_a_notebook_shows_it_and_it_can_be_saved_and_pickled(tmp_path: Any) -> None:
    figure = predicted().plot()
    assert figure._repr_png_().startswith(b"\x89PNG")
    figure.savefig(tmp_path / "answer.svg")
    assert "<svg" in (tmp_path / "answer.svg").read_text(encoding="utf-8")
    assert len(pickle.loads(pickle.dumps(figure)).axes) == 2


def test_colours_are_those_of_the_card() -> None:
    from matplotlib.colors import to_hex

    p = predicted(tp=2, scope="host")
    drawn = [to_hex(bar.get_facecolor()) for bar in p.plot().axes[0].patches[-4:]]
    assert drawn == [COLOURS[name] for name in p.breakdown.to_dict()]


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    p = predicted()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'pie_p\[plot\]'"):
        prediction_figure(p.to_dict(), p._places(depth=3))


def test_without_its_working_there_is_nothing_to_draw() -> None:
    from dataclasses import replace

    with pytest.raises(InputError, match=r"^this prediction was made without its working"):
        replace(predicted(), working=None).plot()
