"""How a checkpoint stores its weights, from the `quantization_config` of its config or from `hf_quant_config.json`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pie_p.errors import LLMConfigError, UnsupportedLLMError
from pie_p.hf_fields import ConfigFields
from pie_p.units import Dtype

IGNORED_KEYS: Final = ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "llm_int8_skip_modules")
ATTENTION: Final = re.compile(r"attn\b|attention\b|attn\*|\b(q|q_b|k|v|kv_b|o|qkv)_proj\b")
SHARED: Final = re.compile(r"shared_expert")
DENSE: Final = re.compile(r"(mlp|feed_forward)(\.(gate_proj|up_proj|down_proj|gate_up_proj)|\*?$|\.\*$)")


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Formats of weights and KV cache, and the parts that stay in 16 bits."""

    dtype: Dtype = "bf16"
    kv_dtype: Dtype = "bf16"
    high_precision: frozenset[str] = frozenset({"lm_head"})


def read_storage(fields: ConfigFields) -> Storage:
    """What the config says about storage; bf16 where it says nothing.

    >>> config = {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}}
    >>> read_storage(ConfigFields(config)).dtype
    'fp8'
    """
    table = fields.table("quantization_config")
    plain = fields.text("torch_dtype", fields.text("dtype")).rpartition(".")[2]
    if table is None:
        return Storage(dtype="fp16" if plain == "float16" else "bf16")
    quant = ConfigFields(table)
    dtype = _weight_dtype(quant)
    kept = {"lm_head"}
    if dtype == "mxfp4" and quant.text("quant_method").lower() == "mxfp4":
        kept.add("attention")  # gpt-oss stores its experts in MXFP4 and everything else in bf16
    kept |= _kept_parts(_ignored(quant), fields.count("num_hidden_layers", 1))
    return Storage(dtype=dtype, kv_dtype=_kv_dtype(quant), high_precision=frozenset(kept))


def _weight_dtype(quant: ConfigFields) -> Dtype:
    method = quant.text("quant_method").lower().replace("_", "-")
    if not method and quant.has("quant_algo"):
        method = "modelopt"
    if method in ("fp8", "fbgemm-fp8"):
        return "fp8"
    if method == "mxfp4":
        return "mxfp4"
    if method in ("awq", "gptq", "auto-round", "awq-marlin", "gptq-marlin"):
        return _whole_bits(quant.count("bits", quant.count("w_bit", 4)), method)
    if method == "bitsandbytes":
        return "int4" if quant.flag("load_in_4bit", False) or quant.flag("_load_in_4bit", False) else "int8"
    if method in ("modelopt", "modelopt-fp4"):
        return _modelopt_dtype(quant)
    if method == "compressed-tensors":
        return _group_dtype(quant, method)
    known = "fp8, mxfp4, awq, gptq, bitsandbytes, modelopt, compressed-tensors"
    raise UnsupportedLLMError(f"quantization_config has quant_method {method!r:.40}; we can count: {known}")


def _modelopt_dtype(quant: ConfigFields) -> Dtype:
    algorithm = quant.text("quant_algo").upper()
    if algorithm.startswith("FP8"):
        return "fp8"
    if algorithm.startswith("NVFP4"):
        return "nvfp4"
    if algorithm in ("W4A16_AWQ", "INT4_AWQ", "W4A8_AWQ"):
        return "int4"
    if quant.has("config_groups"):
        return _group_dtype(quant, "modelopt")
    raise UnsupportedLLMError(f"quantization_config has quant_algo {algorithm!r:.40}; we can count: FP8, NVFP4, W4A16_AWQ, W4A8_AWQ")


def _group_dtype(quant: ConfigFields, method: str) -> Dtype:
    """Format of the first group's weights; a checkpoint that mixes formats is refused."""
    found: set[Dtype] = set()
    for group in (quant.table("config_groups") or {}).values():
        weights = ConfigFields(group).table("weights") if isinstance(group, Mapping) else None
        if weights is None:
            raise LLMConfigError("quantization_config has a group without weights; allowed: num_bits, type and group_size in each")
        one = ConfigFields(weights)
        bits, group_size = one.count("num_bits"), one.optional_count("group_size", least=-1)
        if one.text("type", "int") != "float":
            found.add(_whole_bits(bits, method))
        elif bits == 8:
            found.add("fp8")
        elif bits == 4:
            found.add("mxfp4" if group_size == 32 else "nvfp4")
    if len(found) != 1:
        raise UnsupportedLLMError(f"quantization_config of {method} has weights of {len(found)} formats; we can count one")
    return found.pop()


def _whole_bits(bits: int, method: str) -> Dtype:
    if bits not in (4, 8):
        raise UnsupportedLLMError(f"quantization_config of {method} has {bits} bits; we can count 4 and 8")
    return "int4" if bits == 4 else "int8"


def _kv_dtype(quant: ConfigFields) -> Dtype:
    named = quant.raw("kv_cache_scheme")  # a table in compressed-tensors, a name in some of modelopt's
    algorithm = quant.text("kv_cache_quant_algo", named if isinstance(named, str) else "").upper()
    scheme = quant.table("kv_cache_scheme") if not isinstance(named, str) else None
    if algorithm.startswith("NVFP4"):
        return "nvfp4"
    if algorithm == "FP8" or (scheme is not None and scheme.get("num_bits") == 8 and scheme.get("type") == "float"):
        return "fp8"
    if algorithm == "INT8" or (scheme is not None and scheme.get("num_bits") == 8):
        return "int8"
    return "bf16"


def _ignored(quant: ConfigFields) -> list[str]:
    lists = [quant.raw(key) for key in IGNORED_KEYS]
    return [name for names in lists if isinstance(names, list | tuple) for name in names if isinstance(name, str)]


def _kept_parts(ignored: Iterable[str], layers: int) -> set[str]:
    """Parts of the stack that an ignore list leaves in 16 bits: by a pattern, or by name in at least half of the layers."""
    reached: dict[str, set[int]] = {"attention": set(), "shared_expert": set(), "dense_layers": set()}
    everywhere = set(range(layers))
    for name in ignored:
        part = _part_of(name)
        if part is None or any(word in name for word in ("vision", "visual", "norm", "indexer")):
            continue
        number = re.search(r"layers?\.(\d{1,4})\b", name)
        reached[part] |= {int(number[1])} if number else everywhere
    kept = {part for part in ("attention", "shared_expert") if 2 * len(reached[part]) >= max(1, layers)}
    return kept | ({"dense_layers"} if reached["dense_layers"] else set())


def _part_of(name: str) -> str | None:
    if SHARED.search(name):
        return None if "shared_expert_gate" in name else "shared_expert"
    if ATTENTION.search(name):
        return "attention"
    return "dense_layers" if DENSE.search(name) else None
