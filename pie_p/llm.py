"""LLM: the shape of a language model, from the bundled catalogue or a Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping

from pie_p.llm_catalogue import find_llm, llm_names, unknown_llm
from pie_p.llm_shape import LLM

__all__ = ["LLM", "llm_names", "load_llm"]


def load_llm(llm: str | LLM | Mapping[str, object]) -> LLM:
    """An LLM from whatever names it."""
    if isinstance(llm, LLM):
        return llm
    if isinstance(llm, str):
        found = find_llm(llm)
        if found is not None:
            return found
    raise unknown_llm(str(llm))
