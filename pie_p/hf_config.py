"""An LLM from a Hugging Face config: which family reads it, what its weights are stored in, and what a vision-language config hides.

Every field is checked where it is read. What cannot be counted is an `UnsupportedLLMError` that names it, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pie_p.errors import LLMConfigError, UnknownLLMError, UnsupportedLLMError
from pie_p.hf_families import STACKS
from pie_p.hf_fields import ConfigFields, read_json
from pie_p.hf_hybrids import READERS
from pie_p.hf_quantisation import read_storage
from pie_p.hf_stacks import Body, WithDefaults, read_stack
from pie_p.llm_shape import LLM

# Configs that name their text part, or the whole, differently from the family that reads it.
SAME_AS: Final[Mapping[str, str]] = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "mistral3": "mistral",
    "glm4v_text": "glm4",
    "glm4v_moe_text": "glm4_moe",
    "cohere2_vision": "cohere2",
    "exaone4_5_text": "exaone4",
}
KNOWN: Final = frozenset({*STACKS, *READERS, *SAME_AS})


def llm_from_config(config: Mapping[str, object], *, name: str | None = None) -> LLM:
    """The LLM that a `config.json`, already parsed, describes.

    >>> config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    ...           "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}
    >>> llm_from_config(config).parameters  # Llama-3.1-8B
    8030261248
    """
    if not isinstance(config, Mapping):
        raise LLMConfigError(f"a config is a table of fields; got {type(config).__name__}")
    text = config.get("text_config") or config.get("llm_config")
    if text is not None and not isinstance(text, Mapping):
        raise LLMConfigError(f"config field text_config is a {type(text).__name__}; allowed: a table")
    outer = ConfigFields(config)
    family = _family(outer, ConfigFields(text) if text is not None else outer)
    stack = STACKS.get(family)
    inner = WithDefaults.of(config if text is None else text, stack.defaults if stack is not None else None)
    fields = ConfigFields(inner, outer=None if text is None else config)
    body = read_stack(fields, stack) if stack is not None else READERS[family](fields)
    return _assemble(fields, body, name=name or _name_of(outer, family), notes=_notes(config, text is not None))


def _family(outer: ConfigFields, inner: ConfigFields) -> str:
    """The family that reads the config: its text part's `model_type`."""
    outer.refuse("is_encoder_decoder")
    given = inner.text("model_type") or outer.text("model_type")
    if not given:
        raise LLMConfigError("config field model_type is missing; it names the architecture, e.g. llama, qwen3_moe")
    family = SAME_AS.get(given, given)
    if family not in STACKS and family not in READERS:
        raise UnsupportedLLMError(f"architecture {given!r:.60} cannot be counted yet; we can count: {', '.join(sorted(KNOWN))}")
    return family


def _assemble(fields: ConfigFields, body: Body, *, name: str, notes: tuple[str, ...]) -> LLM:
    storage = read_storage(fields)
    return LLM(
        name=name,
        hidden_size=fields.count("hidden_size"),
        vocab_size=fields.count("vocab_size"),
        layers=body.layers,
        tied_embeddings=fields.flag("tie_word_embeddings", body.tied),
        extra_parameters=body.extra_parameters,
        dtype=storage.dtype,
        kv_dtype=storage.kv_dtype,
        high_precision=storage.high_precision,
        max_context=fields.optional_count("max_position_embeddings"),
        notes=(*notes, *body.notes),
        source="config.json",
    )


def _name_of(outer: ConfigFields, family: str) -> str:
    given = outer.raw("_name_or_path")
    return given.strip("/").rpartition("/")[2][:200] if isinstance(given, str) and given.strip("/") else family


def _notes(config: Mapping[str, object], has_text_part: bool) -> tuple[str, ...]:
    notes = []
    if has_text_part or config.get("vision_config") is not None:
        notes.append("text part of a vision-language config")
    if config.get("num_nextn_predict_layers") or config.get("num_mtp_modules") or config.get("use_mtp"):
        notes.append("layers that predict several tokens ahead (MTP) are left out")
    return tuple(notes)


def llm_from_file(path: Path) -> LLM:
    """The LLM of a `config.json`, or of the directory that holds one (with `hf_quant_config.json` beside it where there is one)."""
    file = path / "config.json" if path.is_dir() else path
    config = dict(read_json(file))
    beside = file.parent / "hf_quant_config.json"
    if config.get("quantization_config") is None and beside.is_file():
        config["quantization_config"] = read_json(beside).get("quantization")
    name = file.parent.resolve().name if file.name == "config.json" else file.stem
    return llm_from_config(config, name=name or None)


def fetch_config(hub_id: str) -> Path:
    """The `config.json` of a hub id, through `huggingface_hub` and its cache."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise UnknownLLMError("To read it from the hub: pip install huggingface_hub, or give a path to its config.json.") from None
    try:
        return Path(str(hf_hub_download(hub_id, "config.json")))
    except Exception as error:  # noqa: BLE001 - the hub's own errors: offline, gated, no such repository
        reason = f"The hub did not give its config.json ({type(error).__name__})"
        raise UnknownLLMError(f"{reason}; give a path to a downloaded one.") from None
