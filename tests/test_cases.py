"""Cases: arguments to a case, and a case back to arguments that give it again."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_p import Cluster, LengthDistribution, make_case, predict_energy
from pie_p.cases import ARGUMENTS, arguments_of, case_of
from pie_p.errors import InputError

ASK: dict[str, Any] = {"llm": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "prompt_tokens": 200, "output_tokens": 100}


def test_arguments_are_those_of_make_case_and_of_predict_energy() -> None:
    assert set(arguments_of(make_case(**ASK))) == set(ARGUMENTS) == set(signature(make_case).parameters)
    assert set(ARGUMENTS) < set(signature(predict_energy).parameters)


@settings(max_examples=60)
@given(
    more=st.fixed_dictionaries(
        {},
        optional={
            "llm": st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-20b"]),
            "tp": st.sampled_from([1, 2, 4]),
            "pp": st.sampled_from([1, 2]),
            "dp": st.sampled_from([1, 8]),
            "micro_batches": st.sampled_from([None, 3]),
            "batch": st.sampled_from([1, 2, 33.5]),
            "mode": st.sampled_from([None, "static", "steady"]),
            "dtype": st.sampled_from([None, "fp8", "bf16"]),
            "kv_dtype": st.sampled_from([None, "fp8"]),
            "engine": st.sampled_from(["vllm", "sglang", "vllm==0.6.0"]),
            "power_limit_w": st.sampled_from([None, 400]),
            "cached_prompt_tokens": st.sampled_from([0, 150]),
            "output_tokens": st.sampled_from([0.5, 100, [10, 500]]),
        },
    )
)
def test_a_case_s_arguments_give_the_case_again(more: dict[str, Any]) -> None:
    case = make_case(**{**ASK, **more})
    assert make_case(**arguments_of(case)) == case


@pytest.mark.parametrize("cluster", [Cluster(gpu="h100-sxm-80gb", hosts=2), Cluster(name="ours", gpu="l4-24gb", host_idle_w=100)])
def test_a_case_on_an_own_cluster_too(cluster: Cluster) -> None:
    case = make_case("llama-3.1-8b", cluster=cluster, prompt_tokens=9, output_tokens=LengthDistribution(mean=9, second_moment=99))
    again = arguments_of(case)
    assert again["gpu"] is None
    assert make_case(**again) == case


def test_the_common_host_of_a_board_stays_a_board() -> None:
    assert arguments_of(make_case(**ASK))["cluster"] is None
    assert arguments_of(make_case(**ASK, tp=8, dp=2))["gpu"].name == "h100-sxm-80gb"


@pytest.mark.parametrize(
    ("deployment", "says"),
    [
        ({"llm": "llama-3.1-8b", "gpus": "l4-24gb"}, r"^a deployment has no argument 'gpus'\. Did you mean: gpu"),
        ({"gpu": "l4-24gb"}, "^a deployment without llm"),
        ("llama-3.1-8b", "is no deployment; give a table like"),
    ],
)
def test_a_deployment_that_is_none_is_one_line(deployment: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        case_of(deployment, prompt_tokens=1, output_tokens=1)


def test_a_deployment_from_a_table_is_the_case_of_its_arguments() -> None:
    table = {name: value for name, value in ASK.items() if not name.endswith("tokens")}
    assert case_of(table, prompt_tokens=200, output_tokens=100) == make_case(**ASK)
