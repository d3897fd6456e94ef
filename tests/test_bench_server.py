"""A server that misbehaves in every way loses nothing: each fault has a name and a count, and a retried response counts once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from email.utils import formatdate
from time import time
from typing import Any

import pytest
from scripted_server import GOOD, PIECES, PROMPT_TOKENS, TOKENS, Behaviour, Good, event, scripted, slow, status, stream, text_event

from pie_p.bench.outcomes import FAULTS, Outcome
from pie_p.bench.plans import BenchPlan, Load, ServerTarget
from pie_p.bench.server import Server, seconds_of
from pie_p.errors import InputError

QUICK: dict[str, Any] = {"backoff_s": 0.01, "most_backoff_s": 0.05, "retries": 2, "first_byte_s": 5, "stall_s": 5}


def asked(url: str, *, prompts: int = 1, load: Load | None = None, served: str = "tiny", **settings: Any) -> tuple[list[Outcome], Server]:
    """Outcomes of so many prompts, one after the other."""
    target = ServerTarget(url=url, served=served, **{**QUICK, **settings})

    async def run() -> tuple[list[Outcome], Server]:
        async with Server(target, load or Load(concurrency=1, max_tokens=8), [f"prompt {n}" for n in range(prompts)]) as server:
            return [await server.answer((0, n)) for n in range(prompts)], server

    return asyncio.run(run())


def outcome(*script: Behaviour, **settings: Any) -> tuple[Outcome, int]:
    """Of one prompt, and the requests that the server saw."""
    with scripted(*script) as server:
        [one], _ = asked(server.url, **settings)
        return one, len(server.asked)


def assert_good(one: Outcome) -> None:
    assert one.answer is not None
    assert (one.answer.words, one.answer.output_tokens, one.answer.prompt_tokens) == (3, TOKENS, PROMPT_TOKENS)
    assert one.answer.token_source == "usage"


def test_a_good_server_is_asked_once_with_what_was_set() -> None:
    load = Load(concurrency=1, max_tokens=8, seed=4, temperature=0.5)
    with scripted(GOOD) as server:
        [one], _ = asked(server.url, load=load, extra='{"ignore_eos": true}')
        [request] = server.asked
    assert_good(one)
    assert one.faults == ()
    assert request["path"] == "/v1/completions"
    wanted = {"model": "tiny", "prompt": "prompt 0", "max_tokens": 8, "seed": 4, "temperature": 0.5, "stream": True, "ignore_eos": True}
    assert {name: request[name] for name in wanted} == wanted
    assert request["stream_options"] == {"include_usage": True}


def test_chat_asks_with_a_message() -> None:
    delta = event(choices=[{"delta": {"content": "hi there"}, "finish_reason": "stop"}])
    with scripted(stream(delta, "data: [DONE]\n\n")) as server:
        [one], _ = asked(server.url, api="chat")
        [request] = server.asked
    assert one.answer is not None
    assert one.answer.words == 2
    assert request["path"] == "/v1/chat/completions"
    assert request["messages"] == [{"role": "user", "content": "prompt 0"}]


CUT = stream(text_event("one "), then="hang up")
FAULTY: dict[str, tuple[Behaviour, str]] = {
    "500": (status(500, "boom"), "server error"),
    "503": (status(503), "server error"),
    "429": (status(429, Retry_After="0"), "busy"),
    "mid-stream disconnect": (CUT, "disconnected"),
    "disconnect before a byte": (lambda handler: handler.hang_up(), "disconnected"),
    "stream that ends early": (stream(text_event("one ")), "disconnected"),
    "no event": (stream(), "empty"),
    "no token": (stream(text_event("", "stop"), "data: [DONE]\n\n"), "empty"),
    "not SSE": (stream("<html>hello</html>\n"), "malformed"),
    "wrong JSON": (stream("data: {not json}\n\n"), "malformed"),
    "other JSON": (stream('data: {"answer": 42}\n\n'), "malformed"),
    "error in the stream": (stream(text_event("one "), event(error={"message": "out of memory"})), "server error"),
    "JSON that is none": (status(200, "oops", Content_Type="application/json"), "malformed"),
    "redirect": (status(302, Location="/elsewhere"), "malformed"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_retried_and_the_response_counted_once(name: str) -> None:
    behaviour, fault = FAULTY[name]
    one, requests = outcome(behaviour, GOOD)
    assert_good(one)
    assert one.faults == (fault,)
    assert one.fault is None
    assert requests == 2


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_that_lasts_is_an_outcome_with_every_attempt_named(name: str) -> None:
    behaviour, fault = FAULTY[name]
    one, requests = outcome(behaviour)
    assert (one.answer, one.fault, one.faults) == (None, fault, (fault,) * 3)
    assert requests == 3
    assert one.detail or fault == "disconnected"


def test_what_the_server_says_about_a_refusal_is_kept_and_not_asked_again() -> None:
    one, requests = outcome(status(401, '{"error": "no key"}'))
    assert (one.fault, one.detail, requests) == ("refused", 'HTTP 401: {"error": "no key"}', 1)


def test_a_slow_first_byte_a_stall_and_a_response_without_end_are_told_apart() -> None:
    late, _ = outcome(slow(1.0), first_byte_s=0.2, retries=0)
    assert (late.fault, late.detail) == ("timeout", "no byte within 0.2 s")
    stalled, _ = outcome(stream(text_event("one "), then="stall", delay_s=1.0), stall_s=0.2, retries=0)
    assert (stalled.fault, stalled.detail) == ("stalled", "nothing more within 0.2 s")
    endless, _ = outcome(Good(pieces=("a ",) * 20, pause_s=0.1), total_s=0.4, retries=0)
    assert (endless.fault, endless.detail) == ("timeout", "no whole response within 0.4 s")


def test_a_stream_that_never_pauses_is_cut_at_the_limit_of_the_whole_response() -> None:
    def endless(handler: Any) -> None:
        handler.begin()
        with suppress(OSError):
            while True:
                handler.piece(text_event("x "))

    one, requests = outcome(endless, total_s=0.3, retries=1)
    assert (one.answer, one.faults, requests) == (None, ("timeout", "timeout"), 2)
    assert one.end_s - one.start_s < 30.0


def test_a_slow_server_within_the_time_allowed_is_only_slow() -> None:
    one, _ = outcome(slow(0.3, Good(pause_s=0.05)))
    assert_good(one)
    assert one.answer is not None
    assert one.answer.ttft_s is not None
    assert one.answer.ttft_s >= 0.35
    # three pieces 50 ms apart, five tokens by usage: 0.1 s / 4 per token after the first, less what the first piece came late
    assert one.answer.tpot_s is not None
    assert one.answer.tpot_s >= 0.015


def test_no_server_is_a_connection_fault() -> None:
    with scripted(GOOD) as server:
        url = server.url
    [one], _ = asked(url)
    assert one.faults == ("connect",) * 3


def test_retry_after_is_followed_up_to_the_limit() -> None:
    with scripted(status(429, Retry_After="1"), GOOD) as server:
        asked(server.url, most_backoff_s=30.0)
        assert server.asked[1]["at_s"] - server.asked[0]["at_s"] >= 1.0
    with scripted(status(429, Retry_After="3600"), GOOD) as server:
        [one], _ = asked(server.url, most_backoff_s=0.05)
        assert_good(one)
    assert 3.0 < (seconds_of(formatdate(time() + 5)) or 0.0) <= 5.0
    assert seconds_of(formatdate(time() - 50)) == 0.0


def test_a_server_without_usage_is_counted_by_pieces_and_one_without_done_is_whole() -> None:
    one, _ = outcome(Good(usage=None, done=False))
    assert one.answer is not None
    assert (one.answer.output_tokens, one.answer.token_source, one.answer.prompt_tokens) == (len(PIECES), "chunks", None)


def test_a_server_that_refuses_stream_options_is_asked_without_them_and_that_is_no_fault() -> None:
    def picky(handler: Any) -> None:
        request = handler.server.asked[-1]
        (status(400, "unknown field stream_options") if "stream_options" in request else Good(usage=None))(handler)

    with scripted(picky) as server:
        outcomes, client = asked(server.url, prompts=2)
        assert len(server.asked) == 3
    assert [one.faults for one in outcomes] == [(), ()]
    assert list(client.notes) == ["the server does not know stream_options: tokens are counted here"]


def test_a_server_that_does_not_stream_is_taken_as_it_is_and_noted() -> None:
    body = {"choices": [{"text": "all at once", "finish_reason": "stop"}], "usage": {"prompt_tokens": 2, "completion_tokens": 4}}
    with scripted(status(200, json.dumps(body), Content_Type="application/json")) as server:
        [one], client = asked(server.url)
    assert one.answer is not None
    assert (one.answer.output_tokens, one.answer.ttft_s) == (4, None)
    assert "no time to first token" in next(iter(client.notes))


def test_a_connection_that_breaks_after_the_end_of_a_response_costs_nothing() -> None:
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": TOKENS}
    pieces = [text_event("one two "), text_event("three", "stop"), event(choices=[], usage=usage)]
    one, requests = outcome(stream(*pieces, then="hang up"))
    assert_good(one)
    assert requests == 1


def test_the_one_listed_name_is_used_and_several_must_be_chosen_from() -> None:
    with scripted(GOOD) as server:
        _, client = asked(server.url, served="")
        assert client.served == "tiny"
        server.pages["/v1/models"] = ('{"data": [{"id": "a"}, {"id": "b"}]}', "application/json")
        with pytest.raises(InputError, match=r"/v1/models \(HTTP 200\) lists a, b; name one with --served$"):
            asked(server.url, served="")
        server.pages["/v1/models"] = ("<html>", "text/html")
        with pytest.raises(InputError, match=r"lists no LLM; name one with --served$"):
            asked(server.url, served="")
        url = server.url
    with pytest.raises(InputError, match=r"^no answer from http://127.0.0.1:\d+/v1/models: .*; is the server up, and the address right\?$"):
        asked(url, served="")


def test_the_key_comes_from_the_environment_and_stands_in_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret-123")
    with scripted(GOOD) as server:
        asked(server.url, api_key_env="MY_KEY")
        assert server.asked[0]["headers"]["Authorization"] == "Bearer secret-123"
    plan = BenchPlan(target=ServerTarget(url=server.url, api_key_env="MY_KEY"), load=Load(concurrency=1))
    assert "secret-123" not in plan.model_dump_json()


@pytest.mark.parametrize("key", ["two\nlines", "clé"])
def test_a_key_that_no_header_can_hold_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(InputError, match=r"^the key in MY_KEY holds characters that no HTTP header can") as refused:
        asked("http://127.0.0.1:1", api_key_env="MY_KEY")
    assert key not in str(refused.value)
    monkeypatch.setenv("MY_KEY", "sound\n")  # as read from a file
    [one], _ = asked("http://127.0.0.1:1", api_key_env="MY_KEY", retries=0)
    assert one.faults == ("connect",)


def test_a_server_that_wants_a_key_says_so_before_a_name_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(handler: Any) -> None:
        handler.answer(401, "no")

    monkeypatch.setattr("scripted_server.Handler.do_GET", locked)
    monkeypatch.delenv("MY_KEY", raising=False)
    with scripted(GOOD) as server:
        with pytest.raises(InputError, match=r"HTTP status 401; the server wants a key .* MY_KEY, and it is not set"):
            asked(server.url, served="", api_key_env="MY_KEY")
        monkeypatch.setenv("MY_KEY", "other")
        with pytest.raises(InputError, match="the key in it is not accepted"):
            asked(server.url, served="", api_key_env="MY_KEY")


def test_connections_are_used_again() -> None:
    ports: set[int] = set()

    def noting(handler: Any) -> None:
        ports.add(handler.client_address[1])
        GOOD(handler)

    with scripted(noting) as server:
        outcomes, _ = asked(server.url, prompts=5)
    assert all(one.answer for one in outcomes)
    assert len(ports) == 1


def test_a_batch_is_asked_together() -> None:
    waiting, most = [0], [0]

    def counting(handler: Any) -> None:
        waiting[0] += 1
        most[0] = max(most[0], waiting[0])
        slow(0.2)(handler)
        waiting[0] -= 1

    async def run(url: str) -> Sequence[Outcome]:
        found: list[Outcome] = []
        async with Server(ServerTarget(url=url, served="tiny"), Load(batch=4), ["a"] * 4) as server:
            await server.together([(0, n) for n in range(4)], found.append)
            assert server.in_flight.count == 0
            assert server.in_flight.request_s() >= 4 * 0.2
        return found

    with scripted(counting) as server:
        assert sorted(one.prompt for one in asyncio.run(run(server.url))) == [0, 1, 2, 3]
    assert most == [4]


def test_every_fault_can_happen_and_has_words() -> None:
    assert {fault for _, fault in FAULTY.values()} | {"timeout", "stalled", "connect", "refused"} == set(FAULTS)
    assert all(FAULTS.values())
