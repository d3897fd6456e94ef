"""Reading a Hugging Face config: every field is checked where it is read, and an error names it, what came and what is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pie_p.errors import LLMConfigError, UnsupportedLLMError

MOST_FILE_BYTES: Final = 10_000_000
MOST: Final = 1 << 24  # any field without a tighter bound below
MOST_OF: Final[Mapping[str, int]] = {
    "num_hidden_layers": 1_000,
    "num_attention_heads": 4_096,
    "num_key_value_heads": 4_096,
    "max_position_embeddings": 1_000_000_000,
    "sliding_window": 1_000_000_000,
}
# Other names of the same fields in older configs; the first one is this module's own.
SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
}
MISSING: Final = object()


class ConfigFields:
    """A config's fields behind checked getters; `null` counts as absent.

    >>> ConfigFields({"hidden_size": "4096"}).count("hidden_size")
    Traceback (most recent call last):
    pie_p.errors.LLMConfigError: config field hidden_size is '4096'; allowed: a whole number from 1 to 16777216
    """

    def __init__(self, table: Mapping[str, object], *, outer: Mapping[str, object] | None = None) -> None:
        self._tables = (table,) if outer is None else (table, outer)  # a wrapper's own fields answer for what its text part leaves out

    def raw(self, name: str) -> object:
        """The value under the name or one of its synonyms, or None."""
        for table in self._tables:
            for key in SYNONYMS.get(name, (name,)):
                value = table.get(key)
                if value is not None:
                    return value
        return None

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.raw(name) is not None

    def optional_count(self, name: str, *, least: int = 1) -> int | None:
        """A whole number, or None where the field is absent or null."""
        value = self.raw(name)
        if value is None:
            return None
        most = MOST_OF.get(name, MOST)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise LLMConfigError(f"config field {name} is {_short(value)}; allowed: a whole number from {least} to {most}")
        return value

    def count(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number that must be there unless a default is given."""
        value = self.optional_count(name, least=least)
        if value is not None:
            return value
        if default is None:
            raise LLMConfigError(f"config field {name} is missing; it must be a whole number from {least} to {MOST_OF.get(name, MOST)}")
        return default

    def flag(self, name: str, default: bool) -> bool:
        """True or False."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise LLMConfigError(f"config field {name} is {_short(value)}; allowed: true or false")
        return value

    def text(self, name: str, default: str = "") -> str:
        """A string."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise LLMConfigError(f"config field {name} is {_short(value)}; allowed: a text")
        return value

    def texts(self, name: str, *, length: int, allowed: Mapping[str, object] | frozenset[str]) -> tuple[str, ...] | None:
        """One word per layer, or None where the field is absent."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) != length:
            raise LLMConfigError(f"config field {name} is {_short(value)}; allowed: a list of {length} words, one per layer")
        for word in value:
            if not isinstance(word, str) or word not in allowed:
                raise UnsupportedLLMError(f"config field {name} has {_short(word)}; we can count: {', '.join(sorted(allowed))}")
        return tuple(value)

    def numbers(self, name: str) -> frozenset[int]:
        """A list of layer numbers; empty where the field is absent."""
        value = self.raw(name)
        if value is None:
            return frozenset()
        if not isinstance(value, list | tuple) or not all(isinstance(item, int) and 0 <= item < MOST for item in value):
            raise LLMConfigError(f"config field {name} is {_short(value)}; allowed: a list of layer numbers")
        return frozenset(value)

    def table(self, name: str) -> Mapping[str, Any] | None:
        """A nested table, or None where the field is absent."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise LLMConfigError(f"config field {name} is {_short(value)}; allowed: a table")
        return value

    def refuse(self, *names: str) -> None:
        """Fields that would change the count in a way we do not know must be absent, null, false or 0."""
        for name in names:
            if self.raw(name) not in (None, False, 0):
                kind = _short(self.raw("model_type"))
                raise UnsupportedLLMError(f"config field {name} is {_short(self.raw(name))} in a {kind} config; we cannot count that")


def _short(value: object) -> str:
    """The value as it came, cut to one readable line."""
    if isinstance(value, list | tuple | dict | set | frozenset):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**18:
        return f"a whole number of {value.bit_length()} bits"
    return re.sub(r"\s+", " ", repr(value))[:60]


def read_json(path: Path) -> Mapping[str, object]:
    """A JSON file as a table, with limits on size and nesting."""
    if not path.is_file():
        raise LLMConfigError(f"{str(path)!r:.200} is not a file; give a config.json or the directory that holds one")
    try:
        with path.open("rb") as stream:
            content = stream.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise LLMConfigError(f"{str(path)!r:.200} cannot be read: {error.strerror}") from None
    if len(content) > MOST_FILE_BYTES:
        raise LLMConfigError(f"{str(path)!r:.200} is larger than {MOST_FILE_BYTES} bytes; a config.json is a few kilobytes")
    try:
        table = json.loads(content)
    except RecursionError:
        raise LLMConfigError(f"{str(path)!r:.200} is nested too deeply to be a config.json") from None
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise LLMConfigError(f"{str(path)!r:.200} is not JSON: {str(error).splitlines()[0]:.120}") from None
    if not isinstance(table, dict):
        raise LLMConfigError(f"{str(path)!r:.200} holds {_short(table)}; allowed: a table of config fields")
    return table
