"""Footprint: grams of CO2 equivalent and money of an energy, each one multiplication by a factor that is shown beside it.

Factors are given - a number, or a grid of the catalogue by country and year - never guessed from a network or a locale. The energy comes
with its scope, so whatever the scope counts (host, PUE) is in every figure alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from pie_p.checks import Count, Noun, Positive, Text, read_toml
from pie_p.errors import InputError, UnknownNameError, did_you_mean
from pie_p.quantities import as_float, shown
from pie_p.sources import Source
from pie_p.units import J_PER_KWH
from pie_p.wording import SCOPE_WORDS, quantity

GRIDS: Final = Path(__file__).parent / "data" / "grids.toml"


class Grid(Noun):
    """An electricity grid's mean intensity over a year.

    >>> load_grid("DE-2024").g_per_kwh, load_grid("DE-2024").source.kind
    (344.0, 'published')
    """

    name: Text  # country or region and year, "DE-2024"
    region: Text
    year: Count
    g_per_kwh: Positive  # CO2 equivalent of generation, life cycle [g/kWh]
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Carbon and cost of one request. A factor that was not given leaves its figure None."""

    energy_j: float  # within the scope [J]
    low_j: float | None  # 90 % interval of the energy; None where the predictor has none [J]
    high_j: float | None
    scope: str
    pue: float | None
    grid_g_per_kwh: float | None = None  # CO2 equivalent [g/kWh]
    grid: str = ""  # where the intensity comes from
    price_per_kwh: float | None = None  # [currency/kWh]
    currency: str = ""

    @property
    def energy_kwh(self) -> float:
        """Energy in the unit that meters bill [kWh]."""
        return self.energy_j / J_PER_KWH

    @property
    def carbon_g(self) -> float | None:
        """CO2 equivalent of the electricity, without the making of the hardware [g]."""
        return None if self.grid_g_per_kwh is None else self.energy_kwh * self.grid_g_per_kwh

    @property
    def cost(self) -> float | None:
        """Price of the electricity [currency]."""
        return None if self.price_per_kwh is None else self.energy_kwh * self.price_per_kwh

    def to_dict(self) -> dict[str, Any]:
        """Plain data: figures with the factors and the scope they stand on."""
        return {
            "energy_j": self.energy_j,
            "energy_kwh": self.energy_kwh,
            "scope": self.scope,
            "pue": self.pue,
            "carbon_g": self.carbon_g,
            "grid_g_per_kwh": self.grid_g_per_kwh,
            "grid": self.grid,
            "cost": self.cost,
            "price_per_kwh": self.price_per_kwh,
            "currency": self.currency,
        }

    def lines(self) -> list[tuple[str, str, str]]:
        """Name, figure per request and remark with the factor."""
        found = []
        if self.carbon_g is not None:
            found.append(
                ("carbon (CO2e)", quantity(self.carbon_g, "g"), f"{self._per_million('g')}; {self.grid_g_per_kwh:g} g/kWh, {self.grid}")
            )
        if self.cost is not None:
            factor = f"{self.price_per_kwh:g} {self.currency}".rstrip()
            found.append(("electricity cost", f"{1e6 * self.cost:.3g} {self.currency}".rstrip(), f"per million requests; {factor} per kWh"))
        return found

    def _per_million(self, unit: str) -> str:
        factor = 1e6 * (self.grid_g_per_kwh or 0.0) / J_PER_KWH
        if self.low_j is None or self.high_j is None:
            return f"{quantity(factor * self.energy_j, unit)} per million requests"
        return f"{quantity(factor * self.low_j, unit)} to {quantity(factor * self.high_j, unit)} per million requests"

    def __str__(self) -> str:
        figures = "; ".join(f"{name} {figure} ({remark})" for name, figure, remark in self.lines())
        return f"{quantity(self.energy_kwh * 1e3, 'Wh')} per request, {SCOPE_WORDS[self.scope]}; {figures}"


def footprint_of(
    energy_j: float,
    *,
    scope: str,
    pue: float | None = None,
    interval_j: tuple[float, float] | None = None,
    grid: str | Grid | None = None,
    grid_g_per_kwh: float | None = None,
    price_per_kwh: float | None = None,
    currency: str = "",
) -> Footprint:
    """Carbon and cost of an energy.

    Args:
        energy_j: within the scope [J].
        scope: what the energy counts.
        pue: what of it is the site's overhead, for the record [-].
        interval_j: bounds of the energy [J].
        grid: name of the catalogue ("DE-2024"), or a `Grid`.
        grid_g_per_kwh: an intensity of your own instead [g/kWh].
        price_per_kwh: of the electricity [currency/kWh].
        currency: what the price is in, "EUR".

    Raises:
        InputError: no factor given, two intensities, or a factor that cannot be.
        UnknownNameError: no grid of that name.

    >>> f = footprint_of(3.6e6, scope="gpu", grid_g_per_kwh=400, price_per_kwh=0.25, currency="EUR")  # one kWh
    >>> f.carbon_g, f.cost
    (400.0, 0.25)
    """
    if grid is not None and grid_g_per_kwh is not None:
        raise InputError(f"both grid = {shown(grid)} and grid_g_per_kwh = {shown(grid_g_per_kwh)} given; give one")
    if grid is None and grid_g_per_kwh is None and price_per_kwh is None:
        raise InputError("a footprint needs a factor: grid='DE-2024', grid_g_per_kwh=344 or price_per_kwh=0.2; none is guessed")
    if not isinstance(currency, str) or len(currency) > 20:
        raise InputError(f"currency = {shown(currency)} is not a currency; give a short text like 'EUR'")
    low_j, high_j = interval_j or (None, None)
    place = load_grid(grid) if grid is not None else None
    intensity = place.g_per_kwh if place else None
    if grid_g_per_kwh is not None:
        intensity = as_float("grid_g_per_kwh", grid_g_per_kwh, most=3000.0)
    words = (
        f"{place.region} {place.year}, {place.source.cite.partition(',')[0]}"
        if place
        else "given by the user"
        if intensity is not None
        else ""
    )
    return Footprint(
        energy_j=energy_j,
        low_j=low_j,
        high_j=high_j,
        scope=scope,
        pue=pue,
        grid_g_per_kwh=intensity,
        grid=words,
        price_per_kwh=None if price_per_kwh is None else as_float("price_per_kwh", price_per_kwh, most=1e9),
        currency=currency,
    )


def load_grid(grid: str | Grid) -> Grid:
    """The grid of that name.

    Raises:
        UnknownNameError: with near names.
    """
    if isinstance(grid, Grid):
        return grid
    grids = _grids()
    if isinstance(grid, str) and grid.strip().upper() in grids:
        return grids[grid.strip().upper()]
    near = [name for name in grids if isinstance(grid, str) and name.startswith(f"{grid.strip().upper()}-")]
    hint = f" Did you mean: {', '.join(near)}?" if near else did_you_mean(grid[:80].upper(), grids) if isinstance(grid, str) else ""
    raise UnknownNameError(f"no grid {shown(grid)} in the catalogue.{hint} Known: {', '.join(grids)}; or give grid_g_per_kwh, a number")


def grid_names() -> tuple[str, ...]:
    """Every grid of the catalogue: country or region and year."""
    return tuple(_grids())


@cache
def _grids() -> dict[str, Grid]:
    tables = read_toml(GRIDS)
    sources = {name: Source(**entry) for name, entry in tables["sources"].items()}
    return {entry["name"]: Grid(**{**entry, "source": sources[entry["source"]]}) for entry in tables["grid"]}
