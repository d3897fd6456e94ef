"""LLMs by name: every bundled shape against what its makers publish, every spelling, and the noun itself."""

from __future__ import annotations

import copy
import csv
import gzip
import json
import os
import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pie_p import units
from pie_p.errors import LLMConfigError, UnknownLLMError
from pie_p.llm import LLM, llm_names, load_llm, published_parameters
from pie_p.llm_catalogue import _index, _texts, expand_pattern, llm_from_entry, tomllib
from pie_p.shapes import Attention, DeltaNet, DenseFfn, LatentAttention, Layer, MoeFfn, StateSpace

SHARED = Path(os.environ.get("PIE_P_SHARED", Path(__file__).parents[2] / "shared")) / "data"
SCALES = {"M": 1e6, "B": 1e9, "T": 1e12}


def as_published(figure: int | str) -> tuple[float, float]:
    """The figure and the worth of its last digit: '3.3B' is 3.3e9 and 1e8."""
    if isinstance(figure, int):
        return float(figure), 1.0
    number, scale = figure[:-1], SCALES[figure[-1]]
    return float(number) * scale, scale / 10 ** len(number.partition(".")[2])


def counted(llm: LLM, parameters: int, *, omits: list[str], adds: Mapping[str, int]) -> float:
    """Our count by the convention of the source: without what it leaves out, with what it counts beyond the text stack."""
    left_out = [part for part in omits if part == "embedding" or not llm.tied_embeddings]
    return parameters - len(left_out) * llm.embedding_parameters + sum(adds.values())


def agree(count: float, figure: int | str) -> bool:
    """Within 1 %, or, where the makers print one or two digits, equal to what they print when rounded or cut to those digits."""
    value, last_digit = as_published(figure)
    if abs(count / value - 1) <= 0.01:
        return True
    digits = len(re.sub(r"\D", "", str(figure)).lstrip("0"))
    return digits <= 2 and value - last_digit / 2 <= count < value + last_digit


@pytest.mark.parametrize("name", llm_names())
def test_total_parameters_agree_with_the_published_ones(name: str) -> None:
    published = published_parameters(name)
    llm = load_llm(name)
    count = counted(llm, llm.parameters, omits=published.get("omits", []), adds=published.get("adds", {}))
    value, _ = as_published(published["total"])
    assert count == pytest.approx(value, rel=0.01), f"{name}: {count:,.0f} against {published['total']}"
    assert len(published["source"]) > 10


@pytest.mark.parametrize("name", [name for name in llm_names() if load_llm(name).is_moe])
def test_active_parameters_of_mixtures_agree_with_the_published_ones(name: str) -> None:
    published = published_parameters(name)
    llm = load_llm(name)
    count = counted(llm, llm.active_parameters, omits=published.get("active_omits", []), adds={})
    assert agree(count, published["active"]), f"{name}: {count:,.0f} against {published['active']}"


@pytest.mark.parametrize("name", [name for name in llm_names() if not load_llm(name).is_moe])
def test_every_parameter_of_a_dense_llm_is_active(name: str) -> None:
    assert load_llm(name).active_parameters == load_llm(name).parameters


def test_many_are_bundled_and_dozens_agree_to_the_last_parameter() -> None:
    exact = [name for name in llm_names() if as_published(published_parameters(name)["total"])[1] == 1.0]
    assert len(llm_names()) >= 150
    assert len(exact) >= 60
    apart = [name for name in exact if not published_parameters(name).get("adds")]
    assert {name for name in apart if load_llm(name).parameters != published_parameters(name)["total"]} == {"gpt-j-6b"}  # 0.04 % apart


def test_the_scan_for_names_finds_what_a_full_parse_finds() -> None:
    tables: dict[str, Any] = {}
    for text in _texts():
        tables |= tomllib.loads(text)
    assert tuple(sorted(tables)) == llm_names()
    for name, entry in tables.items():
        assert re.match(r"https://|arXiv \d", entry["source"]), name
        assert llm_from_entry(name, entry) == load_llm(name)
        assert all(load_llm(spelling).name == name for spelling in entry["ids"])
    assert len(_index()) >= sum(1 for _ in tables)


def from_data() -> Iterator[tuple[str, str]]:
    """Every (data set, LLM id) of the public measurements."""
    for file in sorted((SHARED / "mlenergy_v3" / "models").glob("*.json")):
        organisation, _, rest = file.stem.partition("__")
        yield "mlenergy_v3", json.loads(file.read_text()).get("model_id") or f"{organisation}/{rest.partition('__')[0]}"
    for organisation in sorted((SHARED / "mlenergy_v2" / "llm_text_generation").glob("*/*/*")):
        yield from (("mlenergy_v2", f"{organisation.name}/{llm.name}") for llm in sorted(organisation.iterdir()))
    for llm in sorted((SHARED / "vidur" / "compute").glob("*/*/*")):
        yield "vidur", f"{llm.parent.name}/{llm.name}"
    for run in sorted((SHARED / "mlperf_power").glob("*/*/*")):
        yield from [("mlperf_power", run.name)] if run.is_dir() else []


def test_every_llm_of_the_public_measurements_is_found_by_its_id() -> None:
    found = set(from_data())
    if not found:
        pytest.skip(f"the public data are not at {SHARED}")
    assert len(found) > 40
    assert [(where, name) for where, name in sorted(found) if not isinstance(load_llm(name), LLM)] == []


def test_every_llm_of_the_serving_measurements_is_found_by_its_id() -> None:
    file = SHARED / "aiconfigurator" / "end_to_end_time" / "silicon_sample.csv.gz"
    if not file.exists():
        pytest.skip(f"the public data are not at {SHARED}")
    with gzip.open(file, "rt") as stream:
        names = {row["model_path"] for row in csv.DictReader(stream)}
    assert {load_llm(name).name for name in names} >= {"minimax-m2.5", "qwen3.5-397b-a17b", "deepseek-v3", "llama-3.1-70b"}
    assert load_llm("nvidia/Llama-3.1-8B-Instruct-FP8").dtype == "fp8"


def test_bundled_shapes_agree_with_another_collection_of_configs() -> None:
    file = SHARED / "reference" / "wattgpu_model_features.csv"
    if not file.exists():
        pytest.skip(f"the public data are not at {SHARED}")
    with file.open() as stream:
        rows = list(csv.DictReader(stream, delimiter=";"))
    # Falcon-Mamba is a Mamba-1, which we cannot count; Phi-tiny-MoE's published active count does not follow from its config.
    missing = {"tiiuae/Falcon3-Mamba-7B-Instruct", "microsoft/Phi-tiny-MoE-instruct"}
    for row in (row for row in rows if row["model_name"] not in missing):
        llm = load_llm(row["model_name"])
        attention = next(layer.mixer for layer in llm.layers if isinstance(layer.mixer, Attention))
        ours = (len(llm.layers), llm.hidden_size, attention.heads, attention.kv_heads)
        theirs = ("num_layers", "hidden_size", "num_attention_heads", "num_key_value_heads")
        assert ours == tuple(int(float(row[key])) for key in theirs), row["model_name"]


@pytest.mark.parametrize(
    ("spelling", "name", "dtype"),
    [
        ("llama-3.1-70b", "llama-3.1-70b", "bf16"),
        ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b", "bf16"),
        ("META-LLAMA/META-LLAMA-3.1-70B-INSTRUCT", "llama-3.1-70b", "bf16"),
        ("llama3.1-8b", "llama-3.1-8b", "bf16"),
        ("google/gemma-3-27b-it", "gemma-3-27b", "bf16"),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "qwen3-30b-a3b", "bf16"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", "qwen3-coder-480b-a35b", "fp8"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1", "fp8"),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "qwen3-8b", "bf16"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3", "bf16"),
        ("mistralai/Mistral-Large-Instruct-2407", "mistral-large-2407", "bf16"),
        ("codellama/CodeLlama-34b-Instruct-hf", "codellama-34b", "bf16"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b", "int4"),
        ("Qwen/Qwen2.5-14B-Instruct-GPTQ-Int8", "qwen2.5-14b", "int8"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "llama-3.1-8b", "int4"),
        ("mlx-community/Qwen3-8B-MLX-8bit", "qwen3-8b", "int8"),
        ("moonshotai/Kimi-K2-Thinking", "kimi-k2-thinking", "int4"),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2", "fp8"),
        ("TheBloke/Llama-2-70B-Chat-AWQ", "llama-2-70b", "int4"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", "llama-3.1-70b", "int8"),
        ("nvidia/DeepSeek-R1-NVFP4", "deepseek-r1", "nvfp4"),
        ("openai/gpt-oss-120b", "gpt-oss-120b", "mxfp4"),
        ("unsloth/gpt-oss-20b-BF16", "gpt-oss-20b", "bf16"),
        ("llama2-70b-99.9", "llama-2-70b", "bf16"),
    ],
)
def test_a_name_is_understood_in_either_spelling_and_says_how_weights_are_stored(spelling: str, name: str, dtype: str) -> None:
    llm = load_llm(spelling)
    assert (llm.name, llm.dtype) == (name, dtype)


@pytest.mark.parametrize(
    ("spelling", "tokens"),
    [
        ("Qwen/Qwen3-30B-A3B", 40960),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", 262144),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", 262144),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", 262144),
        ("Qwen/Qwen3-4B-Instruct-2507", 262144),
    ],
)
def test_a_release_of_the_same_shape_may_reach_further(spelling: str, tokens: int) -> None:
    assert load_llm(spelling).max_context == tokens


@pytest.mark.parametrize("name", ["llama-3.1-8b-Q4_K_M.gguf", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"])
def test_a_gguf_name_is_told_how_to_ask(name: str) -> None:
    with pytest.raises(
        UnknownLLMError, match=r"Did you mean: llama-3\.1-8b.* A GGUF file is not read: name the LLM, and its format with dtype"
    ):
        load_llm(name)


def test_an_unknown_name_suggests_near_ones_and_the_how_to() -> None:
    with pytest.raises(UnknownLLMError, match=r"no LLM 'llama-3.1-71b'.*Did you mean: llama-3.1-70b.*docs/how-to/add-an-llm.md") as caught:
        load_llm("llama-3.1-71b")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", " ", "x\0y", "a" * 10_000, "llama", "../../etc/passwd", "-FP8", "/", "gpt-5"])
def test_a_name_that_is_none_is_one_line(name: str) -> None:
    with pytest.raises((UnknownLLMError, LLMConfigError)) as caught:
        load_llm(name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("thing", [None, 7, 1.5, ["llama-3.1-8b"], b"llama-3.1-8b", LLM, object()])
def test_what_is_no_name_at_all_is_refused(thing: Any) -> None:
    with pytest.raises(LLMConfigError, match="allowed: a name, a path"):
        load_llm(thing)


def test_an_llm_is_equal_by_value_and_survives_pickling_and_copying() -> None:
    llm = load_llm("gemma-3-27b")
    twin = replace(llm)
    assert hash(llm) == hash(twin)  # fills the cached hash, which must not travel
    for other in (twin, copy.copy(llm), copy.deepcopy(llm), pickle.loads(pickle.dumps(llm))):
        assert other == llm
        assert other.parameters == llm.parameters
        assert {llm: 1}[other] == 1
    assert replace(llm, dtype="fp8") != llm
    assert llm != "gemma-3-27b"
    assert b"_hash" not in pickle.dumps(llm)


def test_a_hash_is_looked_up_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = replace(load_llm("llama-3.1-405b"))
    first = hash(llm)
    monkeypatch.setattr(LLM, "_key", lambda self: pytest.fail("hashed the 126 layers again"))
    assert hash(llm) == first


def test_layers_are_counted_in_order() -> None:
    layers = load_llm("gemma-3-27b").layer_counts
    assert [(layer.mixer.window, count) for layer, count in layers.items() if isinstance(layer.mixer, Attention)] == [
        (1024, 52),
        (None, 10),
    ]
    nano = load_llm("nemotron-nano-9b-v2")  # arXiv 2508.14444: 56 layers, 4 of attention, 27 of Mamba-2, 25 feed-forward
    kinds = {type(layer.mixer or layer.ffn): count for layer, count in nano.layer_counts.items()}
    assert kinds == {StateSpace: 27, DenseFfn: 25, Attention: 4}


def test_kv_cache_of_one_token_by_hand() -> None:
    assert load_llm("llama-3.1-8b").kv_bytes_per_token() == 32 * 2 * 8 * 128 * 2
    assert load_llm("llama-3.1-8b").kv_bytes_per_token("fp8") == 32 * 2 * 8 * 128
    assert load_llm("deepseek-v3").kv_bytes_per_token() == 61 * (512 + 64) * 2
    assert load_llm("deepseek-v3.2").kv_bytes_per_token("fp8") == 61 * (512 + 64 + 128)
    assert load_llm("nemotron-nano-9b-v2").kv_bytes_per_token() == 4 * 2 * 8 * 128 * 2


def test_a_windowed_layer_keeps_its_window_at_most() -> None:
    llm = load_llm("gemma-3-27b")
    each = 2 * 16 * 128 * 2
    assert llm.kv_cache_bytes(1000) == 62 * each * 1000 == 1000 * llm.kv_bytes_per_token()
    assert llm.kv_cache_bytes(10_000) == each * (52 * 1024 + 10 * 10_000)


def test_recurrent_state_by_hand() -> None:
    # arXiv 2508.14444: 128 heads of 80, state of 128, 8 groups; fp32 state, bf16 convolution of 4 over 128 * 80 + 2 * 8 * 128 channels
    assert load_llm("nemotron-nano-9b-v2").state_bytes == 27 * (128 * 80 * 128 * 4 + 3 * (10240 + 2048) * 2)
    assert load_llm("qwen3.5-397b-a17b").state_bytes == 45 * (64 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 64 * 128) * 2)
    assert load_llm("llama-3.1-8b").state_bytes == 0


def test_stored_weights_by_hand() -> None:
    llama = load_llm("llama-3.1-8b")
    matrices = 32 * (41_943_040 + 3 * 4096 * 14336)
    assert llama.low_precision_parameters == matrices
    assert llama.weight_bytes() == 2 * 8_030_261_248
    assert llama.weight_bytes("fp8") == matrices + 2 * (8_030_261_248 - matrices)


def test_stored_weights_of_published_checkpoints() -> None:
    # https://huggingface.co/openai/gpt-oss-20b and gpt-oss-120b: checkpoints of 12.8 and 60.8 GiB (arXiv 2508.10925, table 1)
    assert load_llm("gpt-oss-20b").weight_bytes() / units.GIB == pytest.approx(12.8, rel=0.01)
    assert load_llm("gpt-oss-120b").weight_bytes() / units.GIB == pytest.approx(60.8, rel=0.01)


def test_parts_kept_in_high_precision_are_not_quantised() -> None:
    llm = load_llm("deepseek-v3")
    parts = ["lm_head", "attention", "shared_expert", "dense_layers", "ffn"]
    sizes = [replace(llm, high_precision=frozenset(parts[:count])).weight_bytes("fp8") for count in range(len(parts) + 1)]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes)
    assert sizes[-1] == llm.weight_bytes("bf16") == 2 * llm.parameters
    experts = 58 * 256 * 3 * 7168 * 2048
    assert sizes[-2] == 2 * llm.parameters - experts


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(LLMConfigError, match=r"dtype is 'fp7'; allowed: bf16, fp16, fp8"):
        load_llm("llama-3.1-8b").weight_bytes("fp7")  # type: ignore[arg-type]


BLOCK = Layer(mixer=Attention(heads=8, kv_heads=2, head_dim=64), ffn=DenseFfn(intermediate_size=1024), norm_width=1024)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 0}, r"LLM.hidden_size is 0; allowed: a whole number from 1"),
        ({"hidden_size": True}, r"LLM.hidden_size is True"),
        ({"vocab_size": float("nan")}, r"LLM.vocab_size is nan"),
        ({"vocab_size": 10**30}, r"LLM.vocab_size is 1000"),
        ({"layers": ()}, r"layers of 'x': allowed: a tuple of 1 to 4096 Layer"),
        ({"layers": [BLOCK]}, r"layers of 'x'"),
        ({"layers": (BLOCK,) * 5000}, r"layers of 'x'"),
        ({"layers": ("block",)}, r"layers of 'x'"),
        ({"dtype": "int3"}, r"dtype is 'int3'"),
        ({"high_precision": frozenset({"head"})}, r"high_precision is \['head'\]; allowed"),
        ({"tied_embeddings": 1}, r"LLM.tied_embeddings is 1; allowed: True or False"),
    ],
)
def test_an_llm_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {"name": "x", "hidden_size": 512, "vocab_size": 100, "layers": (BLOCK,)}
    with pytest.raises(LLMConfigError, match=message):
        LLM(**{**fields, **changes})


@pytest.mark.parametrize(
    ("shape", "fields", "message"),
    [
        (Attention, {"heads": 8, "kv_heads": 3, "head_dim": 64}, "kv_heads is 3; allowed: a divisor of heads, which is 8"),
        (Attention, {"heads": 8, "kv_heads": 8, "head_dim": -1}, "Attention.head_dim is -1"),
        (Attention, {"heads": 8, "kv_heads": 8, "head_dim": 64, "window": 0}, "Attention.window is 0"),
        (MoeFfn, {"experts": 4, "top_k": 5, "intermediate_size": 8}, "top_k is 5; allowed: at most experts, which is 4"),
        (Layer, {"mixer": None, "ffn": None}, "neither mixer nor ffn"),
        (DeltaNet, {"key_heads": 1, "value_heads": 1, "key_dim": 1, "value_dim": 1, "conv_kernel": "4"}, "DeltaNet.conv_kernel is '4'"),
        (LatentAttention, {"heads": 1, "kv_rank": 1, "nope_dim": 1, "rope_dim": 1, "value_dim": 1, "index_heads": 2}, "indexer needs"),
    ],
)
def test_a_part_that_cannot_be_is_refused(shape: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LLMConfigError, match=message):
        shape(**fields)


def test_a_pattern_with_an_unknown_block_is_refused() -> None:
    with pytest.raises(LLMConfigError, match=r"layer pattern has 'dense'; allowed: block, counts"):
        expand_pattern("2*dense", {"block": BLOCK})
