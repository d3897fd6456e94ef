"""Where a run settles: mean power under the board's own limit, and the clock that falls under a lower cap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_p.physics import Roofline
from pie_p.power import PowerLaw
from pie_p.predictor import make_case
from pie_p.serving import WAIT_CAUSES, ServingCosts, assemble
from pie_p.settling import Run, mean_demand, settle

LAW, PHYSICS = PowerLaw(), Roofline()


def settled(cap_w: float = np.inf, **more: Any) -> Run:
    """One Llama-3.1-8B request as it runs on H100s under a cap."""
    case = make_case(**{"llm": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "prompt_tokens": 200, "output_tokens": 100, **more})
    assembly = assemble([case])
    time_s = PHYSICS.time_s(assembly.columns)
    return settle(assembly, time_s, costs=[ServingCosts()], law=LAW, roofline=PHYSICS, limits_w=np.array([cap_w]))


def mean_power_w(run: Run) -> float:
    """Over boards and life: energy of every state over time in every state."""
    assembly = run.assembly
    lives = assembly.decode_steps + assembly.prefill_steps
    row_s = assembly.calls * run.time_s * assembly.stage_ranks[assembly.row_stage] * lives[assembly.stage_step[assembly.row_stage]]
    wait_s = sum(run.clock.waits_s[cause] for cause in WAIT_CAUSES) * assembly.stage_ranks * lives[assembly.stage_step]
    return float(((row_s * run.power_w).sum() + (wait_s * run.wait_power_w).sum()) / (row_s.sum() + wait_s.sum()))


RUNS = st.fixed_dictionaries(
    {
        "batch": st.integers(2, 512),  # steady: prompts come in between decode steps, and the whole life settles together
        "prompt_tokens": st.integers(1, 10_000),
        "output_tokens": st.integers(2, 1_000),
        "tp": st.sampled_from([1, 4]),
        "pp": st.sampled_from([1, 3]),
    }
)


@settings(max_examples=40)
@given(RUNS)
def test_the_mean_power_of_a_run_is_that_of_its_mean_demand(more: dict[str, Any]) -> None:
    run = settled(**more)
    demand = LAW.demand(run.assembly.columns, run.time_s)
    asked = mean_demand(run.assembly, run.clock, run.time_s, demand, wait=LAW.wait)
    idle_w, limit_w = (run.assembly.columns[name][:1] for name in ("active_idle_w", "limit_w"))
    share = LAW.settled(asked, limit_w=limit_w, idle_w=idle_w)
    assert mean_power_w(run) == pytest.approx(float((idle_w + share * (limit_w - idle_w))[0]), rel=1e-9)


@settings(max_examples=40)
@given(RUNS, st.floats(180, 700))
def test_a_cap_is_kept_and_costs_time_only_where_it_binds(more: dict[str, Any], cap_w: float) -> None:
    free, capped = settled(**more), settled(cap_w, **more)
    assert mean_power_w(capped) <= cap_w
    if mean_power_w(free) <= LAW.ceiling * cap_w:
        assert (capped.time_s == free.time_s).all()
        assert mean_power_w(capped) == pytest.approx(mean_power_w(free), rel=1e-12)
    else:
        assert (capped.time_s >= free.time_s).all()
        assert mean_power_w(capped) == pytest.approx(LAW.ceiling * cap_w, rel=1e-9)


def test_under_a_cap_dynamic_power_falls_with_the_third_power_of_the_clock() -> None:
    """Frequency times voltage squared, voltage with frequency: half the core's dynamic power leaves 0.79 of the clock."""
    more = {"prompt_tokens": 8000, "output_tokens": 0}
    free = settled(**more)
    idle_w = float(free.assembly.columns["active_idle_w"][0])
    cap_w = (idle_w + (mean_power_w(free) - idle_w) / 2) / LAW.ceiling
    stretch = PHYSICS.stretch(
        free.assembly.columns, np.full(len(free.time_s), ((0.5 - LAW.off_core) / (1 - LAW.off_core)) ** (1 / LAW.clock_exponent))
    )
    assert settled(cap_w, **more).time_s == pytest.approx(free.time_s * stretch, rel=1e-9)


def test_decode_gives_up_power_for_hardly_any_time_and_prefill_does_not() -> None:
    """Patel et al., POLCA (arXiv 2308.12908), section 4: token generation is memory-bound and tolerates low clocks."""
    lost = []
    for more in ({"prompt_tokens": 1, "output_tokens": 500, "batch": 8, "mode": "static"}, {"prompt_tokens": 8000, "output_tokens": 0}):
        free, capped = settled(**more), settled(350, **more)
        lives = free.assembly.decode_steps + free.assembly.prefill_steps
        lost.append(float((capped.clock.step_s * lives).sum() / (free.clock.step_s * lives).sum() - 1))
    assert lost[0] < 0.03
    assert lost[1] > 0.1


def test_a_long_prefill_that_nothing_interrupts_keeps_to_the_board_limit_by_itself() -> None:
    """A static batch reads its prompts before it decodes: its prefill may not draw on the watts that decode leaves over."""
    run = settled(prompt_tokens=8000, output_tokens=1000)
    assembly = run.assembly
    of_step = assembly.stage_step[assembly.row_stage]
    for step in range(2):
        seconds = (assembly.calls * run.time_s)[of_step == step]
        rows_j = float((seconds * run.power_w[of_step == step]).sum())
        waits_s = float(sum(run.clock.waits_s[cause][step] for cause in WAIT_CAUSES))
        mean_w = (rows_j + waits_s * float(run.wait_power_w[step])) / (float(seconds.sum()) + waits_s)
        assert mean_w < 700.0


@settings(max_examples=40)
@given(RUNS)
def test_no_kernel_draws_more_than_the_board_can_hold(more: dict[str, Any]) -> None:
    run = settled(**more)
    assert (run.power_w <= LAW.ceiling * 700 * (1 + 1e-9)).all()
    assert (run.wait_power_w <= LAW.ceiling * 700 * (1 + 1e-9)).all()
