"""What if: the same question with arguments changed, the same predictor, directions that physics and publications give."""

from __future__ import annotations

import copy
import json
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, replace
from inspect import signature
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_p import Cluster, Prediction, load_predictor, predict_energy
from pie_p.errors import InputError, MemoryFitError, PiePError, PredictorError, UnknownGpuError
from pie_p.what_if import CHANGEABLE, COMPARED, INPUTS, WhatIf, changes_words


def predicted(llm: str = "llama-3.1-8b", **more: Any) -> Prediction:
    return predict_energy(llm, **{"gpu": "h100-sxm-80gb", "prompt_tokens": 200, "output_tokens": 300, **more})


CHANGES = st.sampled_from(
    [
        {"power_limit_w": 500},
        {"gpu": "b200-sxm-180gb"},
        {"cluster": Cluster(gpu="a100-sxm-80gb", hosts=2)},
        {"dtype": "fp8"},
        {"kv_dtype": "fp8"},
        {"batch": 32},
        {"prompt_tokens": 3000, "output_tokens": 10},
        {"output_tokens": [10, 500]},
        {"tp": 2, "dp": 2},
        {"tp": 16},
        {"engine": "sglang"},
        {"mode": "static"},
        {"cached_prompt_tokens": 100},
        {"scope": "host", "exclusive_host": True},
        {"scope": "facility", "pue": 1.3},
        {"llm": "qwen3-30b-a3b", "ep": 1},
    ]
)


# The same question


@settings(max_examples=40)
@given(changes=CHANGES, batch=st.sampled_from([1, 8, 64.5]), scope=st.sampled_from([{}, {"scope": "host"}]))
def test_it_is_the_answer_to_the_question_asked_anew_with_the_change(changes: dict[str, Any], batch: float, scope: dict[str, Any]) -> None:
    asked: dict[str, Any] = {
        "llm": "llama-3.1-8b",
        "gpu": "h100-sxm-80gb",
        "prompt_tokens": 200,
        "output_tokens": 300,
        "batch": batch,
        **scope,
    }
    anew = {**asked, **changes, **({"gpu": None} if "cluster" in changes else {})}
    what = predict_energy(**asked).what_if(**changes)
    assert what.after == predict_energy(**anew)
    assert what.before == predict_energy(**asked)


def test_every_argument_but_the_predictor_can_be_changed() -> None:
    assert set(CHANGEABLE) == set(signature(predict_energy).parameters) - {"predictor"}


def test_what_followed_a_default_follows_the_change_and_what_was_chosen_stays() -> None:
    one = predicted(batch=1)
    assert one.what_if(batch=32).changes == {"batch": (1.0, 32.0), "mode": ("static", "steady")}
    assert "mode" not in predicted(batch=8, mode="static").what_if(batch=32).changes
    assert one.what_if(gpu="l40s-48gb").after.deployment.cluster.name == predicted(gpu="l40s-48gb").cluster
    assert one.what_if(tp=16, llm="llama-1-65b").after.deployment.cluster.hosts == 2
    assert predicted(dtype="fp8").what_if(llm="qwen3-8b").after.deployment.dtype == "fp8"
    assert one.what_if(llm="gpt-oss-20b").after.deployment.dtype == predicted("gpt-oss-20b").deployment.dtype


def test_an_own_cluster_stays_when_something_else_changes() -> None:
    own = Cluster(name="ours", gpu="h100-sxm-80gb", hosts=3, host_idle_w=1234)
    p = predict_energy("llama-3.1-8b", cluster=own, prompt_tokens=200, output_tokens=300)
    assert p.what_if(batch=8).after.deployment.cluster == own
    assert p.what_if(gpu="b200-sxm-180gb").after.deployment.cluster.gpu.name == "b200-sxm-180gb"


def test_a_narrower_scope_leaves_behind_what_it_does_not_count() -> None:
    site = predicted(scope="facility", pue=1.4, exclusive_host=True)
    assert site.what_if(scope="gpu").after == predicted()
    assert site.what_if(scope="host").after == predicted(scope="host", exclusive_host=True)
    with pytest.raises(InputError, match=r"^pue = 1\.2 counts only in scope='facility'"):
        site.what_if(scope="gpu", pue=1.2)


def test_changes_can_be_chained() -> None:
    p = predicted(batch=16)
    assert p.what_if(dtype="fp8").after.what_if(power_limit_w=500).after == p.what_if(dtype="fp8", power_limit_w=500).after


def test_the_same_predictor_answers() -> None:
    p = predicted(predictor="physics")
    assert p.what_if(batch=4).after.predictor == p.predictor == {"name": "physics", "sha256": load_predictor("physics").sha256}
    renamed = replace(load_predictor("default"), name="mine")
    assert predicted(predictor=renamed).what_if(batch=4).after.predictor["name"] == "mine"


# Directions


def test_a_power_cap_from_250_to_175_w_saves_a_quarter_of_the_energy_for_a_few_percent_of_time() -> None:
    """Samsi et al., From Words to Watts (arXiv 2310.03003), section V: LLaMA on A100 boards, 23 % less energy for 6.7 % more time."""
    p = predicted("llama-1-65b", gpu="a100-sxm-80gb", tp=4, batch=64, prompt_tokens=128, output_tokens=256, power_limit_w=250)
    capped = p.what_if(power_limit_w=175)
    assert 1 - capped.ratio("energy_j") == pytest.approx(0.23, abs=0.06)
    assert capped.ratio("latency_s") - 1 == pytest.approx(0.067, abs=0.04)


def test_a_power_cap_hardly_slows_memory_bound_decode_and_slows_compute_bound_prefill() -> None:
    decode = predicted(batch=32, prompt_tokens=20, output_tokens=500).what_if(power_limit_w=350)
    prefill = predicted(prompt_tokens=8000, output_tokens=0).what_if(power_limit_w=350)
    assert 1.0 <= decode.ratio("latency_s") < 1.05
    assert prefill.ratio("latency_s") > 1.2
    assert decode.ratio("energy_j") < 0.8


@given(cap=st.floats(200, 699))
def test_the_clock_falls_until_power_meets_the_cap(cap: float) -> None:
    what = predicted(prompt_tokens=8000, output_tokens=0).what_if(power_limit_w=cap)
    assert what.after.avg_power_w <= cap
    assert what.ratio("latency_s") >= 1.0 - 1e-9
    assert what.ratio("avg_power_w") <= 1.0 + 1e-9


def test_a_cap_that_does_not_bind_changes_nothing() -> None:
    what = predicted(batch=1).what_if(power_limit_w=699)
    assert what.ratio("energy_j") == pytest.approx(1.0, rel=1e-9)
    assert what.changes == {"power_limit_w": (700.0, 699.0)}


@pytest.mark.parametrize("gpu", ["h100-sxm-80gb", "b200-sxm-180gb"])
@pytest.mark.parametrize("batch", [1, 64])
def test_eight_bit_weights_cut_energy(gpu: str, batch: int) -> None:
    """ML.ENERGY v3 (arXiv 2601.22076): FP8 against BF16 on the same boards."""
    assert predicted(gpu=gpu, batch=batch).what_if(dtype="fp8").ratio("energy_j") < 0.95


@given(batch=st.integers(1, 64))
def test_twice_the_batch_cuts_joules_per_token(batch: int) -> None:
    assert predicted(batch=batch).what_if(batch=2 * batch).ratio("energy_per_output_token_j") < 1.0


@given(prompt=st.integers(10, 20_000))
def test_a_longer_prompt_costs_more(prompt: int) -> None:
    assert predicted(batch=8, prompt_tokens=prompt).what_if(prompt_tokens=1.5 * prompt).ratio("energy_j") > 1.0


# Mistakes


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({}, InputError, r"^nothing was changed; give one of llm, gpu"),
        ({"power_limit": 500}, InputError, r"^no argument 'power_limit' to change\. Did you mean: power_limit_w\? Known: llm, gpu"),
        ({"predictor": "physics"}, InputError, r"^no argument 'predictor' to change"),
        ({"gpu": "h10"}, UnknownGpuError, r"Did you mean: h100"),
        ({"llm": "llama-3.1-405b"}, MemoryFitError, r"would fit"),
        ({"batch": -1}, InputError, r"^batch = -1 is not allowed"),
        ({"power_limit_w": 5000}, InputError, r"^power_limit_w = 5000 W is outside what h100-sxm-80gb can hold"),
        ({"gpu": "h100-sxm-80gb", "cluster": "mine.toml"}, InputError, r"^both gpu and cluster given"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(changes: dict[str, Any], kind: type[PiePError], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        predicted().what_if(**changes)
    assert "\n" not in str(caught.value)


def test_a_prediction_that_does_not_know_its_question_says_so() -> None:
    with pytest.raises(InputError, match=r"^this prediction does not know what was asked"):
        replace(predicted(), asked=None).what_if(batch=2)


def test_an_unknown_figure_is_refused_with_those_known() -> None:
    with pytest.raises(InputError, match=r"^no figure 'energy' to compare\. Did you mean: energy_j"):
        predicted().what_if(batch=2).ratio("energy")


# What it shows


def test_it_shows_before_after_and_ratio_of_every_figure() -> None:
    what = predicted(batch=8).what_if(batch=16)
    plain = what.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["changes"] == {"batch": {"before": 8.0, "after": 16.0}}
    assert plain["before"] == what.before.to_dict()
    assert plain["after"] == what.after.to_dict()
    for name in COMPARED:
        assert plain["ratio"][name] == pytest.approx(plain["after"][name] / plain["before"][name])
    text = str(what)
    assert "what if batch 8 -> 16" in text
    for _, words in COMPARED.values():
        assert words in text
    assert re.search(r"energy per request: [\d.]+ J -> [\d.]+ J \(-[\d.]+ %\)", text)


def test_figures_that_one_of_the_two_does_not_have_have_no_ratio() -> None:
    what = predicted().what_if(output_tokens=0)
    assert what.ratio("tpot_s") is None
    assert what.to_dict()["ratio"]["energy_per_output_token_j"] is None
    assert what.ratio("energy_j") is not None
    assert "–" in str(what)


def test_every_input_that_the_answer_echoes_can_differ() -> None:
    answer = predicted().to_dict()
    assert set(INPUTS) < set(answer)
    assert changes_words({}) == "nothing changes"
    assert changes_words({"pue": (None, 1.2), "exclusive_host": (False, True)}) == "pue none -> 1.2, exclusive_host false -> true"


# The value


def test_it_cannot_be_changed_and_is_equal_by_value() -> None:
    what = predicted().what_if(batch=2)
    with pytest.raises(FrozenInstanceError):
        what.after = what.before  # type: ignore[misc]
    assert what == predicted().what_if(batch=2) != predicted().what_if(batch=3)
    assert len({what, predicted().what_if(batch=2)}) == 1


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))], ids=["copy", "deepcopy", "pickle"])
def test_a_copied_prediction_can_still_be_asked(again: Any) -> None:
    p = predicted(batch=8)
    assert again(p).what_if(batch=16) == p.what_if(batch=16)
    what: WhatIf[Prediction] = p.what_if(batch=16)
    assert again(what) == what


def test_a_prediction_of_a_large_predictor_travels_light_and_finds_it_again() -> None:
    p = predicted(predictor="operators")
    carried = pickle.dumps(p)
    assert len(pickle.dumps(load_predictor("operators"))) > 1e6
    assert len(carried) < 60_000
    back = pickle.loads(carried)
    assert back.what_if(batch=2) == p.what_if(batch=2)
    assert pickle.loads(pickle.dumps(back)).what_if(batch=2) == p.what_if(batch=2)


def test_another_predictor_of_the_same_name_does_not_stand_in() -> None:
    changed = replace(load_predictor("operators"), digest="another training")
    back = pickle.loads(pickle.dumps(predicted(predictor=changed)))
    with pytest.raises(
        PredictorError, match=r"^predictor 'operators' here has checksum \w{8}, the one that answered \w{8}; ask predict_energy"
    ):
        back.what_if(batch=2)


def test_predictions_and_what_ifs_from_many_threads_are_those_of_one() -> None:
    def ask(number: int) -> WhatIf[Prediction]:
        predictor = ("default", "operators", "physics")[number % 3]
        p = predicted(batch=1 + number % 7, prompt_tokens=100 + number, predictor=predictor)
        assert sum(operator.energy_j for operator in p.operators) == pytest.approx(p.breakdown.gpu_j, rel=1e-9)
        return p.what_if(batch=20 + number)

    alone = [ask(number) for number in range(24)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(24))) == alone
