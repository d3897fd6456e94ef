"""Prompts: every usual file, and no bad line lost without a word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p.bench.prompts import BadLine, load_prompts
from pie_p.errors import InputError


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_an_alpaca_file_gives_the_instruction_with_its_input_below(tmp_path: Path) -> None:
    entries = [
        {"instruction": "Add the numbers.", "input": "2 and 3", "output": "5"},
        {"instruction": "Say hello.", "input": "", "output": "hello"},
    ]
    prompts = load_prompts(written(tmp_path / "alpaca.json", json.dumps(entries)))
    assert prompts.texts == ("Add the numbers.\n\n2 and 3", "Say hello.")
    assert (prompts.form, prompts.name) == ("alpaca", "alpaca.json")


def test_a_gsm8k_file_gives_the_questions(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({"question": f"What is {n} + {n}?", "answer": f"#### {2 * n}"}) for n in range(3))
    prompts = load_prompts(written(tmp_path / "test.jsonl", lines + "\n\n"))
    assert prompts.texts == ("What is 0 + 0?", "What is 1 + 1?", "What is 2 + 2?")
    assert (prompts.form, prompts.bad_lines) == ("gsm8k", ())


def test_bad_lines_are_counted_and_named_with_their_number(tmp_path: Path) -> None:
    lines = ['{"prompt": "good"}', "not json", '{"text": "x"}', "[1]", '{"prompt": 7}', '{"prompt": "  "}', '{"prompt": "\\ud800"}']
    prompts = load_prompts(written(tmp_path / "own.jsonl", "\n".join(lines)))
    assert prompts.texts == ("good",)
    assert [bad.line for bad in prompts.bad_lines] == [2, 3, 4, 5, 6, 7]
    reasons = [bad.reason for bad in prompts.bad_lines]
    assert reasons[0].startswith("not JSON")
    assert reasons[1] == "none of instruction, question, prompt among its fields (text)"
    assert reasons[2] == "[1] is not an object"
    assert reasons[3] == "prompt = 7 is not a text"
    assert reasons[4] == "prompt is empty"
    assert "lone surrogate" in reasons[5]
    assert str(prompts.bad_lines[0]).startswith("line 2: not JSON")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"^no prompt in x.json, it is empty\. Each entry is an object with instruction"),
        ('{"a": 1}', r"^no prompt in x.json; the first of 1 bad lines: line 1: none of instruction"),
        ('[{"prompt": "a"}', r"x.json begins like a JSON list and is none: .*; give a whole list, or one object a line$"),
    ],
)
def test_a_file_without_a_prompt_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_prompts(written(tmp_path / "x.json", text))


def test_a_missing_file_and_another_encoding_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^no file of prompts at .*none\.json$"):
        load_prompts(tmp_path / "none.json")
    (tmp_path / "latin.jsonl").write_bytes('{"prompt": "Grüße"}'.encode("latin-1"))
    with pytest.raises(InputError, match=r"latin\.jsonl is not UTF-8 text \(byte 14\); save it as UTF-8$"):
        load_prompts(tmp_path / "latin.jsonl")


def test_the_hash_is_that_of_the_texts_and_nothing_else(tmp_path: Path) -> None:
    one = load_prompts(written(tmp_path / "a.jsonl", '{"prompt": "x"}\n{"prompt": "y"}'))
    same = load_prompts(written(tmp_path / "b.json", '[{"question": "x", "answer": "z"}, {"instruction": "y", "input": ""}]'))
    assert one.sha256 == same.sha256
    assert one.sha256 != load_prompts(["y", "x"]).sha256
    assert same.form == "alpaca+gsm8k"


def test_drawing_is_repeatable_without_repeats_and_bounded() -> None:
    prompts = load_prompts()
    drawn = prompts.chosen(10, seed=3)
    assert drawn.texts == prompts.chosen(10, seed=3).texts
    assert len(set(drawn.texts)) == 10
    assert set(drawn.texts) <= set(prompts.texts)
    assert drawn.texts != prompts.chosen(10, seed=4).texts
    with pytest.raises(InputError, match="number of prompts = 41 is not allowed"):
        prompts.chosen(41, seed=0)


@given(st.lists(st.text(min_size=1).filter(lambda text: text.strip() and text.isprintable()), min_size=1, max_size=5), st.text(max_size=40))
def test_lines_between_good_ones_lose_none_of_them(tmp_path_factory: pytest.TempPathFactory, texts: list[str], noise: str) -> None:
    noise = "!" + noise.replace("\n", " ").encode("utf-8", "ignore").decode()
    path = tmp_path_factory.mktemp("prompts") / "x.jsonl"
    path.write_text(f"\n{noise}\n".join(json.dumps({"prompt": text}) for text in texts), encoding="utf-8", newline="")
    prompts = load_prompts(path)
    assert prompts.texts == tuple(text.strip() for text in texts)
    assert len(prompts.bad_lines) == len(texts) - 1
    assert all(isinstance(bad, BadLine) for bad in prompts.bad_lines)
