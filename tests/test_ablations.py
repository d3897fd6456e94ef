"""Ablations: each takes out what it says, and nothing else."""

import numpy as np
import pytest
from scoring_runs import perfect_runs

from pie_p.features import KIND_CODE
from pie_p.operators import distinct_experts
from pie_p.physics import is_collective
from pie_p.power import PowerLaw
from pie_p.scoring.ablations import ABLATIONS, KernelCap, chosen_experts, displaced_priors, every_expert, no_communication
from pie_p.scoring.facts import GROUPS, per_token
from pie_p.scoring.folds import Variant, answers_of, run_physics, unfitted
from pie_p.serving import assemble
from pie_p.settling import mean_power_w

BY_NAME = {variant.name: variant for variant in ABLATIONS}


def time_of(variant: Variant) -> np.ndarray:
    runs = perfect_runs()
    physics = unfitted()
    return answers_of(runs, variant.prepare(runs.cases), physics).time_s


def test_without_communication_one_board_is_as_before_and_several_are_faster() -> None:
    runs, without = perfect_runs(), time_of(BY_NAME["without communication"])
    alone = (runs.gpus == 1) & (runs.odd == "")
    assert without[alone] == pytest.approx(runs.time_per_token_s[alone])
    assert (without[runs.gpus > 1] < runs.time_per_token_s[runs.gpus > 1]).all()
    assembly = no_communication(assemble(runs.cases))
    assert assembly.calls[is_collective(assembly.columns)].sum() == 0


def test_occupancy_is_undone_to_all_experts_and_to_those_of_one_token() -> None:
    runs = perfect_runs()
    assembly = assemble(runs.cases)
    experts = assembly.columns["kind_code"] == KIND_CODE["experts"]
    touched, every, chosen = (
        each.columns["weight_bytes"][experts] for each in (assembly, every_expert(assembly), chosen_experts(assembly))
    )
    share = np.array([distinct_experts(128, 8, tokens) / 128 for tokens in assembly.columns["tokens"][experts]])  # Qwen3-30B-A3B: 8 of 128
    assert every == pytest.approx(touched / share)
    assert chosen == pytest.approx(every * 8 / 128)
    assert np.array_equal(every_expert(assembly).columns["weight_bytes"][~experts], assembly.columns["weight_bytes"][~experts])


def test_without_prefill_no_step_waits_for_a_prompt() -> None:
    runs = perfect_runs()
    variant = BY_NAME["without prefill"]
    assembly = variant.prepare(runs.cases)
    prompts = per_token(assembly, run_physics(assembly, unfitted()).time_s)[:, GROUPS.index("attention over prompts")]
    before = per_token(assemble(runs.cases), run_physics(assemble(runs.cases), unfitted()).time_s)[
        :, GROUPS.index("attention over prompts")
    ]
    assert not assembly.eager.any()
    assert (prompts < before).all()
    assert (time_of(variant) < runs.time_per_token_s).all()


@pytest.mark.parametrize("name", ["without KV cache reads", "outputs of equal length"])
def test_less_to_read_never_takes_longer(name: str) -> None:
    assert (time_of(BY_NAME[name]) <= perfect_runs().time_per_token_s * (1 + 1e-9)).all()


def test_a_cap_on_each_kernel_never_lets_a_board_draw_more() -> None:
    runs = perfect_runs()
    assembly = assemble(runs.cases)
    physics = unfitted()
    base = run_physics(assembly, physics)
    capped = run_physics(assembly, type(physics)(roofline=physics.roofline, costs=physics.costs, power=KernelCap()))
    assert (mean_power_w(capped) <= mean_power_w(base) * (1 + 1e-9)).all()


def test_displaced_priors_are_seeded_and_different() -> None:
    assert displaced_priors(3) == displaced_priors(3)
    assert displaced_priors(3).power != PowerLaw()


def test_names_are_distinct() -> None:
    assert len(BY_NAME) == len(ABLATIONS)
