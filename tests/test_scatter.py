"""Scatter: where a point stands, what its axis says, and that every point is there."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from pie_p.scatter import Axis, axis, scatter_svg


def test_equal_ratios_are_equal_distances() -> None:
    ruler = Axis(label="", least=1.0, most=100.0, start=0.0, end=200.0)
    assert [ruler.at(value) for value in (1.0, 10.0, 100.0)] == pytest.approx([0.0, 100.0, 200.0])


@pytest.mark.parametrize(("least", "most"), [(1.0, 1.0), (0.002, 0.003), (3.0, 9e5), (1e-9, 1e9)])
def test_values_lie_inside_and_ticks_between_the_ends(least: float, most: float) -> None:
    ruler = axis("", [least, most], start=50.0, end=650.0)
    assert 50.0 < ruler.at(least) <= ruler.at(most) < 650.0
    assert all(ruler.least <= tick <= ruler.most for tick in ruler.ticks())
    assert len(ruler.ticks()) <= 22


def test_a_picture_is_well_formed_and_holds_every_point_in_its_place() -> None:
    svg = scatter_svg(
        [1.0, 2.0, 4.0],
        [4.0, 2.0, 8.0],
        front=[0, 1],
        x_label="<s>",
        y_label="J & J",
        titles=["a", 'b"', "<c>"],
        numbers=[7, 8, 9],
        colours=[0, 1, 0],
    )
    root = ElementTree.fromstring(svg)
    dots = {dot.get("data-i"): dot for dot in root.iter("circle")}
    assert set(dots) == {"7", "8", "9"}
    assert [dots[number].get("tabindex") for number in "789"] == ["0", "0", None]
    assert dots["9"].get("aria-label") == "<c>"
    across = [float(dots[number].get("cx") or 0) for number in "789"]
    assert across[1] - across[0] == pytest.approx(across[2] - across[1], abs=0.11)  # 1, 2, 4
    assert float(dots["9"].get("cy") or 0) < float(dots["7"].get("cy") or 0) < float(dots["8"].get("cy") or 0)  # up is more
    assert re.search(r"3 points, 2 on the Pareto front", svg)


def test_nothing_to_draw_is_nothing() -> None:
    assert scatter_svg([], [], front=[], x_label="x", y_label="y", titles=[]) == ""
