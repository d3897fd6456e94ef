"""predict_energy: directions that must hold, plans and traffic of any kind, bad input in one line, many at once as one by one."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pie_p import (
    Accounting,
    Cluster,
    Link,
    ParallelPlan,
    PiePError,
    Predictor,
    gpu_names,
    load_gpu,
    load_llm,
    load_predictor,
    make_case,
    predict_energy,
    predict_many,
)
from pie_p.errors import InputError, MemoryFitError, PlanError, UnknownGpuError, UnknownLLMError, UnknownNameError
from pie_p.prediction import Prediction
from pie_p.shapes import Attention, MoeFfn
from pie_p.units import DTYPES

BASE: dict[str, Any] = {"llm": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "prompt_tokens": 200, "output_tokens": 100}


def predicted(**more: Any) -> Prediction:
    arguments = {**BASE, **more}
    return predict_energy(arguments.pop("llm"), **arguments)


def energy_j(**more: Any) -> float:
    return predicted(**more).energy_j


def rises(values: list[float], *, slack: float = 1e-9) -> bool:
    return all(high >= low * (1 - slack) for low, high in pairwise(values))


# Directions

TRAFFIC = {
    "batch": st.integers(1, 256),
    "prompt_tokens": st.integers(1, 4_000),
    "output_tokens": st.integers(2, 2_000),
    "mode": st.sampled_from(["static", "steady"]),
    "tp": st.sampled_from([1, 2, 4]),
}


@given(more=st.fixed_dictionaries(TRAFFIC), extra=st.integers(1, 2_000))
def test_more_output_tokens_cost_a_request_more(more: dict[str, Any], extra: int) -> None:
    assert energy_j(**{**more, "output_tokens": more["output_tokens"] + extra}) > energy_j(**more)


@given(more=st.fixed_dictionaries(TRAFFIC), extra=st.integers(1, 4_000))
def test_more_prompt_tokens_cost_a_request_more(more: dict[str, Any], extra: int) -> None:
    assert energy_j(**{**more, "prompt_tokens": more["prompt_tokens"] + extra}) > energy_j(**more)


@given(more=st.fixed_dictionaries(TRAFFIC), extra=st.integers(100, 20_000))
def test_a_longer_cache_costs_a_request_more_with_nothing_else_computed(more: dict[str, Any], extra: int) -> None:
    """The same new prompt tokens after a longer cached prefix."""
    new = more.pop("prompt_tokens")
    short, long = (energy_j(**more, prompt_tokens=new + cached, cached_prompt_tokens=cached) for cached in (100, 100 + extra))
    assert long > short


@given(more=st.fixed_dictionaries(TRAFFIC), layers=st.integers(1, 31))
def test_more_layers_cost_a_request_more(more: dict[str, Any], layers: int) -> None:
    llm = load_llm("llama-3.1-8b")
    shorter = replace(llm, layers=llm.layers[:layers])
    assert energy_j(llm=llm, **more) > energy_j(llm=shorter, **more)


def test_more_layers_in_a_config_cost_a_request_more() -> None:
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 8192,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32_000, "max_position_embeddings": 4096,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5,
    }  # fmt: skip
    energies = [energy_j(llm={**config, "num_hidden_layers": layers}) for layers in (4, 8, 16, 32)]
    assert rises(energies)
    assert energies[3] > 3 * energies[0]


@given(more=st.fixed_dictionaries(TRAFFIC), share=st.floats(0.05, 0.9))
def test_a_board_that_idles_higher_costs_a_request_more(more: dict[str, Any], share: float) -> None:
    gpu = load_gpu("h100-sxm-80gb")
    idle_w = gpu.active_idle_w + share * (0.8 * gpu.limit_w - gpu.active_idle_w)
    hot = gpu.model_copy(update={"active_idle_w": idle_w})
    assert energy_j(gpu=hot, **more) > energy_j(gpu=gpu, **more)


@given(more=st.fixed_dictionaries(TRAFFIC), factor=st.floats(1.2, 20))
def test_a_slower_link_costs_a_request_more_time_and_energy(more: dict[str, Any], factor: float) -> None:
    assume(more["tp"] > 1)
    gpu = load_gpu("h100-sxm-80gb")
    fast, slow = (
        predicted(**more, gpu=None, cluster=Cluster(gpu=gpu, intra=Link(name="own", bytes_per_s=rate, latency_s=1e-6, switched=True)))
        for rate in (450e9, 450e9 / factor)
    )
    assert slow.latency_s > fast.latency_s
    assert slow.energy_j > fast.energy_j
    assert slow.breakdown.communication_j > fast.breakdown.communication_j


@given(more=st.fixed_dictionaries(TRAFFIC))
def test_sixteen_bit_weights_cost_more_than_eight(more: dict[str, Any]) -> None:
    assert energy_j(dtype="fp8", **more) < energy_j(dtype="bf16", **more)


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_four_bit_weights_save_where_reading_weights_is_the_work(batch: int) -> None:
    """They are unpacked to 16 bits, so prompts and large batches gain nothing (Lin et al., AWQ, arXiv 2306.00978, section 4)."""
    assert rises([energy_j(dtype=dtype, batch=batch, prompt_tokens=20, output_tokens=500) for dtype in ("int4", "fp8", "bf16")])
    assert energy_j(dtype="int4", prompt_tokens=8000, output_tokens=0) >= energy_j(dtype="bf16", prompt_tokens=8000, output_tokens=0) * 0.95


@pytest.mark.parametrize(("llm", "tp"), [("llama-3.1-8b", 1), ("llama-3.1-70b", 4), ("qwen3-30b-a3b", 2)])
def test_energy_per_output_token_falls_with_batch_until_memory_binds(llm: str, tp: int) -> None:
    """Batches share the weights a step reads (Samsi et al. 2310.03003; ML.ENERGY v3 shows it on every LLM)."""
    energies = [
        predicted(llm=llm, tp=tp, batch=batch, output_tokens=300).energy_per_output_token_j for batch in (1, 2, 4, 8, 16, 32, 64, 128)
    ]
    assert rises(energies[::-1])
    assert energies[0] > 5 * energies[-1]


def test_a_batch_beyond_memory_is_answered_with_a_warning_that_names_the_batch_that_fits() -> None:
    p = predicted(batch=2000, prompt_tokens=2000, output_tokens=1000)
    fits = p.deployment.largest_batch(2000 + 1000 * p.request.length_spread / 2)
    assert p.warnings == (
        f"the KV cache of batch 2000 does not fit beside the weights; about {int(fits)} requests per data-parallel rank do",
    )
    assert not predicted(batch=int(fits), prompt_tokens=2000, output_tokens=1000).warnings


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_more_shards_draw_more_watts_and_cost_more_per_token_at_the_same_batch(batch: int) -> None:
    """PIE-P (2512.12801) and Samsi et al. (2310.03003, figures 4-6): sharding raises power, and mostly energy per token."""
    shards = [predicted(tp=tp, batch=batch, output_tokens=300) for tp in (1, 2, 4, 8)]
    assert rises([p.avg_power_w for p in shards])
    assert rises([p.energy_j for p in shards])
    assert rises([p.latency_s for p in reversed(shards)])


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_pcie_shards_communicate_more_energy_than_nvlink_shards(batch: int) -> None:
    """PIE-P, section 5: all-reduce is 14-35 % of the energy of 2-4 GPUs on PCIe."""
    nvlink, pcie = (predicted(gpu=gpu, tp=4, batch=batch) for gpu in ("a100-sxm-80gb", "a100-pcie-80gb"))
    shares = [p.breakdown.communication_j / p.energy_j for p in (nvlink, pcie)]
    assert shares[0] < shares[1]


def test_a_lower_power_cap_never_costs_less_time_and_saves_energy_where_it_binds() -> None:
    """Samsi et al. (2310.03003), section V: 250 to 175 W costs about 6-7 % of the time and saves about 23 % of the energy."""
    for batch in (1, 64):
        own, capped = (
            predicted(llm="llama-1-7b", gpu="v100-sxm-32gb", batch=batch, output_tokens=300, power_limit_w=limit) for limit in (250, 175)
        )
        assert capped.latency_s >= own.latency_s
        assert capped.energy_j <= own.energy_j
        assert capped.avg_power_w <= 175


@given(more=st.fixed_dictionaries(TRAFFIC), caps=st.lists(st.floats(180, 700), min_size=2, max_size=4))
def test_power_falls_and_time_rises_as_the_cap_falls_and_the_cap_is_kept(more: dict[str, Any], caps: list[float]) -> None:
    runs = [predicted(**more, power_limit_w=cap) for cap in sorted(caps, reverse=True)]
    assert rises([run.avg_power_w for run in reversed(runs)])
    assert rises([run.latency_s for run in runs])
    for run in runs:
        assert run.avg_power_w <= run.power_limit_w * run.gpus


def test_a_cap_at_the_board_s_own_limit_changes_nothing() -> None:
    assert energy_j(batch=64, power_limit_w=700) == pytest.approx(energy_j(batch=64), rel=1e-9)


# Any legal plan


@st.composite
def legal(draw: st.DrawFn) -> dict[str, Any]:
    """A plan that divides its LLM, on a board of the catalogue; it may not fit."""
    name = draw(
        st.sampled_from(["llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3", "nemotron-h-8b", "gemma-3-27b"])
    )
    llm = load_llm(name)
    tp, dp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 4]))
    experts = [layer.ffn.experts for layer in llm.layers if isinstance(layer.ffn, MoeFfn)]
    ep = draw(st.sampled_from([one for one in (1, 2, 4, 8) if tp * dp % one == 0])) if experts else 1
    return {
        "llm": name,
        "gpu": draw(st.sampled_from(gpu_names())),
        "tp": tp,
        "pp": draw(st.sampled_from([1, 2, 3, 7])),
        "dp": dp,
        "ep": ep,
        "micro_batches": draw(st.none() | st.integers(1, 16)),
        "batch": draw(st.floats(1, 3000)),
        "prompt_tokens": draw(st.floats(0.5, 200_000)),
        "output_tokens": draw(st.just(0) | st.floats(0.001, 20_000)),
        "dtype": draw(st.none() | st.sampled_from(DTYPES)),
        "kv_dtype": draw(st.none() | st.sampled_from(DTYPES)),
        "engine": draw(st.sampled_from(["vllm", "vllm==0.5.4", "sglang", "trtllm"])),
        **draw(st.sampled_from([{}, {"scope": "host"}, {"scope": "facility", "pue": 1.2}])),
    }


@settings(max_examples=200)
@given(legal())
def test_any_legal_plan_is_answered_with_finite_positive_numbers_or_does_not_fit(arguments: dict[str, Any]) -> None:
    try:
        p = predicted(**arguments)
    except MemoryFitError:
        return
    except PlanError as error:
        assume("do not divide each other" not in str(error) and "columns" not in str(error))
        raise
    json.dumps(p.to_dict(), allow_nan=False)
    assert p.energy_j > 0
    assert p.latency_s >= p.ttft_s > 0
    assert p.gpus * p.deployment.cluster.gpu.active_idle_w < p.avg_power_w < p.gpus * p.deployment.cluster.gpu.limit_w
    assert p.breakdown.gpu_j == pytest.approx(p.avg_power_w * p.latency_s / (p.request.batch * p.deployment.plan.dp), rel=1e-9)
    alone = p.deployment.plan.tp == p.deployment.plan.pp == p.deployment.plan.ep == 1
    assert (p.breakdown.communication_j == 0) == alone


@pytest.mark.parametrize("gpu", gpu_names())
def test_every_board_of_the_catalogue_answers(gpu: str) -> None:
    assert 0.01 < predicted(llm="llama-3.2-1b", gpu=gpu).energy_per_output_token_j < 100


# Bad input

WRONG: list[tuple[dict[str, Any], type[PiePError], str]] = [
    ({"prompt_tokens": math.nan}, InputError, r"^prompt_tokens = nan is not allowed; give a finite number of at least 0\.001"),
    ({"prompt_tokens": 0}, InputError, r"^prompt_tokens = 0 is not allowed"),
    ({"prompt_tokens": "200"}, InputError, r"^prompt_tokens = '200' is not a number"),
    ({"output_tokens": -5}, InputError, r"^output_tokens = -5 is not allowed; give a finite number of at least 0"),
    ({"output_tokens": math.inf}, InputError, r"^output_tokens = inf is not allowed"),
    ({"output_tokens": None}, InputError, r"^output_tokens = None is not a number"),
    ({"batch": 0}, InputError, r"^batch = 0 is not allowed; give a finite number of at least 1"),
    ({"batch": True}, InputError, r"^batch = True is not a number"),
    ({"batch": 1e9}, InputError, r"^batch = 1000000000\.0 is not allowed"),
    ({"cached_prompt_tokens": 201}, InputError, r"^cached_prompt_tokens = 201 is more than prompt_tokens = 200"),
    ({"tp": 0}, InputError, r"^tp = 0 is not allowed"),
    ({"tp": 3}, PlanError, r"^tp = 3 does not divide the 32 query heads of llama-3\.1-8b; allowed: divisors of 32$"),
    ({"pp": 2.5}, InputError, r"^pp = 2\.5 is not a whole number"),
    ({"dp": -1}, InputError, r"^dp = -1 is not allowed"),
    ({"ep": 2}, PlanError, r"^ep = 2 does not divide tp \* dp = 1; allowed: 1 or a divisor of 1$"),
    ({"tp": 2, "ep": 2}, PlanError, r"^ep = 2, but llama-3\.1-8b has no experts; use ep=1$"),
    ({"micro_batches": 0}, InputError, r"^micro_batches = 0 is not allowed"),
    (
        {"llm": "llama-3.1-70b"},
        MemoryFitError,
        r"^the bf16 weights of llama-3\.1-70b take 141\.1 GB per GPU under one GPU, .*tp=2 would fit",
    ),
    ({"llm": "lama-3.1-8b"}, UnknownLLMError, r"^no LLM 'lama-3\.1-8b' in the catalogue .*Did you mean: llama-3\.1-8b"),
    ({"gpu": "h100"}, UnknownGpuError, r"^no GPU 'h100' in the catalogue\. Did you mean: h100-sxm-80gb, h100-pcie-80gb"),
    ({"gpu": 100}, InputError, r"^100 is no GPU; give a name of the catalogue or a Gpu$"),
    ({"gpu": None}, InputError, r"^neither gpu nor cluster given; give one: gpu='h100-sxm-80gb'"),
    ({"cluster": "own.toml"}, InputError, r"^both gpu and cluster given; give one: gpu='h100-sxm-80gb'"),
    ({"gpu": None, "cluster": "none.toml"}, InputError, r"^no file 'none\.toml'$"),
    ({"dtype": "fp9"}, InputError, r"^dtype = 'fp9' is not known; allowed: bf16, fp16, fp8, int8, int4, mxfp4, nvfp4$"),
    ({"kv_dtype": 8}, InputError, r"^kv_dtype = 8 is not known; allowed: bf16"),
    ({"engine": "tgi"}, UnknownNameError, r"^no engine 'tgi'; known: sglang, trtllm, vllm, each optionally with ==VERSION\.$"),
    ({"mode": "dynamic"}, InputError, r"^mode = 'dynamic' is not known; allowed: 'static' .*'steady'"),
    ({"output_tokens": 0, "mode": "steady"}, InputError, r"^output_tokens = 0 is a prefill-only request, which has no steady state"),
    ({"scope": "rack"}, InputError, r"^scope = 'rack' is not known; allowed: 'gpu', 'host', 'facility'$"),
    (
        {"scope": "facility"},
        InputError,
        r"^scope='facility' needs pue, the power usage effectiveness of the site \(for instance pue=1\.2\)$",
    ),
    ({"scope": "facility", "pue": 0.9}, InputError, r"^pue = 0\.9 is not allowed; give a finite number of at least 1 and at most 10$"),
    ({"pue": 1.2}, InputError, r"^pue = 1\.2 counts only in scope='facility'; the scope asked for is 'gpu'$"),
    ({"exclusive_host": "yes"}, InputError, r"^exclusive_host = 'yes' is not a truth value; allowed: True, False$"),
    (
        {"power_limit_w": 50},
        InputError,
        r"^power_limit_w = 50 W is outside what h100-sxm-80gb can hold; allowed: above .* and at most 700 W$",
    ),
    ({"power_limit_w": 701}, InputError, r"^power_limit_w = 701 W is outside what h100-sxm-80gb can hold"),
    ({"power_limit_w": math.nan}, InputError, r"^power_limit_w = nan is not allowed"),
    ({"predictor": "oracle"}, PiePError, r"oracle"),
]


@pytest.mark.parametrize(("more", "kind", "text"), WRONG, ids=[str(more)[1:50] for more, _, _ in WRONG])
def test_a_mistake_is_one_line_with_what_came_and_what_is_allowed(more: dict[str, Any], kind: type[PiePError], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        predicted(**more)
    assert "\n" not in str(caught.value)


RUBBISH = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=5)
    | st.lists(st.floats(), max_size=3) | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
    | st.just(np.zeros((3, 3))) | st.just(10**5000) | st.just(object)
)  # fmt: skip
NAMES = (
    "llm", "gpu", "cluster", "tp", "pp", "dp", "ep", "micro_batches", "batch", "prompt_tokens", "output_tokens", "cached_prompt_tokens",
    "dtype", "kv_dtype", "engine", "mode", "scope", "pue", "exclusive_host", "power_limit_w", "predictor",
)  # fmt: skip


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(NAMES), RUBBISH, min_size=1, max_size=3))
def test_rubbish_is_answered_or_refused_in_one_line(more: dict[str, Any]) -> None:
    try:
        answer = json.dumps(predicted(**more).to_dict(), allow_nan=False)
    except PiePError as error:
        answer = str(error)
    assert answer
    assert "\n" not in answer


# Numbers of other libraries


def test_numpy_scalars_are_numbers() -> None:
    plain = predicted(tp=2, batch=16, power_limit_w=500)
    numpy = predicted(
        tp=np.int64(2), batch=np.float32(16), prompt_tokens=np.int32(200), output_tokens=np.array(100), power_limit_w=np.float64(500)
    )
    assert numpy == plain
    assert json.dumps(numpy.to_dict()) == json.dumps(plain.to_dict())


def test_rows_of_a_pandas_table_are_configurations() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pandas.DataFrame({"tp": [1, 2], "batch": [4.0, 8.5], "prompt_tokens": [200, 300], "output_tokens": [100, 50]})
    rows = [{**BASE, **row} for _, row in table.iterrows()]
    assert [p.energy_j for p in predict_many(rows)] == [
        energy_j(batch=4.0),
        energy_j(tp=2, batch=8.5, prompt_tokens=300, output_tokens=50),
    ]
    assert predicted(output_tokens=pandas.Series([50, 150])).request.mean_output_tokens == 100


# Many at once


def test_many_at_once_are_exactly_as_one_by_one() -> None:
    many: list[dict[str, Any]] = [
        {**BASE},
        {**BASE, "batch": 700},
        {**BASE, "llm": "llama-3.1-70b", "tp": 4, "pp": 2, "batch": 33.3},
        {**BASE, "llm": "qwen3-30b-a3b", "gpu": "b200-sxm-180gb", "dp": 4, "ep": 4, "batch": 16, "engine": "sglang"},
        {**BASE, "gpu": "l4-24gb", "dtype": "int4", "output_tokens": 0},
        {**BASE, "llm": "nemotron-h-8b", "mode": "static", "batch": 9, "prompt_tokens": 20_000},
        {**BASE, "batch": 64, "power_limit_w": 300},
        {**BASE, "output_tokens": [10, 500, 900], "batch": 12},
    ]
    accounting = Accounting(scope="host")
    together = predict_many(many, accounting=accounting)
    for configuration, of_many in zip(many, together, strict=True):
        arguments = dict(configuration)
        alone = predict_energy(arguments.pop("llm"), **arguments, scope="host")
        assert of_many == alone
        assert of_many.operators == alone.operators


def test_the_order_of_many_does_not_matter() -> None:
    many = [{**BASE, "batch": batch} for batch in (1, 8, 64, 512)]
    assert predict_many(many[::-1])[::-1] == predict_many(many)


def test_no_configurations_give_no_predictions() -> None:
    assert predict_many([]) == []


def test_one_wrong_configuration_among_many_is_refused() -> None:
    with pytest.raises(PlanError, match="tp = 3"):
        predict_many([BASE, {**BASE, "tp": 3}])


# What answers


def test_the_answer_names_what_it_assumed() -> None:
    p = predicted()
    assert p.cluster == "hgx-h100-8 of h100-sxm-80gb"
    assert p.engine.startswith("vllm==")
    assert (p.mode, p.scope, p.deployment.dtype, p.power_limit_w) == ("static", "gpu", "bf16", 700)
    assert p.predictor["name"]


def test_a_predictor_is_known_by_the_hash_of_everything_that_enters_an_answer() -> None:
    base = Predictor()
    again, other = Predictor(), replace(base, roofline=replace(base.roofline, weight_share=0.5))
    assert base.sha256 == again.sha256 != other.sha256
    assert predicted(predictor=other).predictor["sha256"] == other.sha256
    assert predicted(predictor=other).energy_j > predicted(predictor=base).energy_j


def test_the_costs_of_a_version_stand_before_those_of_its_engine_and_of_all() -> None:
    base = Predictor()
    prior = base.costs_of(make_case(**BASE).deployment.engine)
    engine, version = prior._replace(jitter=0.5), prior._replace(jitter=0.6)
    asked = make_case(**BASE).deployment.engine
    assert replace(base, serving={"vllm": engine}).costs_of(asked).jitter == 0.5
    assert replace(base, serving={"vllm": engine, str(asked): version}).costs_of(asked).jitter == 0.6


def test_the_physical_base_is_a_predictor_by_name() -> None:
    assert load_predictor("physics").name == "physics"
    own = Predictor(name="own")
    assert load_predictor(own) is own


@pytest.mark.parametrize("llm", ["meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b", load_llm("llama-3.1-8b")])
def test_every_spelling_of_an_llm_gives_the_same_answer(llm: Any) -> None:
    assert energy_j(llm=llm) == energy_j()


def test_a_cluster_of_one_s_own_is_asked_in_place_of_a_gpu() -> None:
    cluster = Cluster(gpu=load_gpu("h100-sxm-80gb"), hosts=2)
    p = predicted(gpu=None, cluster=cluster, llm="llama-3.1-405b", tp=8, pp=2)
    assert p.gpus == 16
    assert p.cluster == cluster.name
    with pytest.raises(PlanError, match=r"^the plan needs 32 GPUs \(TP8 PP4\), the cluster .* has 16; give more hosts or smaller degrees$"):
        predicted(gpu=None, cluster=cluster, llm="llama-3.1-405b", tp=8, pp=4)


def test_a_gpu_alone_stands_for_as_many_of_its_common_hosts_as_the_plan_needs() -> None:
    p = predicted(llm="llama-3.1-405b", tp=8, pp=4)
    assert (p.deployment.cluster.hosts, p.deployment.cluster.gpus_per_host) == (4, 8)
    assert p.deployment.cluster.inter is not None
    assert p.deployment.cluster.inter.bytes_per_s == 50e9  # 400 Gb/s
    assert p.deployment.plan == ParallelPlan(tp=8, pp=4)


def test_a_window_of_attention_is_worth_its_bytes() -> None:
    llm = load_llm("mistral-7b-v0.1")
    mixer = llm.layers[0].mixer
    assert isinstance(mixer, Attention)
    open_llm = replace(llm, layers=tuple(replace(layer, mixer=replace(mixer, window=None)) for layer in llm.layers))
    assert energy_j(llm=llm, prompt_tokens=30_000) < energy_j(llm=open_llm, prompt_tokens=30_000)
    assert energy_j(llm=llm, prompt_tokens=1_000) == energy_j(llm=open_llm, prompt_tokens=1_000)


BATCHES = [{**BASE, "llm": "qwen3-30b-a3b", "tp": 2, "batch": batch} for batch in range(1, 40)]


def test_passes_of_any_size_give_the_same_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = predict_many(BATCHES)
    monkeypatch.setattr("pie_p.predictor.CASES_AT_ONCE", 7)
    parts = predict_many(BATCHES)
    assert parts == whole
    assert [p.operators for p in parts] == [p.operators for p in whole]


def test_without_their_working_answers_are_the_same_and_operators_a_clear_line() -> None:
    kept, dropped = predict_many(BATCHES[:3]), predict_many(BATCHES[:3], keep_working=False)
    assert dropped == kept
    assert [p.to_dict() for p in dropped] == [p.to_dict() for p in kept]
    for ask in (lambda p: p.operators, lambda p: p.tree()):
        with pytest.raises(InputError, match=r"^this prediction was made without its working; predict it alone to get operators$"):
            ask(dropped[0])


def test_one_of_many_travels_with_its_own_working_alone() -> None:
    one, alone = predict_many(BATCHES)[20], predicted(**BATCHES[20])
    pickled = pickle.dumps(one)
    assert len(pickled) < 1.1 * len(pickle.dumps(alone))
    assert pickle.loads(pickled).operators == one.operators == alone.operators
    assert len(pickle.dumps(predict_many(BATCHES, keep_working=False)[20])) < len(pickled) / 2
