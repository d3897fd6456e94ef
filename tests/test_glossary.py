"""The glossary is the naming law: public names and public units stand in it."""

from __future__ import annotations

import re
from pathlib import Path

import pie_p
from pie_p.errors import PiePError

GLOSSARY = (Path(__file__).parent.parent / "docs" / "glossary.md").read_text(encoding="utf-8")


def words() -> set[str]:
    """Every word in backticks."""
    return {word for span in re.findall(r"`([^`]+)`", GLOSSARY) for word in re.findall(r"\w+", span)}


def descendants(parent: type) -> set[type]:
    return {parent} | {each for child in parent.__subclasses__() if child.__module__ == parent.__module__ for each in descendants(child)}


def test_every_public_name_is_defined() -> None:
    missing = {name for name in pie_p.__all__ if not name.startswith("__")} - words()
    assert not missing, f"define in docs/glossary.md: {sorted(missing)}"


def test_every_error_is_named() -> None:
    missing = {error.__name__ for error in descendants(PiePError)} - words()
    assert not missing, f"name in docs/glossary.md: {sorted(missing)}"


def test_every_attribute_of_the_answer_with_a_unit_is_defined() -> None:
    names = {name for name in pie_p.Prediction.__dataclass_fields__ if re.search(r"_(j|s|w|bytes)$", name)}
    missing = names - words()
    assert not missing, f"define in docs/glossary.md: {sorted(missing)}"


def test_no_term_is_defined_twice() -> None:
    terms = re.findall(r"^\| (`\w+`|[a-z ]+) \|", GLOSSARY, flags=re.MULTILINE)
    heads = {"name", "term"}
    assert sorted(set(terms) - heads) == sorted(term for term in terms if term not in heads)
