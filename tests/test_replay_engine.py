"""The engine: schedules worked out by hand on steps of known length, and the books that must balance on any trace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_p.replay_engine import Engine, EngineSetup
from pie_p.replay_surface import Line


@dataclass(frozen=True)
class Known:
    """A decode step takes `decode_s` and a little per token of context; prompts take `token_s` per token more."""

    decode_s: float = 1.0
    slope_s: float = 0.0
    token_s: float = 0.1
    lanes: int = 1
    bends: int = 1 << 30

    def line(self, sequences: int, context: float) -> Line:
        return Line(self.decode_s + self.slope_s * context, self.slope_s, self.bends)

    def mixed_s(self, sequences: float, context: float, tokens: float, seen: float, ending: int) -> float:
        return self.decode_s + self.slope_s * context + self.token_s * tokens


def engine_of(surface: Known | None = None, **limits: Any) -> Engine:
    usual: dict[str, Any] = {"max_sequences": 64, "chunk_tokens": 100, "capacity_bytes": 1e9, "sequence_bytes": 0.0, "token_bytes": 1.0}
    return Engine(EngineSetup(surface=surface or Known(), reserves=False, **{**usual, **limits}))  # type: ignore[arg-type]


def serve(engine: Engine, requests: list[tuple[float, int, int]], cached: int = 0) -> Engine:
    for number, (at_s, prompt, output) in enumerate(requests):
        engine.advance(at_s)
        engine.submit(number, at_s, prompt=prompt, cached=cached, output=output)
    engine.advance(math.inf)
    return engine


def balanced(engine: Engine, requests: list[tuple[float, int, int]], cached: int = 0) -> None:
    """Every request begins, ends once, and every token of it is counted; time is spent once."""
    assert sorted(engine.finished_s) == sorted(engine.first_s) == sorted(engine.started_s) == list(range(len(requests)))
    decoded = sum(one.steps * one.decoding for one in engine.segments) + engine.prompts_read
    assert decoded == sum(output for _, _, output in requests)
    read = np.zeros(len(requests))
    for chunk in engine.chunks:
        read[chunk.request] += chunk.tokens
    for number, (at_s, prompt, output) in enumerate(requests):
        once = prompt - min(cached, prompt - 1)
        assert read[number] >= once
        if number not in engine.given_way:
            assert read[number] == once
        assert at_s <= engine.started_s[number] < engine.first_s[number] <= engine.finished_s[number]
        assert output > 1 or engine.first_s[number] == engine.finished_s[number]
    for before, after in zip(engine.segments, engine.segments[1:], strict=False):
        assert before.start_s < before.end_s <= after.start_s + 1e-9
    assert engine.load == 0


def test_one_request_alone_is_one_prompt_step_and_its_decode_steps() -> None:
    engine = serve(engine_of(), [(5.0, 20, 4)])
    assert engine.first_s[0] == pytest.approx(5.0 + 1.0 + 2.0)  # 20 tokens at 0.1 s
    assert engine.finished_s[0] == pytest.approx(8.0 + 3 * 1.0)
    assert [(one.steps, one.decoding, one.tokens) for one in engine.segments] == [(1, 0, 20.0), (3, 1, 0.0)]
    assert engine.segments[1].context == pytest.approx(20 + 1.5)  # mean over a life: prompt + (output - 1) / 2


def test_a_prompt_beyond_the_token_budget_is_read_in_chunks() -> None:
    engine = serve(engine_of(), [(0.0, 250, 2)])
    assert [chunk.tokens for chunk in engine.chunks] == [100, 100, 50]
    assert [one.seen for one in engine.segments[:3]] == [50.0, 150.0, 225.0]
    assert [one.ending for one in engine.segments[:3]] == [0, 0, 1]


def test_decoding_sequences_take_their_token_of_the_budget_first() -> None:
    engine = serve(engine_of(), [(0.0, 10, 50), (0.0, 10, 50), (4.5, 150, 2)])
    third = [chunk.tokens for chunk in engine.chunks if chunk.request == 2]
    assert third == [98, 52]


def test_a_request_that_arrives_during_a_step_is_read_in_the_next() -> None:
    """Request 0: prompt step until 2.0, decode steps until 3.0, 4.0, ...; request 1 arrives at 3.5, so at 4.0 its prompt is read."""
    engine = serve(engine_of(), [(0.0, 10, 10), (3.5, 10, 2)])
    assert engine.started_s[1] == pytest.approx(4.0)
    assert engine.first_s[1] == pytest.approx(6.0)
    assert [one.steps for one in engine.segments] == [1, 2, 1, 1, 5]
    assert engine.finished_s[0] == pytest.approx(2 + 2 + 2 + 1 + 5)
    assert engine.finished_s[1] == pytest.approx(7.0)


def test_requests_of_the_same_moment_are_read_together() -> None:
    engine = serve(engine_of(), [(1.0, 10, 2), (1.0, 20, 2)])
    assert engine.segments[0].tokens == 30.0
    assert engine.segments[0].seen == pytest.approx((10 * 5 + 20 * 10) / 30)
    assert engine.first_s == {0: pytest.approx(5.0), 1: pytest.approx(5.0)}


def test_no_more_sequences_than_allowed_run_at_once() -> None:
    engine = serve(engine_of(max_sequences=1), [(0.0, 10, 3), (0.0, 10, 3)])
    assert engine.started_s[1] == engine.finished_s[0] == pytest.approx(4.0)
    assert max(one.decoding for one in engine.segments) == 1


def test_a_request_of_one_output_token_never_decodes() -> None:
    engine = serve(engine_of(), [(0.0, 10, 1), (0.0, 10, 1)])
    assert engine.stays == []
    assert engine.finished_s == engine.first_s


def test_cached_tokens_are_seen_but_not_read() -> None:
    engine = serve(engine_of(), [(0.0, 80, 2)], cached=60)
    assert [chunk.tokens for chunk in engine.chunks] == [20]
    assert engine.segments[0].seen == 70.0
    assert serve(engine_of(), [(0.0, 80, 2)], cached=80).chunks[0].tokens == 1  # the last one yields the first output


def test_the_last_admitted_gives_way_when_the_cache_is_full_and_is_read_again() -> None:
    """Cache of 50 positions: two prompts of 20 leave room for 5 tokens each; then request 1 leaves and reads 20 + 6 tokens anew."""
    requests = [(0.0, 20, 20), (0.0, 20, 20)]
    engine = serve(engine_of(capacity_bytes=50.0), requests)
    balanced(engine, requests)
    assert engine.given_way == {1: 1}
    assert [chunk.tokens for chunk in engine.chunks] == [20, 20, 26]
    assert engine.started_s[1] == 0.0
    assert engine.finished_s[0] < engine.finished_s[1]


def test_reserving_engines_admit_only_what_fits_for_life() -> None:
    requests = [(0.0, 20, 20), (0.0, 20, 20)]
    engine = serve(Engine(EngineSetup(surface=Known(), max_sequences=64, chunk_tokens=100, capacity_bytes=50.0, sequence_bytes=0.0,
                                      token_bytes=1.0, reserves=True)), requests)  # type: ignore[arg-type]  # fmt: skip
    balanced(engine, requests)
    assert engine.given_way == {}
    assert engine.started_s[1] == engine.finished_s[0]


def test_ranks_that_step_together_take_as_long_as_the_one_with_most_prompt_tokens() -> None:
    engine = serve(engine_of(Known(lanes=2)), [(0.0, 30, 2), (0.0, 50, 2), (0.0, 10, 2)])
    assert engine.segments[0].tokens == 50.0  # 30 and 10 on one rank, 50 on the other
    assert engine.segments[1].decoding == 3


def test_a_run_of_growing_steps_is_cut_at_the_step_in_which_a_request_arrives() -> None:
    """Step j takes 1 + 0.01 (10.5 + j) s after the prompt step; brute force says in which one 20.0 s falls."""
    surface = Known(slope_s=0.01)
    engine = serve(engine_of(surface), [(0.0, 10, 100), (20.0, 10, 2)])
    clock, steps = 1.0 + 0.01 + 1.0, 0
    while clock < 20.0:
        clock, steps = clock + 1.0 + 0.01 * (10.5 + steps), steps + 1
    assert engine.segments[1].steps == steps
    assert engine.started_s[1] == pytest.approx(clock)


@pytest.mark.parametrize("bends", [1, 3, 1 << 30])
def test_cutting_runs_into_pieces_changes_nothing(bends: int) -> None:
    requests = [(0.0, 10, 40), (7.3, 30, 12), (20.1, 5, 9)]
    whole, pieces = serve(engine_of(Known(slope_s=0.002)), requests), serve(engine_of(Known(slope_s=0.002, bends=bends)), requests)
    assert list(pieces.finished_s.values()) == pytest.approx(list(whole.finished_s.values()))


def test_waiting_follows_the_pollaczek_khinchine_formula() -> None:
    """One at a time, Poisson arrivals, two service times: mean wait = rate E[S^2] / (2 (1 - rate E[S])).

    L. Kleinrock, Queueing Systems I (1975), section 5.7.
    """
    rng = np.random.default_rng(4)
    count, rate = 60_000, 0.06
    outputs = np.where(rng.random(count) < 0.7, 5, 20)
    service = 1.0 + 1.0 + (outputs - 1) * 1.0  # a prompt of 10 tokens, then decode steps
    arrivals = np.cumsum(rng.exponential(1.0 / rate, count))
    requests = [(float(at), 10, int(out)) for at, out in zip(arrivals, outputs, strict=True)]
    engine = serve(engine_of(max_sequences=1), requests)
    waits = np.array([engine.started_s[number] for number in range(count)]) - arrivals
    expected = rate * (service**2).mean() / (2 * (1 - rate * service.mean()))
    assert waits.mean() == pytest.approx(expected, rel=0.05)


def test_requests_in_flight_follow_littles_law() -> None:
    rng = np.random.default_rng(6)
    arrivals = np.cumsum(rng.exponential(2.0, 3000))
    requests = [
        (float(at), int(p), int(o)) for at, p, o in zip(arrivals, rng.integers(1, 60, 3000), rng.integers(1, 30, 3000), strict=True)
    ]
    engine = serve(engine_of(max_sequences=8), requests)
    inside = sum(engine.finished_s[number] - at for number, (at, _, _) in enumerate(requests))
    decoding = sum((one.end_s - one.start_s) * one.decoding for one in engine.segments)
    prompts = sum(engine.first_s[number] - at for number, (at, _, _) in enumerate(requests))
    assert inside == pytest.approx(decoding + prompts, rel=1e-9)


@settings(max_examples=150, deadline=None)
@given(
    requests=st.lists(st.tuples(st.floats(0, 60), st.integers(1, 250), st.integers(1, 40)), min_size=1, max_size=25),
    most=st.integers(1, 6),
    chunk=st.integers(8, 120),
    spare=st.integers(0, 400),
    lanes=st.sampled_from([1, 1, 2]),
    reserves=st.booleans(),
    cached=st.sampled_from([0, 0, 30]),
    slope_s=st.sampled_from([0.0, 0.003]),
)
def test_no_request_is_lost_or_served_twice_and_every_token_is_counted(
    requests: list[tuple[float, int, int]], most: int, chunk: int, spare: int, lanes: int, reserves: bool, cached: int, slope_s: float
) -> None:
    requests = sorted(requests)
    capacity = float(max(prompt + output for _, prompt, output in requests) + spare)
    engine = Engine(
        EngineSetup(
            surface=Known(lanes=lanes, slope_s=slope_s),  # type: ignore[arg-type]
            max_sequences=most,
            chunk_tokens=chunk,
            capacity_bytes=capacity,
            sequence_bytes=0.0,
            token_bytes=1.0,
            reserves=reserves,
        )
    )
    serve(engine, requests, cached)
    balanced(engine, requests, cached)
    assert not (reserves and engine.given_way)
    for segment in engine.segments:
        assert segment.decoding <= most * lanes
        held = segment.decoding * (segment.context + 0.5 + (segment.steps - 1) / 2.0)
        assert reserves or held <= capacity + 1e-6
