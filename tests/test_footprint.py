"""Carbon and cost: one multiplication each, by a factor that is given or named, over whatever the scope counts."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p import Prediction, predict_energy
from pie_p.checks import read_toml
from pie_p.errors import InputError, PiePError, UnknownNameError
from pie_p.footprint import GRIDS, Footprint, Grid, footprint_of, grid_names, load_grid
from pie_p.wording import quantity

# Our World in Data's table of Ember's figures for 2024, read in 2026: another copy of the same source, rounded [g/kWh].
OWID_2024 = {
    "AU": 552, "AT": 103, "BE": 118, "CA": 175, "CZ": 414, "DK": 143, "EE": 341, "FI": 72, "FR": 44, "DE": 344, "NL": 253, "NO": 31,
    "PL": 615, "SE": 36, "CH": 37, "GB": 211, "US": 384, "WORLD": 473,
}  # fmt: skip


def predicted(**more: Any) -> Prediction:
    return predict_energy("llama-3.1-8b", **{"gpu": "h100-sxm-80gb", "prompt_tokens": 200, "output_tokens": 100, **more})


def test_a_kilowatt_hour_costs_its_price_and_emits_its_intensity() -> None:
    one = footprint_of(3.6e6, scope="gpu", grid_g_per_kwh=344, price_per_kwh=0.2, currency="EUR")
    assert (one.energy_kwh, one.carbon_g, one.cost) == (1.0, 344.0, 0.2)


@given(energy_j=st.floats(1e-3, 1e9), intensity=st.floats(0, 2000), price=st.floats(0, 10))
def test_both_are_proportional_to_the_energy(energy_j: float, intensity: float, price: float) -> None:
    one, two = (footprint_of(e, scope="gpu", grid_g_per_kwh=intensity, price_per_kwh=price) for e in (energy_j, 2 * energy_j))
    assert two.carbon_g == pytest.approx(2 * (one.carbon_g or 0.0))
    assert two.cost == pytest.approx(2 * (one.cost or 0.0))
    assert one.carbon_g == pytest.approx(energy_j / 3.6e6 * intensity)


@pytest.mark.parametrize("pue", [1.0, 1.25, 1.6])
def test_pue_multiplies_energy_carbon_and_cost_alike(pue: float) -> None:
    """Not energy alone (codecarbon#1320)."""
    factors: dict[str, Any] = {"grid": "FR-2024", "price_per_kwh": 0.1}
    host, site = predicted(scope="host").footprint(**factors), predicted(scope="facility", pue=pue).footprint(**factors)
    assert site.pue == pue
    assert site.energy_kwh == pytest.approx(pue * host.energy_kwh)
    assert site.carbon_g == pytest.approx(pue * (host.carbon_g or 0.0))
    assert site.cost == pytest.approx(pue * (host.cost or 0.0))


def test_a_footprint_is_of_the_energy_in_the_answer_and_names_scope_factor_and_source() -> None:
    p = predicted()
    found = p.footprint(grid="DE-2024", price_per_kwh=0.25, currency="EUR")
    assert found.energy_j == p.energy_j
    assert found.carbon_g == pytest.approx(p.energy_j / 3.6e6 * 344)
    plain = found.to_dict()
    assert (plain["scope"], plain["grid_g_per_kwh"], plain["price_per_kwh"], plain["currency"]) == ("gpu", 344.0, 0.25, "EUR")
    for word in ("GPU boards only", "344 g/kWh", "Germany 2024, Ember", "0.25 EUR per kWh", "per million requests", "mWh per request"):
        assert word in str(found), word


def test_what_has_no_factor_has_no_figure() -> None:
    assert predicted().footprint(grid_g_per_kwh=100).cost is None
    priced = predicted().footprint(price_per_kwh=0.2)
    assert (priced.carbon_g, priced.grid) == (None, "")
    assert "carbon" not in str(priced)


def test_carbon_has_the_interval_of_the_energy() -> None:
    p = predicted()
    low_j, high_j = p.interval(0.9)
    found = p.footprint(grid_g_per_kwh=3600.0 * 0.5)  # 0.5 mg/J
    assert (found.low_j, found.high_j) == (low_j, high_j)
    assert f"{quantity(500 * low_j, 'g')} to {quantity(500 * high_j, 'g')} per million requests" in str(found)
    assert predicted(predictor="physics").footprint(grid_g_per_kwh=100).low_j is None


def test_every_grid_names_country_year_and_published_source() -> None:
    for name in grid_names():
        grid = load_grid(name)
        assert grid.name == name
        assert name.endswith(f"-{grid.year}")
        assert grid.source.kind == "published"
        assert "https://" in grid.source.cite
        assert 20 <= grid.g_per_kwh <= 900
    assert len(grid_names()) == len(read_toml(GRIDS)["grid"]) == len(set(grid_names()))
    assert Path(GRIDS).is_file()


@pytest.mark.parametrize(("country", "grams"), OWID_2024.items())
def test_the_table_is_what_a_second_copy_of_the_source_says(country: str, grams: int) -> None:
    assert load_grid(f"{country}-2024").g_per_kwh == pytest.approx(grams, abs=0.51)


def test_a_grid_is_found_in_any_case_and_may_be_your_own() -> None:
    assert load_grid(" de-2024 ") is load_grid("DE-2024")
    own = Grid(name="ours-2025", region="our site", year=2025, g_per_kwh=12.5, source=load_grid("DE-2024").source)
    assert predicted().footprint(grid=own).grid_g_per_kwh == 12.5


WRONG: list[tuple[dict[str, Any], type[PiePError], str]] = [
    ({}, InputError, r"^a footprint needs a factor: grid='DE-2024', grid_g_per_kwh=344 or price_per_kwh=0\.2; none is guessed$"),
    ({"grid": "DE-2024", "grid_g_per_kwh": 300}, InputError, r"^both grid = 'DE-2024' and grid_g_per_kwh = 300 given; give one$"),
    ({"grid": "DE"}, UnknownNameError, r"^no grid 'DE' in the catalogue\. Did you mean: DE-2024\? Known: WORLD-2024"),
    ({"grid": "XX-2024"}, UnknownNameError, r"^no grid 'XX-2024' in the catalogue\."),
    ({"grid": 344}, UnknownNameError, r"^no grid 344 in the catalogue\. .*or give grid_g_per_kwh, a number$"),
    ({"grid_g_per_kwh": -1}, InputError, r"^grid_g_per_kwh = -1 is not allowed; give a finite number of at least 0 and at most 3000$"),
    ({"price_per_kwh": "cheap"}, InputError, r"^price_per_kwh = 'cheap' is not a number"),
    ({"price_per_kwh": 1, "currency": 978}, InputError, r"^currency = 978 is not a currency"),
]


@pytest.mark.parametrize(("factors", "kind", "text"), WRONG, ids=[str(factors) for factors, _, _ in WRONG])
def test_a_mistake_is_one_line(factors: dict[str, Any], kind: type[PiePError], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        predicted().footprint(**factors)
    assert "\n" not in str(caught.value)


def test_it_is_a_value() -> None:
    one: Footprint = predicted().footprint(grid="SE-2024")
    assert one == predicted().footprint(grid="SE-2024") != predicted().footprint(grid="PL-2024")
    assert hash(one) == hash(pickle.loads(pickle.dumps(one)))
