"""Hugging Face configs: families against counts worked out by hand or published, storage formats, and everything hostile."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_p.errors import LLMConfigError, PiePError, UnknownLLMError, UnsupportedLLMError
from pie_p.hf_config import KNOWN, llm_from_config
from pie_p.hf_families import STACKS
from pie_p.hf_hybrids import READERS
from pie_p.llm import LLM, load_llm
from pie_p.llm_shape import HIGH_PRECISION_PARTS
from pie_p.shapes import Attention, DenseFfn, LatentAttention, MoeFfn

Config = dict[str, Any]

LLAMA: Config = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
# Every size any family asks for, small: hidden 64, 4 layers, 4 heads.
SMALL: Config = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
    "head_dim": 16, "intermediate_size": 96, "max_position_embeddings": 512, "sliding_window": 128, "attention_chunk_size": 128,
    "num_experts": 8, "num_local_experts": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "n_shared_experts": 1, "shared_expert_intermediate_size": 32, "intermediate_size_mlp": 128, "ff_intermediate_size": 96,
    "ffn_dim": 96, "n_inner": 96, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "index_n_heads": 2, "index_head_dim": 8, "index_topk": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "hybrid_override_pattern": "M-*E", "mamba_num_heads": 4, "mamba_head_dim": 16,
    "ssm_state_size": 16, "n_groups": 2, "conv_kernel": 4, "moe_shared_expert_intermediate_size": 32, "multi_query_group_num": 2,
    "kv_channels": 16, "ffn_hidden_size": 96,
}  # fmt: skip


def small(model_type: str, **changes: Any) -> Config:
    return {**SMALL, "model_type": model_type, **changes}


def windows(llm: LLM) -> list[int | None]:
    return [layer.mixer.window for layer in llm.layers if isinstance(layer.mixer, Attention)]


@pytest.mark.parametrize("model_type", sorted(KNOWN))
def test_every_family_is_read_and_adds_up(model_type: str) -> None:
    llm = llm_from_config(small(model_type))
    layers = sum(layer.parameters(llm.hidden_size) for layer in llm.layers)
    heads = 1 if llm.tied_embeddings else 2
    assert llm.parameters == layers + heads * 6400 + llm.extra_parameters
    assert 0 < llm.active_parameters <= llm.parameters
    assert len(llm.layers) == 4


def test_llama_by_hand() -> None:
    llm = llm_from_config(LLAMA)
    attention, ffn = 2 * 4096 * 4096 + 2 * 4096 * 1024, 3 * 4096 * 14336
    assert llm.parameters == 32 * (attention + ffn + 2 * 4096) + 2 * 128256 * 4096 + 4096 == 8_030_261_248
    assert (llm.dtype, llm.kv_dtype, llm.max_context) == ("bf16", "bf16", 131072)


def test_biases_norms_and_sinks_of_gpt_oss_by_hand() -> None:
    llm = llm_from_config(small("gpt_oss"))
    attention = 64 * 64 * 2 + 2 * 64 * 32 + (64 + 32 + 32) + 64 + 4  # weights, biases of q, k, v, bias of o, one sink per head
    experts = 8 * 64 + 8 + 8 * (3 * 64 * 96 + 2 * 96 + 64)  # router and its bias; gate, up, down and their biases
    assert llm.layers[0].parameters(64) == attention + experts + 2 * 64  # and two norms
    assert windows(llm) == [128, None, 128, None]


def test_latent_attention_by_hand() -> None:
    llm = llm_from_config(small("deepseek_v3", first_k_dense_replace=1))
    mixer = llm.layers[0].mixer
    assert isinstance(mixer, LatentAttention)
    query = 64 * 24 + 24 * 4 * 12
    latent = 64 * (16 + 4) + 16 * 4 * (8 + 8)
    assert mixer.matrix_parameters(64) == query + latent + 4 * 8 * 64
    assert mixer.vector_parameters(64) == 24 + 16
    assert [type(layer.ffn) for layer in llm.layers] == [DenseFfn, MoeFfn, MoeFfn, MoeFfn]


def test_an_indexer_is_counted_and_may_be_shared() -> None:
    types_of_layers = ["full", "full", "shared", "shared"]
    plain, sparse = llm_from_config(small("deepseek_v3")), llm_from_config(small("glm_moe_dsa", indexer_types=types_of_layers))
    indexer = 24 * 2 * 8 + 64 * 8 + 64 * 2 + 2 * 8  # queries from their latent, keys, head weights, the keys' layer norm
    assert sparse.parameters == plain.parameters + 2 * indexer
    assert {layer.mixer.index_top_k for layer in sparse.layers if isinstance(layer.mixer, LatentAttention)} == {64}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (small("llama"), [None] * 4),
        (small("mistral"), [128] * 4),
        (small("mistral", sliding_window=None), [None] * 4),
        (small("qwen2"), [None] * 4),
        (small("qwen2", use_sliding_window=True, max_window_layers=3), [None, None, None, 128]),
        (small("gemma2"), [128, None, 128, None]),
        (small("gemma3_text"), [128] * 4),
        (small("gemma3_text", sliding_window_pattern=2), [128, None, 128, None]),
        (small("gemma3_text", layer_types=["full_attention"] * 3 + ["sliding_attention"]), [None, None, None, 128]),
        (small("cohere2"), [128, 128, 128, None]),
        (small("exaone4", sliding_window_pattern="LG"), [128, None, 128, None]),
        (small("exaone4", sliding_window=None), [None] * 4),
        (small("llama4_text"), [128, 128, 128, None]),
        (small("llama4_text", no_rope_layers=[0, 1, 1, 1]), [None, 128, 128, 128]),
    ],
)
def test_windows_follow_the_family_and_the_config(config: Config, expected: list[int | None]) -> None:
    assert windows(llm_from_config(config)) == expected


@pytest.mark.parametrize(
    ("config", "sparse"),
    [
        (small("mixtral"), [0, 1, 2, 3]),
        (small("qwen3_moe", decoder_sparse_step=2), [1, 3]),
        (small("qwen3_moe", mlp_only_layers=[0, 2]), [1, 3]),
        (small("llama4_text", interleave_moe_layer_step=2), [1, 3]),
        (small("llama4_text", moe_layers=[2]), [2]),
        (small("deepseek_v2", first_k_dense_replace=3), [3]),
        (small("deepseek_v2", moe_layer_freq=2), [0, 2]),
        (small("glm4_moe", moe_layer_freq=[0, 1, 1, 0]), [1, 2]),
        (small("glm_moe_dsa", mlp_layer_types=["dense", "sparse", "dense", "sparse"]), [1, 3]),
        (small("nemotron_h", hybrid_override_pattern="ME*E"), [1, 3]),
        (small("nemotron_h", hybrid_override_pattern=None, layers_block_type=["mamba", "moe", "attention", "mlp"]), [1]),
    ],
)
def test_experts_stand_where_the_config_puts_them(config: Config, sparse: list[int]) -> None:
    llm = llm_from_config(config)
    assert [index for index, layer in enumerate(llm.layers) if isinstance(layer.ffn, MoeFfn)] == sparse


def test_a_published_gemma_3_config_leaves_sizes_to_their_defaults() -> None:
    # google/gemma-3-4b-it states these four sizes only; arXiv 2503.19786, table 1: 675M embedding, 3,209M other parameters.
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    llm = llm_from_config({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}})
    assert llm.parameters == pytest.approx(3884e6, rel=0.001)
    assert llm.notes == ("text part of a vision-language config",)


def test_a_wrapper_answers_for_what_its_text_part_leaves_out() -> None:
    text = {**LLAMA, "model_type": "qwen3_5_text", **{key: SMALL[key] for key in SMALL if key.startswith("linear_")}}
    del text["tie_word_embeddings"]
    wrapper = {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": True, "quantization_config": {"quant_method": "fp8"}}
    llm = llm_from_config(wrapper)
    assert (llm.tied_embeddings, llm.dtype) == (True, "fp8")


def test_layers_that_predict_ahead_are_left_out_and_said_so() -> None:
    ahead = llm_from_config(small("deepseek_v3", num_nextn_predict_layers=1))
    assert ahead.parameters == llm_from_config(small("deepseek_v3")).parameters
    assert "MTP" in ahead.notes[0]


GROUP = {"targets": ["Linear"]}


@pytest.mark.parametrize(
    ("quantization", "dtype", "kv_dtype"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", "bf16"),
        ({"quant_method": "fbgemm_fp8"}, "fp8", "bf16"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4", "bf16"),
        ({"quant_method": "gptq", "bits": 8}, "int8", "bf16"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", "bf16"),
        ({"quant_method": "mxfp4"}, "mxfp4", "bf16"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "fp8", "fp8"),
        ({"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}, "nvfp4", "fp8"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 8, "type": "float"}}}}, "fp8", "bf16"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 8, "type": "int"}}}}, "int8", "bf16"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
                "kv_cache_scheme": {"num_bits": 8, "type": "float"},
            },
            "nvfp4",
            "fp8",
        ),
    ],
)
def test_storage_is_read_from_the_quantisation(quantization: Config, dtype: str, kv_dtype: str) -> None:
    llm = llm_from_config({**LLAMA, "quantization_config": quantization})
    assert (llm.dtype, llm.kv_dtype) == (dtype, kv_dtype)


def test_ignore_lists_say_what_stays_in_sixteen_bits() -> None:
    def kept(*names: str) -> frozenset[str]:
        quantization = {"quant_method": "fp8", "modules_to_not_convert": list(names)}
        return llm_from_config(small("deepseek_v3", quantization_config=quantization)).high_precision

    assert kept("lm_head", "model.layers.0.input_layernorm", "model.layers.*.mlp.gate") == {"lm_head"}
    assert kept("model.layers.*.self_attn") == {"lm_head", "attention"}
    assert kept(*(f"model.layers.{index}.self_attn.q_proj" for index in range(4))) == {"lm_head", "attention"}
    assert kept("model.layers.3.self_attn.q_proj") == {"lm_head"}  # one layer of four
    assert kept("re:.*shared_experts.*") == {"lm_head", "shared_expert"}
    assert kept("model.layers.0.mlp.gate_proj") == {"lm_head", "dense_layers"}
    assert kept("vision_model.layers.0.self_attn") == {"lm_head"}


def test_mxfp4_of_gpt_oss_covers_the_experts_only() -> None:
    llm = llm_from_config(small("gpt_oss", quantization_config={"quant_method": "mxfp4"}))
    assert llm.low_precision_parameters == 4 * 8 * 3 * 64 * 96


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "config field hidden_size is missing; it must be a whole number from 1 to"),
        ({"hidden_size": -4096}, "config field hidden_size is -4096; allowed: a whole number from 1 to"),
        ({"hidden_size": 0}, "config field hidden_size is 0"),
        ({"hidden_size": float("nan")}, "config field hidden_size is nan"),
        ({"hidden_size": float("inf")}, "config field hidden_size is inf"),
        ({"hidden_size": 4096.5}, "config field hidden_size is 4096.5"),
        ({"hidden_size": True}, "config field hidden_size is True"),
        ({"hidden_size": "4096"}, "config field hidden_size is '4096'"),
        ({"hidden_size": [4096]}, "config field hidden_size is a list of 1"),
        ({"hidden_size": 10**5000}, "config field hidden_size is a whole number of 16610 bits"),
        ({"hidden_size": 4100}, "config field hidden_size is 4100; allowed without head_dim: a multiple of the 32 heads"),
        ({"num_hidden_layers": 10**9}, "config field num_hidden_layers is 1000000000; allowed: a whole number from 1 to 1000"),
        ({"num_key_value_heads": 7}, "config field num_key_value_heads is 7; allowed: a divisor of num_attention_heads, which is 32"),
        ({"vocab_size": {}}, "config field vocab_size is a dict of 0"),
        ({"vocab_size": "x" * 10_000}, "config field vocab_size is 'xxx"),
        ({"tie_word_embeddings": "yes"}, "config field tie_word_embeddings is 'yes'; allowed: true or false"),
        ({"attention_bias": 1}, "config field attention_bias is 1; allowed: true or false"),
        ({"model_type": None}, "config field model_type is missing"),
        ({"model_type": 7}, "config field model_type is 7; allowed: a text"),
        ({"text_config": "llama"}, "config field text_config is a str; allowed: a table"),
        ({"quantization_config": "fp8"}, "config field quantization_config is 'fp8'; allowed: a table"),
        ({"max_position_embeddings": -1}, "config field max_position_embeddings is -1"),
    ],
)
def test_a_bad_field_is_named_with_what_came_and_what_is_allowed(changes: Config, message: str) -> None:
    with pytest.raises(LLMConfigError) as caught:
        llm_from_config({**LLAMA, **changes})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (small("mixtral", num_experts_per_tok=9), "config field num_experts_per_tok is 9; allowed: at most num_local_experts, which is 8"),
        (small("gemma3_text", layer_types=["full_attention"]), "config field layer_types is a list of 1; allowed: a list of 4 words"),
        (small("glm4_moe", moe_layer_freq=[1]), "config field moe_layer_freq is a list of 1; allowed: 4 times 0 or 1"),
        (small("qwen3_moe", mlp_only_layers="all"), "config field mlp_only_layers is 'all'; allowed: a list of layer numbers"),
        (
            small("nemotron_h", num_hidden_layers=5),
            "config field num_hidden_layers is 5; allowed: 4, the length of hybrid_override_pattern",
        ),
        (small("falcon", new_decoder_architecture=True, num_kv_heads=3), "config field num_kv_heads is 3; allowed: a divisor"),
        (small("llama", quantization_config={"quant_method": "compressed-tensors", "config_groups": {"a": 1}}), "a group without weights"),
    ],
)
def test_fields_that_contradict_each_other_are_named(config: Config, message: str) -> None:
    with pytest.raises(LLMConfigError) as caught:
        llm_from_config(config)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (small("mamba"), "architecture 'mamba' cannot be counted yet; we can count: chatglm, cohere"),
        (small("bert"), "architecture 'bert'"),
        (small("llama", is_encoder_decoder=True), "config field is_encoder_decoder is True"),
        (small("gemma3_text", layer_types=["recurrent"] * 4), "config field layer_types has 'recurrent'"),
        (small("nemotron_h", moe_latent_size=16), "config field moe_latent_size is 16 in a 'nemotron_h' config"),
        (small("nemotron_h", hybrid_override_pattern="MX*E"), "hybrid_override_pattern has 'X'"),
        (small("opt", word_embed_proj_dim=32), "a projected embedding"),
        (small("llama", quantization_config={"quant_method": "aqlm"}), "quant_method 'aqlm'"),
        (small("llama", quantization_config={"quant_method": "gptq", "bits": 3}), "3 bits; we can count 4 and 8"),
    ],
)
def test_what_cannot_be_counted_is_named_and_never_guessed(config: Config, message: str) -> None:
    with pytest.raises(UnsupportedLLMError) as caught:
        llm_from_config(config)
    assert message in str(caught.value)


def test_a_config_is_read_from_a_file_a_directory_a_dict_and_an_object(tmp_path: Path) -> None:
    folder = tmp_path / "my-llm"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))

    class LlamaConfig:
        def to_dict(self) -> Config:
            return LLAMA

    sources: list[Any] = [str(folder), folder, folder / "config.json", str(folder / "config.json"), LLAMA, LlamaConfig()]
    llms = [load_llm(source) for source in sources]
    assert {llm.parameters for llm in llms} == {8_030_261_248}
    assert [llm.name for llm in llms] == ["my-llm"] * 4 + ["llama"] * 2


def test_a_quantisation_file_beside_the_config_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    quantization = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quantization))
    assert (load_llm(tmp_path).dtype, load_llm(tmp_path).kv_dtype) == ("fp8", "fp8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b"{'model_type': 'llama'}", "is not JSON"),
        (b"\xff\xfe\x00{", "is not JSON"),
        (b"[1, 2]", "holds a list of 2; allowed: a table"),
        (b"[" * 200_000, "is nested too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "is nested too deeply"),
        (b'{"hidden_size": ' + b"9" * 10_000 + b"}", "is not JSON"),
        (b" " * 10_000_001, "is larger than 10000000 bytes"),
        (b'{"model_type": "llama", "hidden_size": NaN}', "config field hidden_size is nan"),
    ],
)
def test_a_hostile_file_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(LLMConfigError) as caught:
        load_llm(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_without_a_config_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "config.json", Path("/dev/null")):
        with pytest.raises(LLMConfigError, match=r"is not a file; give a config.json"):
            load_llm(path)
    with pytest.raises(LLMConfigError, match=r"is neither a config.json nor a directory that holds one"):
        load_llm(str(tmp_path))


def test_a_hub_id_without_the_hub_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UnknownLLMError, match=r"no LLM 'acme/rocket-1b'.*pip install huggingface_hub, or give a path"):
        load_llm("acme/rocket-1b")


def test_a_hub_id_is_fetched_and_an_offline_hub_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))

    def fetch(hub_id: str, file: str) -> str:
        if hub_id == "acme/offline-1b":
            raise ConnectionError("no route\nto host")
        return str(tmp_path / file)

    hub = types.ModuleType("huggingface_hub")
    monkeypatch.setattr(hub, "hf_hub_download", fetch, raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    llm = load_llm("acme/online-8b")
    assert (llm.name, llm.source) == ("acme/online-8b", "https://huggingface.co/acme/online-8b")
    with pytest.raises(UnknownLLMError, match=r"did not give its config.json \(ConnectionError\); give a path") as caught:
        load_llm("acme/offline-1b")
    assert "\n" not in str(caught.value)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-2, 9) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)
names = st.sampled_from(sorted({*SMALL, "quantization_config", "text_config", "layer_types", "moe_layer_freq", "tie_word_embeddings"}))
methods = st.sampled_from(["fp8", "awq", "gptq", "modelopt", "compressed-tensors", "mxfp4", "bitsandbytes"])
quantisations = st.fixed_dictionaries({"quant_method": methods}, optional={"bits": anything, "config_groups": anything, "ignore": anything})


def answers_or_one_line(config: object) -> None:
    try:
        llm = load_llm(config)  # type: ignore[arg-type]
    except PiePError as error:
        message = str(error)
    else:
        assert_it_adds_up(llm)
        message = ""
    assert "\n" not in message


def assert_it_adds_up(llm: LLM) -> None:
    assert 0 < llm.active_parameters <= llm.parameters
    assert llm.high_precision <= HIGH_PRECISION_PARTS
    assert llm.weight_bytes("fp8") <= llm.weight_bytes("bf16")
    assert hash(llm) == hash(llm)


@given(st.dictionaries(st.text(max_size=8) | names, anything, max_size=12))
def test_random_tables_never_raise_anything_but_our_errors(config: Config) -> None:
    answers_or_one_line(config)


@settings(max_examples=400)
@given(st.sampled_from(sorted(KNOWN)), st.dictionaries(names, anything, max_size=3), st.none() | quantisations)
def test_spoiled_configs_never_raise_anything_but_our_errors(model_type: str, changes: Config, quantization: Config | None) -> None:
    answers_or_one_line({**small(model_type), "quantization_config": quantization, **changes})


@given(st.integers(1, 8), st.integers(1, 4), st.sampled_from(["llama", "qwen3", "gemma2", "mixtral", "deepseek_v3", "gpt_oss"]))
def test_more_layers_are_more_parameters_and_more_cache(layers: int, more: int, model_type: str) -> None:
    few, many = (llm_from_config(small(model_type, num_hidden_layers=count)) for count in (layers, layers + more))
    assert many.parameters > few.parameters
    assert many.kv_bytes_per_token() > few.kv_bytes_per_token()


def test_families_are_told_once() -> None:
    assert not STACKS.keys() & READERS.keys()
