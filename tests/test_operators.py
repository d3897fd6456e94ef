"""One counting function per operator kind, against brute-force counts and figures worked by hand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p import operators as ops
from pie_p.operators import COLLECTIVES, KINDS, Operator
from pie_p.units import BYTES_PER_VALUE, DTYPES, Dtype

SIZE = st.integers(1, 4096)


def one_of_each() -> list[Operator]:
    """One operator of every kind, and one only."""
    return [
        ops.embedding("e", tokens=4, width=8),
        ops.linear("l", tokens=4, in_features=8, out_features=8),
        ops.attention_prefill("p", sequences=2, new_tokens=4, cached_tokens=0, heads=2, kv_heads=1, head_dim=8),
        ops.attention_decode("d", sequences=2, context_tokens=10, heads=2, kv_heads=1, head_dim=8),
        ops.norm("n", tokens=4, width=8),
        ops.activation("a", tokens=4, width=8, gated=True),
        ops.router("r", tokens=4, width=8, experts=4),
        ops.experts("x", tokens=4, width=8, intermediate=4, total_experts=4, local_experts=4, top_k=2, gated=True),
        ops.lm_head("h", tokens=4, width=8, vocab=16),
        ops.scan("s", sequences=2, tokens=4, heads=2, head_dim=8, state_dim=4, decode=False),
        ops.all_reduce("ar", tokens=4, width=8, group_size=2),
        ops.all_gather("ag", tokens=4, width=8, group_size=2),
        ops.reduce_scatter("rs", tokens=4, width=8, group_size=2),
        ops.all_to_all("aa", tokens=4, width=8, group_size=2),
        ops.send_recv("sr", tokens=4, width=8),
    ]


def test_every_kind_has_one_counting_function() -> None:
    assert [op.kind for op in one_of_each()] == list(KINDS)


def test_collectives_move_payload_and_compute_nothing_and_all_others_the_reverse() -> None:
    for op in one_of_each():
        if op.kind in COLLECTIVES:
            assert op.payload_bytes == 4 * 8 * 2  # tokens * width * 2 B
            assert op.flops == op.hbm_bytes == 0
            assert op.group_size == 2
        else:
            assert op.payload_bytes == 0
            assert op.hbm_bytes > 0
            assert op.group_size == 1


def test_weights_and_cache_are_parts_of_what_is_moved() -> None:
    for op in one_of_each():
        assert 0 <= op.weight_bytes + op.kv_bytes <= op.hbm_bytes


@given(tokens=SIZE, wide=SIZE, high=SIZE, dtype=st.sampled_from(DTYPES))
def test_a_matrix_product_costs_two_flop_per_multiply_add_and_reads_its_weights_once(
    tokens: int, wide: int, high: int, dtype: Dtype
) -> None:
    op = ops.linear("l", tokens=tokens, in_features=wide, out_features=high, dtype=dtype)
    assert op.flops == 2 * tokens * wide * high
    assert op.weight_bytes == wide * high * BYTES_PER_VALUE[dtype]
    assert op.hbm_bytes == op.weight_bytes + 2 * tokens * (wide + high)


@given(new=st.integers(1, 40), cached=st.integers(0, 40), window=st.none() | st.integers(1, 50))
def test_prefill_counts_every_query_key_pair_of_the_causal_window(new: int, cached: int, window: int | None) -> None:
    pairs = 0
    for query in range(cached, cached + new):
        for key in range(cached + new):
            pairs += key <= query and (window is None or query - key < window)
    op = ops.attention_prefill(
        "p", sequences=3, new_tokens=new, cached_tokens=cached, heads=5, kv_heads=5, head_dim=7, value_dim=11, window=window
    )
    assert op.flops == pytest.approx(3 * 5 * pairs * 2 * (7 + 11), rel=1e-12)


@given(start=st.integers(0, 60), tokens=st.integers(0, 60), window=st.none() | st.integers(1, 80))
def test_the_mean_context_is_the_mean_over_the_steps(start: int, tokens: int, window: int | None) -> None:
    seen = [min(start + i, window) if window else start + i for i in range(1, tokens + 1)] or [min(start, window) if window else start]
    assert ops.windowed_mean(start, tokens, window) == pytest.approx(sum(seen) / len(seen), rel=1e-12)


@given(context=st.integers(1, 10_000), heads=st.sampled_from([8, 32, 64]), kv_heads=st.sampled_from([1, 2, 8]))
def test_decode_attention_reads_the_cache_once_whatever_the_query_heads(context: int, heads: int, kv_heads: int) -> None:
    op = ops.attention_decode("d", sequences=2, context_tokens=context, heads=heads, kv_heads=kv_heads, head_dim=128)
    assert op.kv_bytes == 2 * context * kv_heads * 2 * 128 * 2
    assert op.flops == 2 * 2 * heads * context * 2 * 128


def test_decoding_token_by_token_computes_what_one_prefill_computes() -> None:
    prefill = ops.attention_prefill("p", sequences=1, new_tokens=50, cached_tokens=0, heads=4, kv_heads=2, head_dim=16)
    steps = [ops.attention_decode("d", sequences=1, context_tokens=i, heads=4, kv_heads=2, head_dim=16) for i in range(1, 51)]
    assert prefill.flops == sum(step.flops for step in steps)


def test_prefill_in_chunks_computes_what_one_prefill_computes_and_reads_the_cache_again() -> None:
    whole = ops.attention_prefill("p", sequences=1, new_tokens=100, cached_tokens=0, heads=4, kv_heads=2, head_dim=16)
    chunks = [
        ops.attention_prefill("p", sequences=1, new_tokens=25, cached_tokens=start, heads=4, kv_heads=2, head_dim=16)
        for start in (0, 25, 50, 75)
    ]
    assert sum(chunk.flops for chunk in chunks) == pytest.approx(whole.flops, rel=1e-12)
    assert sum(chunk.kv_bytes for chunk in chunks) > whole.kv_bytes


def test_an_fp8_cache_moves_half_the_bytes() -> None:
    wide, narrow = (
        ops.attention_decode("d", sequences=1, context_tokens=9, heads=4, kv_heads=2, head_dim=16, kv_dtype=dtype)
        for dtype in ("bf16", "fp8")
    )
    assert wide.kv_bytes == 2 * narrow.kv_bytes
    assert wide.flops == narrow.flops


def test_distinct_experts_agree_with_drawing_them() -> None:
    """Every token picks k different ones of E at random."""
    generator = random.Random(11)
    for experts, top_k, tokens in [(8, 2, 3), (128, 8, 16), (256, 8, 64)]:
        drawn = [len({one for _ in range(tokens) for one in generator.sample(range(experts), top_k)}) for _ in range(400)]
        assert ops.distinct_experts(experts, top_k, tokens) == pytest.approx(sum(drawn) / len(drawn), rel=0.01)


@given(experts=st.integers(1, 512), tokens=st.integers(1, 5000), share=st.floats(0.001, 1))
def test_distinct_experts_lie_between_top_k_and_all(experts: int, tokens: int, share: float) -> None:
    top_k = max(1, round(share * experts))
    touched = ops.distinct_experts(experts, top_k, tokens)
    assert top_k * (1 - 1e-9) <= touched <= experts * (1 + 1e-9)
    assert touched <= ops.distinct_experts(experts, top_k, tokens + 1) * (1 + 1e-9)


def test_experts_spread_over_ranks_do_the_same_work_in_all() -> None:
    whole = ops.experts("x", tokens=64, width=16, intermediate=8, total_experts=32, local_experts=32, top_k=4, gated=True)
    part = ops.experts("x", tokens=64, width=16, intermediate=8, total_experts=32, local_experts=4, top_k=4, gated=True)
    for name in ("flops", "weight_bytes", "hbm_bytes"):
        assert 8 * getattr(part, name) == pytest.approx(getattr(whole, name), rel=1e-12)


def test_an_expert_layer_computes_top_k_experts_per_token() -> None:
    """Mixtral-8x7B: two of eight experts of 3 * 4096 * 14336 weights."""
    op = ops.experts("x", tokens=1, width=4096, intermediate=14336, total_experts=8, local_experts=8, top_k=2, gated=True)
    assert op.flops == 2 * 2 * 3 * 4096 * 14336
    assert op.weight_bytes == pytest.approx(2 * 3 * 4096 * 14336 * 2, rel=1e-12)


def test_a_scan_reads_and_writes_its_fp32_state_once_per_decode_step() -> None:
    """Mamba-2 (arXiv 2405.21060): heads * head_dim * state_dim values."""
    op = ops.scan("s", sequences=4, tokens=1, heads=128, head_dim=64, state_dim=128, decode=True)
    assert op.kv_bytes == 4 * 2 * 128 * 64 * 128 * 4
    assert op.flops == 4 * 6 * 128 * 64 * 128


def test_a_scan_over_a_prompt_touches_its_state_less_often_than_decoding_it() -> None:
    prompt = ops.scan("s", sequences=1, tokens=1024, heads=8, head_dim=64, state_dim=16, decode=False)
    step = ops.scan("s", sequences=1, tokens=1, heads=8, head_dim=64, state_dim=16, decode=True)
    assert prompt.flops == 1024 * step.flops
    assert prompt.kv_bytes == 4 * step.kv_bytes  # 1024 / 256 chunks


def test_gating_adds_a_stream_to_an_activation() -> None:
    plain, gated = (ops.activation("a", tokens=10, width=7, gated=gated).hbm_bytes for gated in (False, True))
    assert (plain, gated) == (10 * 7 * 2 * 2, 10 * 7 * 3 * 2)


def test_an_operator_is_a_frozen_row() -> None:
    op = ops.norm("n", tokens=1, width=8)
    with pytest.raises(AttributeError):
        op.flops = 0.0  # type: ignore[misc]
    assert op == ops.norm("n", tokens=1, width=8)
