"""Scatter: points and their Pareto front as one SVG, on logarithmic axes, in the colours of whatever page it stands on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Final

WIDTH, HEIGHT = 720.0, 380.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 16.0, 14.0, 46.0
STEPS: Final = (1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A logarithmic axis, from data to pixels."""

    label: str
    least: float
    most: float
    start: float  # pixel of `least`
    end: float  # pixel of `most`

    def at(self, value: float) -> float:
        """Pixel of a value above 0."""
        return self.start + (self.end - self.start) * (log10(value) - log10(self.least)) / (log10(self.most) - log10(self.least))

    def ticks(self) -> list[float]:
        """1, 2 and 5 times powers of ten; powers of ten alone over many decades.

        >>> Axis(label="", least=0.9, most=11.0, start=0, end=1).ticks()
        [1.0, 2.0, 5.0, 10.0]
        """
        powers = range(floor(log10(self.least)), ceil(log10(self.most)) + 1)
        steps = STEPS if log10(self.most / self.least) < 3 else STEPS[:1]
        ticks = [step * 10.0**power for power in powers for step in steps]
        return [tick for tick in ticks if self.least <= tick <= self.most]


def axis(label: str, values: Sequence[float], *, start: float, end: float) -> Axis:
    """An axis with a little air around its values."""
    least, most = min(values), max(values)
    air = max((most / least) ** 0.06, 1.15)
    return Axis(label=label, least=least / air, most=most * air, start=start, end=end)


def scatter_svg(
    x: Sequence[float],
    y: Sequence[float],
    *,
    front: Sequence[int],
    x_label: str,
    y_label: str,
    titles: Sequence[str],
    numbers: Sequence[int] | None = None,
    colours: Sequence[int] | None = None,
) -> str:
    """The picture.

    Args:
        x: above 0.
        y: above 0.
        front: places of the Pareto front, in order of `x`.
        x_label: with its unit.
        y_label: with its unit.
        titles: what each point is, in words.
        numbers: of the points, for a script; the keyboard then reaches those of the front.
        colours: which of the page's colours `--g0`, `--g1`, ... each point has; default that of the front and of the text.

    Returns:
        An SVG element; nothing for no points.
    """
    if not x:
        return ""
    across = axis(x_label, x, start=LEFT, end=WIDTH - RIGHT)
    up = axis(y_label, y, start=HEIGHT - BOTTOM, end=TOP)
    places = [(across.at(a), up.at(b)) for a, b in zip(x, y, strict=True)]
    chosen = set(front)
    order = [*(each for each in range(len(places)) if each not in chosen), *front]
    points = [
        _point(
            places[each],
            titles[each],
            on_front=each in chosen,
            number=numbers[each] if numbers else None,
            colour=f"var(--g{colours[each]})" if colours else "",
        )
        for each in order
    ]
    role = 'role="group"' if numbers else 'role="img"'
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" width="100%" {role} aria-label="{escape(y_label)} against {escape(x_label)}: '
        f'{len(places)} points, {len(chosen)} on the Pareto front" style="max-width:{WIDTH:g}px;font:12px system-ui,sans-serif">'
        f"{_grid(across, up)}{_stairs([places[each] for each in front])}{''.join(points)}</svg>"
    )


def _grid(across: Axis, up: Axis) -> str:
    parts = []
    for tick in across.ticks():
        x = across.at(tick)
        parts.append(f'<path d="M{x:.1f} {up.end:g}V{up.start:g}" stroke="currentColor" opacity=".12"/>')
        parts.append(f'<text x="{x:.1f}" y="{up.start + 17:g}" text-anchor="middle" fill="currentColor" opacity=".75">{tick:g}</text>')
    for tick in up.ticks():
        y = up.at(tick)
        parts.append(f'<path d="M{across.start:g} {y:.1f}H{across.end:g}" stroke="currentColor" opacity=".12"/>')
        parts.append(f'<text x="{across.start - 7:g}" y="{y + 4:.1f}" text-anchor="end" fill="currentColor" opacity=".75">{tick:g}</text>')
    middle_x, middle_y = (across.start + across.end) / 2, (up.start + up.end) / 2
    parts.append(f'<text x="{middle_x:g}" y="{HEIGHT - 8:g}" text-anchor="middle" fill="currentColor">{escape(across.label)}</text>')
    turned = f'transform="rotate(-90 15 {middle_y:g})"'
    parts.append(f'<text x="15" y="{middle_y:g}" {turned} text-anchor="middle" fill="currentColor">{escape(up.label)}</text>')
    return "".join(parts)


def _stairs(places: Sequence[tuple[float, float]]) -> str:
    """The front as steps: what lies above and to the right of them is beaten."""
    if not places:
        return ""
    moves = "".join(f"H{x:.1f}V{y:.1f}" for x, y in places[1:])
    first_x, first_y = places[0]
    return f'<path d="M{first_x:.1f} {first_y:.1f}{moves}" fill="none" stroke="var(--front,#0f8b6d)" stroke-width="1.5" opacity=".7"/>'


def _point(place: tuple[float, float], title: str, *, on_front: bool, number: int | None, colour: str) -> str:
    x, y = place
    fill = colour or ("var(--front,#0f8b6d)" if on_front else "currentColor")
    look = f'r="5.5" fill="{fill}"' if on_front else f'r="3.2" fill="{fill}" opacity="{0.45 if colour else 0.28}"'
    if number is None:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" {look}><title>{escape(title)}</title></circle>'
    focus = ' tabindex="0" role="button"' if on_front else ""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" {look} class="dot" data-i="{number}"{focus} aria-label="{escape(title)}"/>'
