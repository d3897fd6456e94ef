"""Prompts: what a server is asked, from the files people have.

- Alpaca: a JSON list (or JSON lines) of objects with `instruction` and, where it is not empty, `input` below it;
- GSM8K: JSON lines of objects with `question`;
- any JSON lines of objects with `prompt`.

What a file says about the right answer is left alone: a benchmark of energy does not mark answers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from pie_p.errors import InputError
from pie_p.quantities import as_int, shown
from pie_p.storage import read_whole, sha256

SYNTHETIC: Final = "synthetic"  # name of the set that ships
FORMS: Final = {"instruction": "alpaca", "question": "gsm8k", "prompt": "prompt"}  # field that tells the form -> its name
MOST_BYTES: Final = 1 << 30  # Alpaca has 23 MB, GSM8K 4 MB
MOST_CHARACTERS: Final = 1 << 20  # of one prompt


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that gave no prompt, and why."""

    line: int  # counted from 1; in a JSON list the entry's number
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Texts in the order of their file, and what was left out of it."""

    name: str  # of the file, without its folder
    form: str  # "alpaca", "gsm8k", "prompt", or several joined by "+"
    texts: tuple[str, ...]
    bad_lines: tuple[BadLine, ...] = ()

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def sha256(self) -> str:
        """Hash of the texts in their order: two runs with the same one were asked the same."""
        return sha256(json.dumps(self.texts).encode())

    def chosen(self, count: int | None, *, seed: int) -> Prompts:
        """`count` of the prompts, drawn by `seed` without repeating; all of them, in their order, where `count` is None.

        >>> Prompts(name="own", form="prompt", texts=("a", "b", "c")).chosen(2, seed=0).texts
        ('b', 'c')
        """
        if count is None:
            return self
        most = as_int("number of prompts", count, most=max(len(self), 1))
        picked = sorted(random.Random(seed).sample(range(len(self)), most))
        return Prompts(name=self.name, form=self.form, texts=tuple(self.texts[i] for i in picked), bad_lines=self.bad_lines)


def load_prompts(source: str | Path | Sequence[str] = SYNTHETIC) -> Prompts:
    """Prompts of a file, of a list of texts, or the set that ships.

    Args:
        source: a path; `"synthetic"`; or texts.

    Raises:
        InputError: no such file, not JSON at all, or not one prompt in it.

    >>> len(load_prompts()), load_prompts().bad_lines
    (40, ())
    """
    if not isinstance(source, (str, Path)):
        name, entries = "texts", [(number, {"prompt": text}) for number, text in enumerate(source, start=1)]
        return _prompts(name, iter(entries))
    if str(source) == SYNTHETIC:
        text = (files("pie_p") / "data" / "prompts.jsonl").read_text(encoding="utf-8")
        return _prompts(SYNTHETIC, _lines(text))
    content = read_whole(Path(source), what="file of prompts", most=MOST_BYTES, error=InputError)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    return _prompts(Path(source).name, _entries(text, str(source)))


def _entries(text: str, where: str) -> Iterator[tuple[int, Any]]:
    """Numbered entries of a JSON list, or of JSON lines."""
    if not text.lstrip().startswith("["):
        return _lines(text)
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error)[:120]
        raise InputError(f"{where} begins like a JSON list and is none: {reason}; give a whole list, or one object a line") from None
    return iter(enumerate(listed, start=1))


def _lines(text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, BadLine(number, f"not JSON: {str(error)[:80]}")


def _prompts(name: str, entries: Iterator[tuple[int, Any]]) -> Prompts:
    texts, bad, forms = [], [], []
    for number, entry in entries:
        found = entry if isinstance(entry, BadLine) else _text_of(number, entry)
        if isinstance(found, BadLine):
            bad.append(found)
        else:
            forms.append(found[0])
            texts.append(found[1])
    if not texts:
        first = f"; the first of {len(bad)} bad lines: {bad[0]}" if bad else ", it is empty"
        raise InputError(f"no prompt in {name}{first}. Each entry is an object with instruction (Alpaca), question (GSM8K) or prompt")
    return Prompts(name=name, form="+".join(sorted(set(forms))), texts=tuple(texts), bad_lines=tuple(bad))


def _text_of(number: int, entry: Any) -> tuple[str, str] | BadLine:
    """Form and text of one entry."""
    if not isinstance(entry, Mapping):
        return BadLine(number, f"{shown(entry)} is not an object")
    field = next((name for name in FORMS if name in entry), None)
    if field is None:
        return BadLine(number, f"none of {', '.join(FORMS)} among its fields ({', '.join(map(str, entry))[:80] or 'it has none'})")
    parts = [entry[field], entry.get("input") or ""] if field == "instruction" else [entry[field]]
    for part in parts:
        if not isinstance(part, str):
            return BadLine(number, f"{field} = {shown(part)} is not a text")
    text = "\n\n".join(part.strip() for part in parts if part.strip())
    if not text:
        return BadLine(number, f"{field} is empty")
    if len(text) > MOST_CHARACTERS:
        return BadLine(number, f"{field} has {len(text)} characters, at most {MOST_CHARACTERS} are sent")
    try:
        text.encode()
    except UnicodeEncodeError:
        return BadLine(number, f"{field} holds half a letter (a lone surrogate), which no server can be sent")
    return FORMS[field], text
