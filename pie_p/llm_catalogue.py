"""The bundled LLMs: names in every usual spelling, and shapes read from `data/llms/*.toml` one entry at a time.

An entry is a table named by the catalogue id; `docs/how-to/add-an-llm.md` explains its fields. Files are scanned for names with one regular
expression and only the entry that is asked for is parsed, so that a cold start does not pay for a hundred others.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final

from pie_p.errors import LLMConfigError, UnknownLLMError, did_you_mean
from pie_p.llm_shape import LLM
from pie_p.shapes import Attention, DeltaNet, DenseFfn, Ffn, LatentAttention, Layer, Mixer, MoeFfn, StateSpace
from pie_p.units import Dtype

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOW_TO: Final = "Add one: docs/how-to/add-an-llm.md"
HEADER: Final = re.compile(r'^\["([^"\]]+)"\]\nids = \[([^\]]*)\]\n', re.MULTILINE)

# Words in a checkpoint's name that say how its weights are stored, and those that change training but not the shape.
DTYPE_WORDS: Final[dict[str, Dtype]] = {
    "fp8": "fp8", "awq": "int4", "gptq": "int4", "int4": "int4", "w4a16": "int4", "4bit": "int4", "int8": "int8", "w8a8": "int8",
    "8bit": "int8", "mxfp4": "mxfp4", "nvfp4": "nvfp4", "fp4": "nvfp4", "bf16": "bf16", "fp16": "fp16",
}  # fmt: skip
METHOD_WORDS: Final = frozenset({"awq", "gptq"})  # mostly 4 bits, but a width in the name counts first: GPTQ-Int8
STORAGE_WORDS: Final = frozenset({*DTYPE_WORDS, "dynamic", "static", "pertensor", "quantized", "kv", "bnb", "mlx"})
TUNING_WORDS: Final = frozenset({"instruct", "it", "chat", "base", "hf", "thinking", "reasoning", "pt", "preview", "original", "text"})
DATE: Final = re.compile(r"\d{4}|\d{6}")
VERSION: Final = re.compile(r"v0\.\d")

MIXERS: Final[dict[str, type[Mixer]]] = {
    "attention": Attention,
    "latent_attention": LatentAttention,
    "state_space": StateSpace,
    "delta_net": DeltaNet,
}
FFNS: Final[dict[str, type[Ffn]]] = {"dense": DenseFfn, "experts": MoeFfn}


@cache
def _texts() -> tuple[str, ...]:
    folder = files("pie_p") / "data" / "llms"
    found = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=lambda entry: entry.name)
    return tuple(entry.read_text(encoding="utf-8") for entry in found)


@cache
def _index() -> dict[str, tuple[str, str]]:
    """Every spelling that is written down -> (catalogue id, TOML text of its entry)."""
    spellings: dict[str, tuple[str, str]] = {}
    for text in _texts():
        heads = list(HEADER.finditer(text))
        for head, following in zip(heads, [*heads[1:], None], strict=True):
            section = text[head.start() : following.start() if following else len(text)]
            for spelling in (head[1], *re.findall(r'"([^"]+)"', head[2])):
                spellings[_key(spelling)] = (head[1], section)
    return spellings


@cache
def llm_names() -> tuple[str, ...]:
    """Catalogue ids of all bundled LLMs, sorted.

    >>> "llama-3.1-70b" in llm_names()
    True
    """
    return tuple(sorted({name for name, _ in _index().values()}))


def _plain(name: str) -> str:
    """Lower case, without the organisation and its prefix on the name."""
    own = name.strip().lower().rsplit("/", 1)[-1].replace("_", "-").replace("quantized.", "")
    return re.sub(r"^(meta|nvidia)-(?=llama|nemotron)", "", own)


def _key(spelling: str) -> str:
    """What spellings are compared by: dashes do not matter, so `llama3.1-8b` is `llama-3.1-8b`."""
    return _plain(spelling).replace("-", "")


def _spellings(name: str) -> Iterator[str]:
    """The name, then the name with fewer and fewer words that do not change the shape."""
    words = _plain(name).split("-")
    yield "-".join(words)
    words = [word for word in words if word not in STORAGE_WORDS]
    yield "-".join(words)
    for dropped in (TUNING_WORDS.__contains__, DATE.fullmatch, VERSION.fullmatch):
        words = words[:1] + [word for word in words[1:] if not dropped(word)]
        yield "-".join(words)


@lru_cache(maxsize=4096)
def find_llm(name: str) -> LLM | None:
    """The bundled LLM of that name, or None.

    >>> find_llm("Qwen/Qwen3-30B-A3B-Thinking-2507-FP8").dtype
    'fp8'
    """
    for spelling in _spellings(name):
        entry = _index().get(_key(spelling))
        if entry is not None:
            return _stored_as(_reaching(_load_entry(*entry), name), name)
    return None


def unknown_llm(name: str, *, why: str = "") -> UnknownLLMError:
    """The error for a name that is neither bundled nor a file nor on the hub."""
    spelling = list(_spellings(name[:200]))[-1]
    near = did_you_mean(spelling, llm_names())
    if "gguf" in name.lower():
        why = f" A GGUF file is not read: name the LLM, and its format with dtype, as int4 for Q4.{why}"
    return UnknownLLMError(f"no LLM {name[:200]!r} in the catalogue and no config.json at that path.{near}{why} {HOW_TO}")


def _reaching(llm: LLM, name: str) -> LLM:
    """The LLM with the context length of the release that its name says, where releases of one shape differ in it."""
    lengths = _entry_table(llm.name).get("max_context_if", {})
    said = next((lengths[word] for word in _plain(name).split("-") if word in lengths), llm.max_context)
    return llm if said == llm.max_context else replace(llm, max_context=said)


def _stored_as(llm: LLM, name: str) -> LLM:
    """The LLM with the dtype that its checkpoint's name says, if it says one that the catalogue id does not."""
    said = sorted((word in METHOD_WORDS, DTYPE_WORDS[word]) for word in _plain(name).split("-") if word in DTYPE_WORDS)
    if not said or said[0][1] == llm.dtype:
        return llm
    dtype = said[0][1]
    kept = frozenset(_entry_table(llm.name).get("high_precision_if", {}).get(dtype, llm.high_precision))
    return replace(llm, dtype=dtype, high_precision=kept, notes=(*llm.notes, f"stored as {dtype}, as its name says"))


@cache
def _entry_table(catalogue_id: str) -> dict[str, Any]:
    section = _index()[_key(catalogue_id)][1]
    table: dict[str, Any] = tomllib.loads(section)[catalogue_id]
    return table


def published_parameters(catalogue_id: str) -> Mapping[str, Any]:
    """What the makers publish about an LLM's size: `total`, `active`, `source`, and what their count leaves out or adds.

    >>> published_parameters("llama-3.1-8b")["total"]
    8030261248
    """
    found: Mapping[str, Any] = _entry_table(catalogue_id)["published"]
    return found


@cache
def _load_entry(catalogue_id: str, section: str) -> LLM:
    return llm_from_entry(catalogue_id, tomllib.loads(section)[catalogue_id])


def llm_from_entry(name: str, entry: Mapping[str, Any]) -> LLM:
    """An LLM from one table of the catalogue."""
    known = {"hidden_size", "vocab_size", "tied_embeddings", "extra_parameters", "dtype", "kv_dtype", "max_context", "source"}
    table = dict(entry)
    hidden_size = table["hidden_size"]
    blocks = {key: _layer(block, hidden_size) for key, block in table.pop("blocks").items()}
    values: dict[str, Any] = {key: table[key] for key in known & table.keys()}
    values.setdefault("extra_parameters", hidden_size)  # the final norm
    if "high_precision" in table:
        values["high_precision"] = frozenset(table["high_precision"])
    return LLM(name=name, layers=expand_pattern(table["layers"], blocks), notes=tuple(table.get("notes", ())), **values)


def _layer(block: Mapping[str, Any], hidden_size: int) -> Layer:
    mixers = [MIXERS[key](**block[key]) for key in MIXERS if key in block]
    ffns = [FFNS[key](**block[key]) for key in FFNS if key in block]
    norms = block.get("norms", 2)  # vectors of hidden_size, biases included
    mixer, ffn = (mixers[0] if mixers else None), (ffns[0] if ffns else None)
    return Layer(mixer=mixer, ffn=ffn, norm_width=norms * hidden_size, parallel=block.get("parallel", False))


def expand_pattern(pattern: str, blocks: Mapping[str, Layer]) -> tuple[Layer, ...]:
    """Layers in order from a pattern of block names, repeat counts and brackets.

    >>> dense = Layer(mixer=None, ffn=DenseFfn(intermediate_size=8))
    >>> scan = Layer(mixer=Attention(heads=1, kv_heads=1, head_dim=8), ffn=None)
    >>> [layer.ffn is None for layer in expand_pattern("2*(scan dense) scan", {"scan": scan, "dense": dense})]
    [True, False, True, False, True]
    """
    stack: list[tuple[int, list[Layer]]] = [(1, [])]
    repeat = 1
    for token in re.findall(r"\d+\*|[()]|\w+|\S", pattern):
        if token.endswith("*") and token != "*":
            repeat = int(token[:-1])
        elif token == "(":
            stack.append((repeat, []))
            repeat = 1
        elif token == ")" and len(stack) > 1:
            times, inner = stack.pop()
            stack[-1][1].extend(inner * times)
        elif token in blocks:
            stack[-1][1].extend([blocks[token]] * repeat)
            repeat = 1
        else:
            raise LLMConfigError(f"layer pattern has {token!r}; allowed: {', '.join(blocks)}, counts like 3* and brackets")
    return tuple(stack[0][1])
