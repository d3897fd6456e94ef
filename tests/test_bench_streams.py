"""Streams: events whatever the pieces, whole responses only, and a name for every other case."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p.bench.outcomes import FaultError
from pie_p.bench.streams import Assembly, EventParser


def completion(text: str = "", finish: str | None = None, **more: Any) -> str:
    return json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": finish}], **more})


def assembled(*data: str, count: Any = None) -> Assembly:
    """Events that come at 1 s, 2 s, ..., after a request at 0 s."""
    assembly = Assembly(start_s=0.0, count=count)
    for at_s, one in enumerate(data, start=1):
        assembly.take(one, float(at_s))
    return assembly


def fault_of(*data: str) -> FaultError:
    with pytest.raises(FaultError) as caught:
        assembled(*data).answer()
    return caught.value


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1), max_size=5), st.data())
def test_events_are_the_same_however_the_bytes_are_cut(texts: list[str], data: st.DataObject) -> None:
    sent = "".join(f": note\r\nevent: x\r\ndata: {text}\r\n\r\n" for text in texts).encode()
    parser, found, rest = EventParser(), [], sent
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        found += parser.feed(rest[:size])
        rest = rest[size:]
    assert found == texts


def test_letters_that_python_splits_lines_at_are_no_line_ends() -> None:
    odd = "a\u2028b\x0bc\x85d"
    assert EventParser().feed(f"data: {odd}\n\n".encode()) == [odd]


def test_several_data_lines_are_one_event_and_no_space_is_needed() -> None:
    assert EventParser().feed(b"data:{\ndata: }\n\n\n") == ["{\n}"]


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        (b'{"choices": []}\n', "a line that is no server-sent event"),
        (b"<html>\n", "a line that is no server-sent event: b'<html>'"),
        (b"data: \xff\n", "an event that is not UTF-8"),
    ],
)
def test_lines_that_are_no_events_are_a_fault(line: bytes, detail: str) -> None:
    with pytest.raises(FaultError, match=detail) as caught:
        EventParser().feed(line)
    assert caught.value.fault == "malformed"


def test_a_whole_response_has_its_words_tokens_and_times() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
    answer = assembled(completion("two "), completion("words"), completion("", "stop"), completion(usage=usage), "[DONE]").answer()
    assert (answer.words, answer.output_tokens, answer.token_source, answer.chunks) == (2, 5, "usage", 2)
    assert (answer.prompt_tokens, answer.cached_prompt_tokens, answer.finish_reason) == (9, 4, "stop")
    assert (answer.ttft_s, answer.latency_s, answer.tpot_s) == (1.0, 3.0, 0.5)  # (3 - 1) / (5 - 1)


def test_usage_that_comes_with_every_piece_counts_as_it_is_at_the_end() -> None:
    pieces = [completion("a", usage={"completion_tokens": n, "prompt_tokens": 3}) for n in (1, 2)]
    assert assembled(*pieces, "[DONE]").answer().output_tokens == 2


def test_chat_pieces_count_reasoning_once_and_a_role_is_no_token() -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm ", "reasoning": "hm "},
        {"content": "yes"},
    ]
    data = [json.dumps({"choices": [{"delta": delta}]}) for delta in deltas]
    answer = assembled(*data, json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]})).answer()
    assert (answer.words, answer.output_tokens, answer.token_source) == (2, 2, "chunks")
    assert answer.ttft_s == 2.0


def test_tokens_are_counted_by_a_tokenizer_where_the_server_does_not_say() -> None:
    answer = assembled(completion("abc"), completion("de", "length"), count=len).answer()
    assert (answer.output_tokens, answer.token_source) == (5, "tokenizer")
    said_nothing = assembled(completion("abc"), completion("de", "length", usage={"completion_tokens": 0})).answer()
    assert (said_nothing.output_tokens, said_nothing.token_source) == (2, "chunks")


def test_half_a_response_is_none() -> None:
    assert fault_of(completion("half a")).fault == "disconnected"
    assert fault_of().fault == "empty"
    assert fault_of("[DONE]").fault == "empty"
    assert fault_of(completion("", "stop")).fault == "empty"


def test_an_end_of_sequence_alone_is_a_response_of_one_token_and_no_word() -> None:
    answer = assembled(completion("", "stop"), completion(usage={"completion_tokens": 1, "prompt_tokens": 3})).answer()
    assert (answer.words, answer.output_tokens, answer.ttft_s, answer.tpot_s) == (0, 1, None, None)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ("{", "malformed"),
        ("[]", "malformed"),
        ("{}", "malformed"),
        ('{"choices": 5}', "malformed"),
        ('{"choices": ["x"]}', "malformed"),
        ('{"choices": [{"text": 5}]}', "malformed"),
        ('{"choices": [], "usage": 5}', "malformed"),
        ('{"choices": [], "usage": {"completion_tokens": -1}}', "malformed"),
        ('{"choices": [], "usage": {"completion_tokens": "5"}}', "malformed"),
        ('{"error": {"message": "out of memory"}}', "server error"),
        ("[" * 100_000, "malformed"),
    ],
)
def test_events_of_another_kind_have_a_name(data: str, fault: str) -> None:
    assert fault_of(data).fault == fault


def test_a_body_that_came_whole_has_no_first_token() -> None:
    body = json.dumps({"choices": [{"message": {"content": "all at once"}}], "usage": {"prompt_tokens": 2, "completion_tokens": 4}})
    assembly = Assembly(start_s=1.0)
    assembly.take_body(body.encode(), 3.0)
    answer = assembly.answer()
    assert (answer.words, answer.output_tokens, answer.ttft_s, answer.latency_s) == (3, 4, None, 2.0)


def taken(noise: bytes) -> str:
    """What becomes of a response that is one event of noise."""
    parser, assembly = EventParser(), Assembly(start_s=0.0)
    try:
        for data in parser.feed(b"data: " + noise + b"\n\n"):
            assembly.take(data, 1.0)
        assembly.answer()
    except FaultError as error:
        return error.fault
    return "ok"


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser_in_another_way(noise: bytes) -> None:
    assert taken(noise) in ("malformed", "empty", "disconnected", "server error")
