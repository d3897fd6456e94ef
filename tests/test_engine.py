"""Engines by name and version: a bare name is the newest known, an unknown one is refused with what is known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p.engine import ENGINES, Engine, load_engine
from pie_p.errors import PiePError, UnknownNameError


def engine_or_refusal(asked: object) -> str:
    """The engine's name and version, or the text that refuses it; any other error fails the test."""
    try:
        found = load_engine(asked)  # type: ignore[arg-type]
    except PiePError as error:
        return str(error)
    return str(ENGINES[ENGINES.index(replace(found, asked=""))])


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm", " VLLM "])
def test_a_bare_name_is_the_newest_version_known_and_says_so(name: str) -> None:
    found = load_engine(name)
    assert found.name == name.strip().lower()
    assert found == [engine for engine in ENGINES if engine.name == found.name][-1]
    assert str(found) == f"{found.name}=={found.version}"


@pytest.mark.parametrize(
    ("asked", "version"),
    [
        ("vllm==0.5.4", "0.5.4"),
        ("vllm==0.10.0", "0.5.4"),  # numbers, not texts: 0.10 is after 0.5 and before 0.11
        ("vllm==0.11.1", "0.11.1"),
        ("vllm == 0.11.1", "0.11.1"),
        ("vllm==0.24.0", "0.11.1"),
        ("vllm==0.1", "0.5.4"),  # before all that is known: the oldest
        ("trtllm==1.3.0rc15", "1.3.0rc15"),
    ],
)
def test_a_version_means_the_nearest_one_known_that_is_not_newer(asked: str, version: str) -> None:
    assert load_engine(asked).version == version


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("vlm", r"^no engine 'vlm'; known: sglang, trtllm, vllm, each optionally with ==VERSION. Did you mean: vllm\?$"),
        ("", "^no engine ''; known: sglang, trtllm, vllm"),
        (None, "^no engine None; known"),
        (3, "^no engine 3; known"),
        ("vllm==new", "^engine 'vllm==new' has no version I can order; give one like vllm==0.11.1$"),
        ("vllm==²", "^engine 'vllm==²' has no version I can order"),
        ("vllm==0..1", "^engine 'vllm==0..1' has no version I can order"),
    ],
)
def test_an_unknown_engine_or_version_is_refused_with_what_is_known(asked: object, text: str) -> None:
    with pytest.raises(UnknownNameError, match=text):
        load_engine(asked)  # type: ignore[arg-type]


@given(st.one_of(st.text(), st.text().map("vllm==".__add__), st.text("0123456789.²rc").map("sglang==".__add__)))
def test_any_text_is_an_engine_or_one_line(text: str) -> None:
    assert "\n" not in engine_or_refusal(text)


@pytest.mark.parametrize("asked", [np.zeros((3, 3)), "vllm==" + "9" * 5000])
def test_a_huge_value_gives_an_engine_or_one_short_line(asked: object) -> None:
    assert "\n" not in engine_or_refusal(asked)
    assert len(engine_or_refusal(asked)) < 300


def test_an_own_engine_is_used_as_it_is() -> None:
    own = Engine(name="own", version="1", chunk_tokens=2048, graph_sequences=128, expert_exchange="gather")
    assert load_engine(own) is own


def test_every_engine_known_has_limits_that_can_be() -> None:
    for engine in ENGINES:
        assert math.isfinite(engine.chunk_tokens)
        assert engine.chunk_tokens >= engine.graph_sequences > 0
        assert engine.expert_exchange in ("gather", "all_to_all")


def test_a_version_that_another_one_stands_in_for_is_remembered() -> None:
    assert load_engine("vllm==0.10.0").asked == "0.10.0"
    assert load_engine("vllm==0.11.1").asked == ""
    assert load_engine("vllm").asked == ""
