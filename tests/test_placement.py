"""Placement: the integer program, held against trying every placement, and against every rule that needs no solver."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_p import placement_solver
from pie_p.errors import InputError
from pie_p.placement import baselines, place, place_online
from pie_p.placement_problem import make_problem
from pie_p.systems import System, predict_system
from pie_p.traces import RequestTrace, load_trace, synthetic_trace
from pie_p.workload_fits import WorkloadFit

DATA = Path(os.environ.get("PIE_P_SHARED", Path(__file__).parents[2] / "shared")) / "data"
ZETAS = (0.0, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0)


def fit(*coefficients: float) -> WorkloadFit:
    return WorkloadFit(form="bilinear", method="relative", coefficients=coefficients)


def hosted(name: str, llm: str, *, joules: float, seconds: float, accuracy: float | None, slots: int = 1, start_j: float = 0.5) -> System:
    """A system of so many joules and seconds per output token."""
    return System(
        name=name,
        llm=llm,
        energy_j=fit(start_j, joules / 10, joules, 0.0),
        time_s=fit(0.1, 0.0, seconds, 0.0),
        accuracy=accuracy,
        slots=slots,
    )


SMALL = hosted("small", "8b", joules=0.2, seconds=0.01, accuracy=0.6)
LARGE = hosted("large", "70b", joules=1.5, seconds=0.03, accuracy=0.8)
SLOW = hosted("slow", "8b", joules=0.1, seconds=0.08, accuracy=0.6, start_j=2.0)
SYSTEMS = [SMALL, LARGE, SLOW]


def trace_of(tokens: list[tuple[int, int]], *, gap_s: float = 1.0) -> RequestTrace:
    prompt, output = np.array(tokens).T
    return RequestTrace(arrival_s=gap_s * np.arange(len(tokens)), prompt_tokens=prompt, output_tokens=output)


def cheapest(trace: RequestTrace, systems: list[System], wishes: Mapping[str, Any]) -> float | None:
    """Least objective over every placement there is, worked out request by request; None where none keeps the limits."""
    joules, seconds = (
        np.array(
            [[float(getattr(each, what)(p, o)) for each in systems] for p, o in zip(trace.prompt_tokens, trace.output_tokens, strict=True)]
        )
        for what in ("energy_j", "time_s")
    )
    weight = (trace.prompt_tokens + trace.output_tokens) if wishes.get("weigh_tokens") else np.ones(len(trace))
    accuracy = np.array([[each.accuracy or 0.0 for each in systems]]) * weight[:, None]
    zeta, llms = wishes["zeta"], [each.llm for each in systems]
    cost = zeta * joules / joules.max() - (1 - zeta) * accuracy / accuracy.max()
    least = None
    for way in itertools.product(range(len(systems)), repeat=len(trace)):
        rows = np.arange(len(trace))
        own = [llms[number] for number in way]
        if wishes.get("coverage", True) and len(set(own)) < len(set(llms)):
            continue
        if any(own.count(llm) < share * len(trace) - 1e-9 for llm, share in wishes.get("least_share", {}).items()):
            continue
        if any(own.count(llm) > share * len(trace) + 1e-9 for llm, share in wishes.get("most_share", {}).items()):
            continue
        if (seconds[rows, way] > wishes.get("max_latency_s", np.inf)).any():
            continue
        used = [seconds[rows, way][np.array(way) == number].sum() for number in range(len(systems))]
        if any(one > wishes.get("within_s", np.inf) * each.slots for one, each in zip(used, systems, strict=True)):
            continue
        value = float(cost[rows, way].sum())
        least = value if least is None else min(least, value)
    return least


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.lists(st.tuples(st.sampled_from([5, 50, 400]), st.sampled_from([3, 30, 90])), min_size=1, max_size=6),
    zeta=st.sampled_from(ZETAS),
    coverage=st.booleans(),
    weigh_tokens=st.booleans(),
    least=st.sampled_from([None, 0.2, 0.5]),
    most=st.sampled_from([None, 0.34, 0.7]),
    max_latency_s=st.sampled_from([None, 1.2, 3.0]),
    within_s=st.sampled_from([None, 1.5, 4.0, 20.0]),
)
def test_the_optimum_is_that_of_trying_every_placement(
    tokens: list[tuple[int, int]], zeta: float, coverage: bool, weigh_tokens: bool, least: float | None, most: float | None,
    max_latency_s: float | None, within_s: float | None,
) -> None:  # fmt: skip
    wishes: dict[str, Any] = {"zeta": zeta, "coverage": coverage, "weigh_tokens": weigh_tokens}
    wishes |= {} if least is None else {"least_share": {"70b": least}}
    wishes |= {} if most is None else {"most_share": {"8b": most}}
    wishes |= {} if max_latency_s is None else {"max_latency_s": max_latency_s}
    wishes |= {} if within_s is None else {"within_s": within_s}
    trace = trace_of(tokens)
    expected = cheapest(trace, SYSTEMS, wishes)
    if expected is None:
        with pytest.raises(InputError) as error:
            place(trace, SYSTEMS, **wishes)
        assert any(name in str(error.value) for name in ("coverage", "least_share", "most_share", "max_latency_s", "within_s"))
        return
    best = place(trace, SYSTEMS, **wishes)
    assert best.objective == pytest.approx(expected, abs=1e-9)
    assert best.feasible
    assert best.problem.broken(best.problem.counted(best.system)) == ()
    assert best.gap <= 1e-6


def test_a_placement_in_steps_is_that_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """The relaxation by prices from a sample, which only large problems take, against the whole program."""
    trace = synthetic_trace(requests=400, rate_per_s=5, prompt_tokens=list(range(1, 900, 7)), output_tokens=list(range(1, 300, 3)), seed=4)
    slots = [
        hosted(each.name, each.llm, joules=2.0 - number, seconds=0.02 + 0.01 * number, accuracy=0.6 + 0.1 * number, slots=2)
        for number, each in enumerate(SYSTEMS)
    ]
    for wishes in ({}, {"most_share": {"8b": 0.4}}, {"least_share": {"70b": 0.7}}, {"within_s": 700.0}):
        for zeta in (0.0, 0.5, 1.0):
            monkeypatch.setattr(placement_solver, "SAMPLE", 100_000)
            whole = place(trace, slots, zeta=zeta, **wishes)  # type: ignore[arg-type]
            monkeypatch.setattr(placement_solver, "SAMPLE", 40)
            steps = place(trace, slots, zeta=zeta, **wishes)  # type: ignore[arg-type]
            assert steps.objective == pytest.approx(whole.objective, rel=1e-6)
            assert steps.bound == pytest.approx(whole.bound, rel=1e-6)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no public data at {DATA}; set PIE_P_SHARED")
def test_on_the_azure_trace_the_optimum_is_proven_and_no_feasible_rule_is_better() -> None:
    trace = load_trace(DATA / "azure_llm_trace" / "AzureLLMInferenceTrace_conv.csv.gz").only(slice(0, 200))
    systems = [
        predict_system("llama-3.1-8b", gpu="h100-sxm-80gb", batch=32, accuracy=0.66),
        predict_system("qwen3-32b", gpu="h100-sxm-80gb", tp=2, batch=32, accuracy=0.80),
        predict_system("llama-3.1-70b", gpu="h100-sxm-80gb", tp=4, batch=32, accuracy=0.79),
    ]
    energies, accuracies = [], []
    for zeta in np.linspace(0.0, 1.0, 21):
        best = place(trace, systems, zeta=float(zeta))
        assert best.gap == 0.0
        assert set(best.counts()) == {each.name for each in systems}
        assert min(best.counts().values()) >= 1
        rules = [*baselines(best.problem, bound=best.bound), place_online(best.problem, bound=best.bound)]
        assert sum(each.feasible for each in rules) >= 2  # round robin and random
        for each in rules:
            assert not each.feasible or best.objective <= each.objective + 1e-9 * abs(each.objective)
        assert best.problem.lower_bound <= best.objective + 1e-9
        energies.append(best.energy_j)
        accuracies.append(best.mean_accuracy)
    assert all(later <= before + 1e-9 for before, later in itertools.pairwise(energies))  # more weight on energy, less energy
    assert all(later <= before + 1e-9 for before, later in itertools.pairwise(accuracies))


def test_equal_requests_are_counted_and_spelled_out_again() -> None:
    trace = trace_of([(5, 5)] * 30 + [(400, 90)] * 20)
    best = place(trace, SYSTEMS, zeta=1.0, least_share={"70b": 0.3})
    assert len(best.problem.counts) == 2
    assert best.problem.counted(best.system).sum(axis=1).tolist() == sorted(best.problem.counts.tolist(), key=lambda count: -count)
    assert sum(best.counts().values()) == len(best) == 50
    assert best.counts()["large"] == 15
    assert best.energy_j == pytest.approx(sum(row["energy_j"] for row in best.rows()))


def test_the_greedy_rule_sends_a_burst_past_a_full_queue() -> None:
    burst = trace_of([(10, 50)] * 6, gap_s=0.0)
    alone = make_problem(burst, [SMALL, SLOW], zeta=1.0, coverage=False)
    assert place_online(alone, penalty=0.0).counts() == {"small": 0, "slow": 6}  # 2 + 5.5 J against 0.5 + 11
    waited = place_online(alone, penalty=0.0).wait_s
    assert waited is not None
    assert waited.tolist() == pytest.approx([4.1 * place for place in range(6)])  # one slot: 0.1 + 50 * 0.08 s each
    pushed = place_online(alone, penalty=5.0)
    assert pushed.counts()["small"] > 0
    assert pushed.wait_s is not None
    assert pushed.wait_s.mean() < waited.mean()


def test_without_a_queue_the_greedy_rule_reaches_the_lower_bound() -> None:
    problem = make_problem(trace_of([(5, 3), (50, 30), (400, 90)]), SYSTEMS, zeta=0.7, coverage=False)
    greedy = place_online(problem, penalty=0.0)
    assert greedy.objective == pytest.approx(problem.lower_bound)
    assert greedy.gap == 0.0


def test_rules_say_which_limits_they_break() -> None:
    problem = make_problem(trace_of([(5, 3), (50, 30), (400, 90)]), SYSTEMS, zeta=0.7, max_latency_s=3.0)
    rules = {each.rule: each for each in baselines(problem)}
    assert rules["all on small"].broken == ("coverage: 70b must get at least 1 request, and has 0",)
    assert rules["all on slow"].broken[0] == "max_latency_s: 1 requests take longer than 3 s"
    assert not rules["round robin"].feasible  # the third request lands on the slow one


@pytest.mark.parametrize(
    ("wishes", "text"),
    [
        (
            {"max_latency_s": 0.5},
            r"^max_latency_s: 1 requests take longer than 0.5 s on every system; the first has 400 prompt and 90 output",
        ),
        ({"within_s": 0.6}, r"within_s: give more time \(within_s\), more slots, or another system$"),
        ({"least_share": {"70b": 0.7, "8b": 0.6}}, r"^least_share: the shares add up to 1.3; give at most 1 in all$"),
        ({"most_share": {"70b": 0.3, "8b": 0.6}}, r"^most_share: the shares of all LLMs add up to 0.9; give at least 1 in all$"),
        ({"most_share": {"70b": 0.1}}, r"most_share: raise most_share$"),
        ({"most_share": {"70B": 0.1}}, r"^most_share names '70B', which no system hosts. Did you mean: 70b"),
        ({"zeta": 1.5}, r"^zeta = 1.5 is not allowed; give a finite number of at least 0 and at most 1$"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_the_limit(wishes: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text) as error:
        place(trace_of([(5, 3), (50, 30), (400, 90)]), SYSTEMS, **wishes)
    assert "\n" not in str(error.value)


def test_fewer_requests_than_llms_cannot_cover_them() -> None:
    with pytest.raises(InputError, match=r"^coverage: 1 requests cannot give each of 2 LLMs at least one"):
        place(trace_of([(5, 3)]), SYSTEMS)


def test_an_accuracy_is_never_guessed() -> None:
    unknown = hosted("unknown", "new", joules=0.3, seconds=0.01, accuracy=None)
    with pytest.raises(InputError, match=r"^accuracy of 'unknown' is missing, and zeta = 0.5 weighs it"):
        place(trace_of([(5, 3), (5, 4)]), [SMALL, unknown])
    best = place(trace_of([(5, 3), (5, 4)]), [SMALL, unknown], zeta=1.0)
    assert best.mean_accuracy is None


def test_placements_are_saved_whole(tmp_path: Path) -> None:
    best = place(trace_of([(5, 3), (50, 30), (400, 90)]), SYSTEMS)
    best.save(tmp_path / "placed.csv")
    header, *rows = (tmp_path / "placed.csv").read_text(encoding="utf-8").splitlines()
    assert header == "request,arrival_s,prompt_tokens,output_tokens,system,llm,energy_j,time_s,wait_s"
    assert len(rows) == 3
    best.save(tmp_path / "placed.json")
    plain = json.loads((tmp_path / "placed.json").read_text(encoding="utf-8"))
    assert plain["energy_j"] == pytest.approx(sum(row["energy_j"] for row in plain["rows"]))
    with pytest.raises(InputError, match=r"its suffix must be .csv or .json$"):
        best.save(tmp_path / "placed.txt")
