"""Cautions: what an answer warns of, and what it does not warn of."""

from __future__ import annotations

from typing import Any

import pytest

from pie_p import Prediction, gpu_names, load_gpu, predict_energy


def predicted(**more: Any) -> Prediction:
    return predict_energy(
        "llama-3.1-8b", **{"gpu": "h100-sxm-80gb", "prompt_tokens": 200, "output_tokens": 100, "predictor": "physics", **more}
    )


def test_a_format_that_the_board_cannot_multiply_in_is_named_with_what_it_does_instead() -> None:
    """A100 white paper, table 3: tensor cores for FP16, BF16, TF32, INT8, INT4; no FP8."""
    assert predicted(gpu="a100-sxm-80gb", dtype="fp8").warnings == (
        "a100-sxm-80gb has no fp8 arithmetic: weights are stored in fp8, unpacked and multiplied in bf16",
    )
    assert predicted(gpu="h100-sxm-80gb", dtype="nvfp4").warnings == (
        "h100-sxm-80gb has no nvfp4 arithmetic: weights are stored in nvfp4, unpacked and multiplied in bf16",
    )


@pytest.mark.parametrize(
    ("gpu", "dtype"),
    [
        ("a100-sxm-80gb", "int8"),
        ("h100-sxm-80gb", "fp8"),
        ("b200-sxm-180gb", "nvfp4"),
        ("a100-sxm-80gb", "int4"),
        ("h100-sxm-80gb", "mxfp4"),
        ("v100-sxm-32gb", "bf16"),
    ],
)
def test_formats_that_a_board_has_or_that_are_unpacked_by_design_are_no_caution(gpu: str, dtype: str) -> None:
    assert predicted(gpu=gpu, dtype=dtype).warnings == ()


@pytest.mark.parametrize("name", gpu_names())
def test_every_board_of_the_catalogue_without_the_format_is_warned_of_and_no_other(name: str) -> None:
    lacks = "fp8" not in load_gpu(name).peak_flops_per_s
    p = predict_energy("llama-3.2-1b", gpu=name, prompt_tokens=9, output_tokens=9, dtype="fp8", predictor="physics")
    assert any("no fp8 arithmetic" in text for text in p.warnings) == lacks


def test_context_beyond_what_the_llm_was_trained_for_is_a_caution() -> None:
    [text] = predicted(prompt_tokens=131_000, output_tokens=1000).warnings
    assert text == "132000 tokens are more than the 131072 that llama-3.1-8b was trained for"


def test_a_version_that_another_stands_in_for_is_named() -> None:
    [text] = predicted(engine="vllm==0.6.0").warnings
    assert text == "vllm==0.6.0 was asked for; the costs are those of vllm==0.5.4"


def test_operators_outside_what_was_profiled_are_named() -> None:
    texts = predicted(gpu="v100-sxm-32gb", predictor="operators").warnings
    assert any(text.startswith("outside what was profiled, so nearer to the physical base than to a measurement: ") for text in texts)


def test_an_ordinary_question_has_none() -> None:
    assert predicted().warnings == ()
