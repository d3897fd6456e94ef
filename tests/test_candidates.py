"""Choosing among candidates, against brute force on anything: ties, single points, limits that nothing keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p import Candidate, sweep
from pie_p.candidates import FIGURES, Limit, best_of, limits_of, pareto_front
from pie_p.errors import InputError

[ONE] = sweep("llama-3.1-8b", gpus="h100-sxm-80gb", tp=1, pp=1, batch=1, prompt_tokens=10, output_tokens=10)
few = st.integers(1, 4)  # many ties
points = st.lists(st.tuples(few, few, few), min_size=1, max_size=12)


def candidates(values: list[tuple[int, int, int]]) -> list[Candidate]:
    return [replace(ONE, latency_s=float(x), energy_j=float(y), gpus=z, tokens_per_s=float(z)) for x, y, z in values]


@given(values=points)
@pytest.mark.parametrize(("x", "y"), [("latency_s", "energy_j"), ("latency_s", "tokens_per_s"), ("tokens_per_s", "energy_j")])
def test_a_front_is_what_nothing_beats(values: list[tuple[int, int, int]], x: str, y: str) -> None:
    found = candidates(values)

    def costs(each: Candidate) -> list[float]:
        return [(-1 if FIGURES[name].more_is_better else 1) * getattr(each, name) for name in (x, y)]

    def beaten(each: Candidate) -> bool:
        mine = costs(each)
        return any(all(a <= b for a, b in zip(costs(other), mine, strict=True)) and costs(other) != mine for other in found)

    front = pareto_front(found, x, y)
    assert {id(each) for each in front} == {id(each) for each in found if not beaten(each)}
    assert [costs(each)[0] for each in front] == sorted(costs(each)[0] for each in front)


@given(values=points, latency=few, gpus=few, margin=st.sampled_from([0.0, 0.3]))
def test_the_best_keeps_every_limit_or_the_nearest_miss_is_named(
    values: list[tuple[int, int, int]], latency: int, gpus: int, margin: float
) -> None:
    found = candidates(values)
    limits = limits_of({"max_latency_s": latency, "max_gpus": gpus, "min_tokens_per_s": None})
    kept = [each for each in found if each.latency_s * (1 + margin) <= latency and each.gpus <= gpus]
    if not kept:
        with pytest.raises(InputError, match=r"^none of \d+ feasible plans keeps latency_s <= \d s and gpus <= \d.*; the nearest, "):
            best_of(found, "energy_j", limits, margin=margin)
        return
    chosen = best_of(found, "energy_j", limits, margin=margin)
    least = min(each.energy_j for each in kept)
    assert any(chosen is each for each in kept)
    assert chosen.energy_j == least
    assert chosen.gpus == min(each.gpus for each in kept if each.energy_j == least)


@pytest.mark.parametrize(
    ("limit", "changed", "share"),
    [
        (Limit("latency_s", 2.0), {"latency_s": 3.0}, 0.5),
        (Limit("tokens_per_s", 100.0), {"tokens_per_s": 50.0}, 1.0),
        (Limit("gpus", 4), {"gpus": 2}, -0.5),
        (Limit("tpot_s", 0.1), {"tpot_s": None}, float("inf")),
    ],
)
def test_a_miss_is_a_share_of_the_bound(limit: Limit, changed: dict[str, Any], share: float) -> None:
    assert limit.broken_by(replace(ONE, **changed)) == pytest.approx(share)


def test_every_figure_is_a_field_of_a_candidate_and_has_words() -> None:
    assert set(FIGURES) <= set(Candidate.__dataclass_fields__)
    assert all(figure.words for figure in FIGURES.values())
