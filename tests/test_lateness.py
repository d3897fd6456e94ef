"""Waits as distributions: held against closed forms, lots drawn, and a simulated law whose quantiles are known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_p import Predictor
from pie_p.engine import ENGINES
from pie_p.errors import PiePError
from pie_p.lateness import LEVELS, fitted_skew, wait_quantile, wait_spread, waits_of
from pie_p.operators import Operator, linear
from pie_p.profile_constants import wait_costs
from pie_p.profiling.rows import wait_table
from pie_p.profiling.simulated_host import SimulatedGpu
from pie_p.profiling.waits import Distribution
from pie_p.serving import ServingCosts, expected_lag
from pie_p.tables import Table

WORKS = tuple(linear("work", tokens=64, in_features=width, out_features=width) for width in (1024, 4096, 16384))


def lots(skew: float, group_size: int, *, seed: int = 1, meetings: int = 200_000) -> np.ndarray:
    """Waits of ranks whose lateness has this skew, drawn."""
    z = np.random.default_rng(seed).normal(size=(meetings, group_size))
    late = np.expm1(skew * z) / skew if skew else z
    return np.asarray(late.max(axis=1, keepdims=True) - late)


@pytest.mark.parametrize(("level", "z"), [(0.6, 0.2533471), (0.9, 1.2815516), (0.99, 2.3263479)])
def test_two_normal_ranks_wait_half_a_normal_difference(level: float, z: float) -> None:
    """W = max(0, N(0, 2)): its quantile is sqrt(2) z, its mean 1 / sqrt(pi)."""
    assert wait_quantile(level, group_size=2) == pytest.approx(math.sqrt(2 * math.pi) * z, rel=1e-4)


@pytest.mark.parametrize("skew", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("group_size", [2, 3, 8])
def test_quantiles_and_spread_are_those_of_lots_drawn(skew: float, group_size: int) -> None:
    waits = lots(skew, group_size)
    for level in LEVELS:
        drawn = np.quantile(waits, level) / waits.mean()
        assert wait_quantile(level, group_size=group_size, skew=skew) == pytest.approx(drawn, rel=0.02, abs=0.01)
    assert wait_spread(group_size=group_size, skew=skew) == pytest.approx(waits.std() / waits.mean(), rel=0.03)


@pytest.mark.parametrize("group_size", [2, 4, 7])
def test_the_last_rank_never_waits(group_size: int) -> None:
    """One meeting in g, so quantiles up to 1/g are nothing and those above are something."""
    wait = waits_of(1.0, group_size=group_size)
    assert wait.quantile_s(1.0 / group_size) == 0.0
    assert wait.quantile_s(1.0 / group_size + 0.02) > 0.0


@settings(max_examples=25, deadline=None)
@given(size=st.integers(2, 512), skew=st.floats(0.0, 2.0), low=st.floats(0.01, 0.98))
def test_quantiles_rise_with_the_level(size: int, skew: float, low: float) -> None:
    assert wait_quantile(low, group_size=size, skew=skew) <= wait_quantile(low + 0.01, group_size=size, skew=skew)


def test_uneven_lateness_has_the_longer_tail() -> None:
    tails = [wait_quantile(0.99, group_size=4, skew=skew) for skew in (0.0, 0.5, 1.0, 2.0)]
    assert tails == sorted(tails)
    assert tails[-1] > 2 * tails[0]


@pytest.mark.parametrize("skew", [0.0, 0.4, 1.2])
def test_a_known_skew_comes_back_from_its_quantiles(skew: float) -> None:
    figures = []
    for group_size in (2, 4):
        waits = lots(skew, group_size, seed=2)
        figures += [(level, group_size, float(np.quantile(waits, level) / waits.mean())) for level in LEVELS]
    assert fitted_skew(figures, [1.0] * len(figures)) == pytest.approx(skew, abs=0.05)


def profiled(gpu: SimulatedGpu, group_sizes: tuple[int, ...], *, meetings: int) -> Table:
    """The waits of a simulated host as its profile holds them."""
    rows = [
        wait_table(
            cause="skew",
            wait=Distribution.of(gpu.waits_s(work, size, meetings=meetings, seed=seed)),
            group_size=size,
            gpu="h100-sxm-80gb",
            origin="simulated",
            source="test",
            preceding="linear",
            preceding_s=mean_work_s(gpu, work),
        )
        for size in group_sizes
        for seed, work in enumerate(WORKS)
    ]
    return Table.concat(rows)


def mean_work_s(gpu: SimulatedGpu, work: Operator) -> float:
    """Mean of log-normal work [s]."""
    return gpu.time_s(work) * math.exp(gpu.jitter**2 / 2)


@pytest.mark.parametrize(("jitter", "close"), [(0.03, 0.05), (0.2, 0.08), (0.5, 0.15)])
@pytest.mark.parametrize("group_size", [2, 4, 8])
def test_quantiles_of_a_known_law_come_back_for_groups_never_profiled_too(jitter: float, close: float, group_size: int) -> None:
    """Log-normal work of 3, 20 and 50 % spread, profiled for 2 and 4 ranks; the truth is drawn anew, and 8 ranks were never seen.

    The shape comes back far closer than the mean, which grows with the group as it does for normal lateness.
    """
    gpu, work = SimulatedGpu(jitter=jitter), WORKS[1]
    costs = wait_costs(profiled(gpu, (2, 4), meetings=2048), ServingCosts())
    predictor = Predictor(serving={engine.name: costs for engine in ENGINES})
    wait = predictor.meeting_wait(work_s=mean_work_s(gpu, work), group_size=group_size)
    truth = gpu.waits_s(work, group_size, meetings=100_000, seed=99)
    for found_s, true_s in ((wait.p90_s, np.quantile(truth, 0.9)), (wait.p99_s, np.quantile(truth, 0.99)), (wait.mean_s, truth.mean())):
        assert found_s == pytest.approx(true_s, rel=close)
    assert wait.p50_s == pytest.approx(np.median(truth), rel=close, abs=0.03 * truth.mean())
    assert wait.p99_s / wait.mean_s == pytest.approx(np.quantile(truth, 0.99) / truth.mean(), rel=0.03)
    assert wait.spread_s == pytest.approx(truth.std(), rel=close)


def test_a_heavy_tail_is_missed_without_the_fitted_shape() -> None:
    """Otherwise fitting it would prove nothing: normal lateness puts the p99 of very uneven work a quarter and more too low."""
    gpu = SimulatedGpu(jitter=1.0)
    truth = gpu.waits_s(WORKS[1], 4, meetings=100_000)
    fitted = wait_costs(profiled(gpu, (2, 4), meetings=4096), ServingCosts()).jitter_skew
    tail = np.quantile(truth, 0.99) / truth.mean()
    assert waits_of(1.0, group_size=4).p99_s < 0.75 * tail
    assert waits_of(1.0, group_size=4, skew=fitted).p99_s == pytest.approx(tail, rel=0.1)


def test_a_quantile_that_no_wait_lies_beyond_teaches_nothing() -> None:
    """48 waits have no p99: whatever stands there, the shape is that of the p90."""
    gpu = SimulatedGpu(jitter=0.5)
    few = profiled(gpu, (2, 4), meetings=12)
    wild = few.with_columns(p99_s=few["p99_s"] * 50)
    assert wait_costs(wild, ServingCosts()).jitter_skew == wait_costs(few, ServingCosts()).jitter_skew


def test_the_mean_is_the_one_that_energies_use() -> None:
    costs = ServingCosts(jitter=0.04, jitter_skew=0.7)
    wait = Predictor(serving={"vllm": costs}).meeting_wait(work_s=2e-3, group_size=4)
    assert wait.mean_s == pytest.approx(0.04 * 2e-3 * float(expected_lag(np.array([4.0]))[0]))
    assert wait.p50_s < wait.mean_s < wait.p90_s < wait.p99_s


def test_the_shape_is_saved_and_loaded_and_moves_no_joule(tmp_path: Path) -> None:
    even, uneven = (Predictor(serving={"vllm": ServingCosts(jitter_skew=skew)}) for skew in (0.0, 0.7))
    uneven.save(tmp_path / "uneven")
    again = Predictor.load(tmp_path / "uneven")
    asked = {"work_s": 1e-3, "group_size": 8}
    assert again.meeting_wait(**asked) == uneven.meeting_wait(**asked) != even.meeting_wait(**asked)  # type: ignore[arg-type]
    from pie_p import predict_energy

    answers = [
        predict_energy("llama-3.1-8b", gpu="h100-sxm-80gb", tp=4, prompt_tokens=100, output_tokens=10, predictor=each)
        for each in (even, uneven)
    ]
    assert answers[0].energy_j == answers[1].energy_j


def test_one_rank_waits_for_nobody() -> None:
    wait = Predictor().meeting_wait(work_s=1e-3, group_size=1)
    assert (wait.mean_s, wait.p50_s, wait.p99_s, wait.spread_s, wait.quantile_s(0.999)) == (0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("given_", "text"),
    [
        ({"work_s": -1.0, "group_size": 2}, "work_s = -1.0 is not allowed"),
        ({"work_s": 1e-3, "group_size": 0}, "group_size = 0 is not allowed"),
        ({"work_s": 1e-3, "group_size": 2.5}, "group_size = 2.5 is not a whole number"),
        ({"work_s": 1e-3, "group_size": 2, "engine": "vlm"}, "no engine 'vlm'"),
    ],
)
def test_what_cannot_be_is_one_clear_line(given_: dict[str, object], text: str) -> None:
    with pytest.raises(PiePError) as caught:
        Predictor().meeting_wait(**given_)  # type: ignore[arg-type]
    assert text in str(caught.value)
