"""Which kernel to expect on a deployment: the same engine and format, the nearest board, the newest release, none that was launch-bound."""

from __future__ import annotations

import math

import pytest

from pie_p.hardware import load_gpu
from pie_p.kernels import KernelBook, Use, Wanted, make_book, version_order

H100, H200, B200 = "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb"


def use(label: str, gpu: str = H100, dtype: str = "bf16", rows: int = 100, floor_s: float = 5e-6) -> Use:
    return Use(label, "linear", gpu, dtype, "bf16", rows, floor_s)


def book(*uses: Use) -> KernelBook:
    return make_book(uses, {one.label: float(number) for number, one in enumerate(uses)})


def wanted(engine: str = "vllm", version: str = "0.24.0", gpu: str = H100, dtype: str = "bf16") -> Wanted:
    return Wanted("linear", engine, version, load_gpu(gpu), dtype, "bf16")


def answer(kernels: KernelBook, want: Wanted) -> str:
    code = kernels.default(want)
    return "" if math.isnan(code) else kernels.labels[int(code)]


def test_a_release_that_was_profiled_is_taken() -> None:
    kernels = book(use("vllm==0.22.0 a"), use("vllm==0.24.0 b"))
    assert answer(kernels, wanted(version="0.22.0")) == "vllm==0.22.0 a"


def test_one_that_was_not_gets_the_newest() -> None:
    kernels = book(use("vllm==0.22.0 a"), use("vllm==0.9.0 b"))
    assert answer(kernels, wanted(version="0.11.1")) == "vllm==0.22.0 a"


def test_the_nearest_board_answers_for_one_that_was_not_profiled() -> None:
    kernels = book(use("vllm==0.24.0 b", B200), use("vllm==0.22.0 h", H200))
    assert answer(kernels, wanted(gpu="h100-nvl-94gb")) == "vllm==0.22.0 h"


def test_a_kernel_timed_with_its_launch_is_not_expected() -> None:
    kernels = book(use("vllm==0.24.0 block", dtype="fp8", rows=900, floor_s=1.5e-4), use("vllm==0.24.0 plain", dtype="fp8", rows=100))
    assert answer(kernels, wanted(dtype="fp8")) == "vllm==0.24.0 plain"


def test_the_most_profiled_kernel_is_not_taken_for_the_usual_one() -> None:
    """vLLM 0.24's expert kernels on H200 for 8-bit weights: two run fast, the third was swept most and is slow."""
    swept = [use("vllm==0.24.0 triton", dtype="fp8", rows=4756), use("vllm==0.24.0 cutlass", dtype="fp8", rows=7310)]
    kernels = book(*swept, use("vllm==0.24.0 modelopt", dtype="fp8", rows=11503))
    assert answer(kernels, wanted(dtype="fp8")) == "vllm==0.24.0 cutlass"


def test_a_kernel_for_a_few_shapes_does_not_count() -> None:
    kernels = book(use("vllm==0.24.0 special", rows=99), use("vllm==0.24.0 usual", rows=1000))
    assert answer(kernels, wanted()) == "vllm==0.24.0 usual"


def test_fp16_runs_as_bf16_does() -> None:
    assert answer(book(use("vllm==0.24.0 a")), wanted(dtype="fp16")) == "vllm==0.24.0 a"


@pytest.mark.parametrize(("engine", "dtype"), [("sglang", "bf16"), ("vllm", "int4")])
def test_what_was_not_profiled_has_no_code(engine: str, dtype: str) -> None:
    assert answer(book(use("vllm==0.24.0 a")), wanted(engine=engine, dtype=dtype)) == ""


def test_codes_follow_the_ratio_and_unknown_labels_are_missing() -> None:
    kernels = make_book([use("x==1 a"), use("x==1 b")], {"x==1 a": 0.9, "x==1 b": 0.1})
    codes = kernels.codes(["x==1 b", "x==1 a", "y==1 c"])
    assert codes[:2].tolist() == [0.0, 1.0]
    assert math.isnan(codes[2])


def test_releases_sort_by_number() -> None:
    assert sorted(["0.5.10", "0.5.9", "1.3.0rc15", "1.3.0rc2"], key=version_order) == ["0.5.9", "0.5.10", "1.3.0rc2", "1.3.0rc15"]
