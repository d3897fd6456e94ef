"""LLM: the shape of a language model, from the bundled catalogue or a Hugging Face `config.json`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from pie_p.errors import LLMConfigError, UnknownLLMError
from pie_p.llm_catalogue import find_llm, llm_names, published_parameters, unknown_llm
from pie_p.llm_shape import LLM

__all__ = ["LLM", "LLMSource", "llm_names", "load_llm", "published_parameters"]

HUB_ID: Final = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")


@runtime_checkable
class HasConfig(Protocol):
    """A configuration object of `transformers`, by what it can do."""

    def to_dict(self) -> dict[str, object]: ...


LLMSource = str | LLM | Mapping[str, object] | os.PathLike[str] | HasConfig


def load_llm(llm: LLMSource) -> LLM:
    """An LLM from whatever names it.

    Args:
        llm: an `LLM`; a catalogue name in either spelling; a path to a `config.json` or to the directory that holds one; a config as a
            dict or as a `transformers` object; a Hugging Face hub id, fetched when `huggingface_hub` is installed and online.

    Raises:
        UnknownLLMError: no such name; the text suggests near ones.
        UnsupportedLLMError: an architecture that cannot be counted.
        LLMConfigError: a config with missing, contradictory or absurd fields.

    >>> load_llm("meta-llama/Llama-3.1-70B-Instruct").parameters
    70553706496
    >>> load_llm("qwen3-30b-a3b").active_parameters
    3353032704
    """
    if isinstance(llm, LLM):
        return llm
    if isinstance(llm, str):
        return _from_name(llm)
    from pie_p.hf_config import llm_from_config, llm_from_file  # not at the top: a catalogue name needs none of its modules

    if isinstance(llm, os.PathLike):
        return llm_from_file(Path(os.fspath(llm)))
    if isinstance(llm, Mapping):
        return llm_from_config(llm)
    if isinstance(llm, HasConfig) and not isinstance(llm, type):
        return llm_from_config(llm.to_dict())
    kind = type(llm).__name__
    raise LLMConfigError(f"llm is a {kind}; allowed: a name, a path, a config as a dict or a transformers object, or an LLM")


def _from_name(name: str) -> LLM:
    if not name.strip() or "\0" in name or len(name) > 4096:
        raise unknown_llm(name.replace("\0", "?")[:60])
    path = Path(name)
    if _holds_config(path):
        return load_llm(path)
    found = find_llm(name) if len(name) <= 200 else None
    if found is not None:
        return found
    if path.suffix == ".json" or path.is_absolute() or name.startswith("."):
        raise LLMConfigError(f"{name!r:.200} is neither a config.json nor a directory that holds one")
    if HUB_ID.fullmatch(name):
        return _from_hub(name)
    raise unknown_llm(name)


def _holds_config(path: Path) -> bool:
    try:
        return path.is_file() or (path / "config.json").is_file()
    except OSError:  # a name too long for a file, or a directory we may not look into
        return False


@cache
def _from_hub(hub_id: str) -> LLM:
    """The LLM of a hub id, whose config.json is fetched once and kept by `huggingface_hub`."""
    from pie_p.hf_config import fetch_config, llm_from_file

    try:
        path = fetch_config(hub_id)
    except UnknownLLMError as error:
        raise unknown_llm(hub_id, why=f" {error}") from None
    return replace(llm_from_file(path), name=hub_id, source=f"https://huggingface.co/{hub_id}")
