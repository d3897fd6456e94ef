"""Numbers at the border become an int or a float, or one clear line says why not."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p import LengthDistribution, predict_energy
from pie_p.errors import InputError
from pie_p.quantities import as_dtype, as_float, as_int, as_truth, shown
from pie_p.units import DTYPES

NOT_QUITE = (np.timedelta64(8, "s"), Decimal("sNaN"))


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no text for you")


@pytest.mark.parametrize("value", [8, 8.0, np.int64(8), np.float32(8), np.float64(8), np.array(8), Fraction(16, 2), Decimal(8)])
def test_anything_that_is_one_number_becomes_a_plain_float(value: object) -> None:
    number = as_float("batch", value)
    assert type(number) is float
    assert number == 8.0


def test_scalars_of_pandas_count_as_numbers() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    assert as_float("batch", pandas.Series([8, 9]).iloc[1]) == 9.0
    assert as_int("batch", pandas.DataFrame({"batch": [4]})["batch"].max()) == 4


def test_scalars_of_polars_count_as_numbers() -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    assert as_float("batch", polars.Series([8.5])[0]) == 8.5


@pytest.mark.parametrize("value", [True, "8", b"8", None, [8], {"batch": 8}, np.array([8, 9]), 8j, object(), float, *NOT_QUITE])
def test_what_is_no_number_is_refused_with_the_value_and_what_is_allowed(value: object) -> None:
    with pytest.raises(InputError) as caught:
        as_float("batch", value, least=1, most=100)
    assert str(caught.value) == f"batch = {shown(value)} is not a number; give one of at least 1 and at most 100"


def test_a_truth_value_of_numpy_is_no_number_either() -> None:
    with pytest.raises(InputError, match=r"^batch = True is not a number"):
        as_float("batch", np.True_)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, "batch = nan is not allowed; give a finite number of at least 1 and at most 100"),
        (math.inf, "batch = inf is not allowed; give a finite number of at least 1 and at most 100"),
        (-math.inf, "batch = -inf is not allowed; give a finite number of at least 1 and at most 100"),
        (-1, "batch = -1 is not allowed; give a finite number of at least 1 and at most 100"),
        (0, "batch = 0 is not allowed; give a finite number of at least 1 and at most 100"),
        (100.5, "batch = 100.5 is not allowed; give a finite number of at least 1 and at most 100"),
    ],
)
def test_a_number_out_of_bounds_is_named_with_the_bounds(value: float, text: str) -> None:
    with pytest.raises(InputError) as caught:
        as_float("batch", value, least=1, most=100)
    assert str(caught.value) == text


def test_both_bounds_are_allowed_unless_the_lower_is_excluded() -> None:
    assert as_float("x", 1, least=1, most=2) == 1.0
    assert as_float("x", 2, least=1, most=2) == 2.0
    with pytest.raises(InputError, match=r"^x = 0 is not allowed; give a finite number above 0$"):
        as_float("x", 0, above=True)


@pytest.mark.parametrize(("value", "number"), [(4, 4), (4.0, 4), (np.float64(4), 4), (10**9, 10**9)])
def test_a_whole_number_may_come_as_a_float(value: float, number: int) -> None:
    result = as_int("tp", value)
    assert type(result) is int
    assert result == number


def test_a_fraction_is_no_count() -> None:
    with pytest.raises(InputError, match=r"^tp = 2\.5 is not a whole number; give one of at least 1 and at most 64$"):
        as_int("tp", 2.5, most=64)


@pytest.mark.parametrize(
    "value",
    [10**400, 10**5000, -(10**5000), "a" * 10_000, np.zeros((50, 50)), Unshowable(), "two\nlines"],
    ids=["401 digits", "5001 digits", "negative", "long text", "matrix", "no repr", "two lines"],
)
def test_a_huge_or_many_lined_value_still_gives_one_short_line(value: object) -> None:
    with pytest.raises(InputError) as caught:
        as_float("batch", value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers())
def test_a_number_is_kept_exactly_or_refused(value: float) -> None:
    inside = math.isfinite(value) and 0 <= value <= 1e6
    if inside:
        assert as_float("x", value, most=1e6) == value
    else:
        with pytest.raises(InputError, match=r"^x = "):
            as_float("x", value, most=1e6)


@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.binary() | st.complex_numbers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
        max_leaves=10,
    )
)
def test_whatever_is_no_number_is_refused_in_one_line(value: object) -> None:
    with pytest.raises(InputError) as caught:
        as_float("x", value)
    assert "\n" not in str(caught.value)


def test_a_long_value_is_cut_at_forty_characters() -> None:
    assert shown(list(range(1000))) == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11..."
    assert len(shown("x" * 1_000_000)) == 40


# Truth values


@pytest.mark.parametrize("value", [True, np.True_, np.array(True)], ids=str)
def test_a_truth_value_of_numpy_is_one(value: object) -> None:
    assert as_truth("exclusive_host", value) is True


@pytest.mark.parametrize("value", [1, 0.0, "yes", None, np.int64(1), [True], np.array([True])], ids=str)
def test_a_number_or_a_word_is_no_truth_value(value: object) -> None:
    with pytest.raises(InputError) as caught:
        as_truth("exclusive_host", value)
    assert str(caught.value).endswith(" is not a truth value; allowed: True, False")


# Storage formats


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        *((dtype, dtype) for dtype in DTYPES),
        ("FP8", "fp8"),
        (" bf16 ", "bf16"),
        ("bfloat16", "bf16"),
        ("float16", "fp16"),
        ("half", "fp16"),
        ("torch.float16", "fp16"),
        ("torch.float8_e4m3fn", "fp8"),
        ("fp8_e5m2", "fp8"),
        ("NVFP4", "nvfp4"),
        (np.float16, "fp16"),
        (np.dtype("float16"), "fp16"),
        (np.dtype("int8"), "int8"),
        (None, None),
        ("auto", None),
    ],
    ids=str,
)
def test_a_format_is_known_in_the_spellings_of_torch_numpy_and_vllm(value: object, dtype: str | None) -> None:
    assert as_dtype("dtype", value) == dtype


def test_a_format_of_torch_itself_is_known() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert as_dtype("dtype", torch.bfloat16) == "bf16"
    assert as_dtype("kv_dtype", torch.float8_e4m3fn) == "fp8"


@pytest.mark.parametrize("value", ["fp9", "float32", "awq", "", 8, True, np.float32, np.zeros((2, 2)), ["fp8"], {"dtype": "fp8"}], ids=str)
def test_an_unknown_format_is_refused_with_those_allowed(value: object) -> None:
    with pytest.raises(InputError) as caught:
        as_dtype("dtype", value)
    assert str(caught.value) == f"dtype = {shown(value)} is not known; allowed: bf16, fp16, fp8, int8, int4, mxfp4, nvfp4"


# Numbers of other libraries, wherever a number is asked for

ASKED = {
    "tp": 2,
    "dp": 1,
    "batch": 8,
    "prompt_tokens": 200,
    "output_tokens": 100,
    "cached_prompt_tokens": 50,
    "power_limit_w": 500,
    "pue": 2,
}


def foreign(kind: str) -> dict[str, object]:
    """The same numbers as scalars of another library."""
    if kind == "pandas":
        pandas = pytest.importorskip("pandas", reason="pandas is not installed")
        return dict(pandas.DataFrame([ASKED]).iloc[0])
    if kind == "pandas float":
        pandas = pytest.importorskip("pandas", reason="pandas is not installed")
        return {name: pandas.Series([value], dtype="Float32").iloc[0] for name, value in ASKED.items()}
    if kind == "polars":
        polars = pytest.importorskip("polars", reason="polars is not installed")
        return {name: polars.Series([value])[0] for name, value in ASKED.items()}
    if kind == "polars frame":
        polars = pytest.importorskip("polars", reason="polars is not installed")
        return polars.DataFrame([ASKED]).row(0, named=True)  # type: ignore[no-any-return]
    if kind == "pyarrow":
        arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        return {name: arrow.scalar(value) for name, value in ASKED.items()}
    if kind == "torch":
        torch = pytest.importorskip("torch", reason="torch is not installed")
        return {name: torch.tensor(value) for name, value in ASKED.items()}
    make = {"int64": np.int64, "float32": np.float32, "0-d array": np.array, "decimal": Decimal, "fraction": Fraction}[kind]
    return {name: make(value) for name, value in ASKED.items()}


@pytest.mark.parametrize(
    "kind",
    ["int64", "float32", "0-d array", "decimal", "fraction", "pandas", "pandas float", "polars", "polars frame", "pyarrow", "torch"],
)
def test_an_answer_is_the_same_whatever_library_its_numbers_come_from(kind: str) -> None:
    plain = predict_energy("llama-3.1-8b", gpu="h100-sxm-80gb", scope="facility", **ASKED)  # type: ignore[arg-type]
    other = predict_energy("llama-3.1-8b", gpu="h100-sxm-80gb", scope="facility", **foreign(kind))  # type: ignore[arg-type]
    assert other == plain
    assert hash(other) == hash(plain)
    assert plain.what_if(batch=foreign(kind)["batch"]).ratio() == 1.0
    assert plain.footprint(grid_g_per_kwh=foreign(kind)["batch"]).carbon_g == plain.footprint(grid_g_per_kwh=8).carbon_g  # type: ignore[arg-type]


@pytest.mark.parametrize("library", ["numpy", "pandas", "polars", "pyarrow", "torch"])
def test_output_lengths_may_be_a_column_of_any_library(library: str) -> None:
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    make = {"numpy": "array", "pandas": "Series", "polars": "Series", "pyarrow": "array", "torch": "tensor"}[library]
    lengths = getattr(module, make)([100, 300])
    assert LengthDistribution.from_lengths(lengths) == LengthDistribution.from_lengths([100, 300])
    ask = {"gpu": "h100-sxm-80gb", "batch": 4, "prompt_tokens": 9}
    plain = predict_energy("llama-3.1-8b", output_tokens=[100, 300], **ask)  # type: ignore[arg-type]
    assert predict_energy("llama-3.1-8b", output_tokens=lengths, **ask) == plain
