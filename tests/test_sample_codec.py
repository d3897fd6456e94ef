"""Samples kept within a bound: every reading, hence every joule, comes back within it, whatever the readings are."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pie_p.errors import InputError, MissingExtraError, ProfileError
from pie_p.profiling import sample_codec
from pie_p.profiling.sample_codec import check_codec, decode, encode
from pie_p.profiling.samples import Samples

try:
    check_codec()
except MissingExtraError as lack:
    pytest.skip(str(lack), allow_module_level=True)

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
BOUNDS_W = st.floats(1e-6, 1e3)
WATTS = st.one_of(
    st.floats(0, 2000),
    st.sampled_from([0.0, 70.125, 700.0, 1e7]),  # held readings, and spikes
    st.floats(allow_nan=False, allow_infinity=False),
)
SHAPES = st.one_of(
    st.lists(WATTS, min_size=1, max_size=130),
    st.tuples(WATTS, st.integers(1, 400)).map(lambda pair: [pair[0]] * pair[1]),  # constant
    st.tuples(st.integers(0, 10**6), st.integers(1, 400)).map(
        lambda pair: list(450 + np.cumsum(np.random.default_rng(pair[0]).normal(0, 3, pair[1])))  # wandering
    ),
)


def samples_of(power_w: list[float], seed: int = 0) -> Samples:
    """The readings at uneven moments, with a counter beside them."""
    at_s = 1234.5 + np.cumsum(np.random.default_rng(seed).exponential(0.02, len(power_w)))
    return Samples(at_s=at_s, power_w=np.array(power_w, dtype=float), counter_at_s=at_s[::7], energy_j=np.arange(float(len(at_s[::7]))))


def again(samples: Samples, folder: Path, bound_w: float) -> Samples:
    samples.save(folder / "samples.parquet", bound_w=bound_w)
    return Samples.load(folder / "samples.parquet")


def held_j(samples: Samples, power_w: np.ndarray) -> Fraction:
    """Each reading held until the next, without any rounding."""
    at_s = [Fraction(float(moment)) for moment in samples.at_s]
    return sum((Fraction(float(w)) * (b - a) for w, a, b in zip(power_w, at_s, at_s[1:], strict=False)), Fraction(0))


def joined_j(samples: Samples, power_w: np.ndarray) -> Fraction:
    """Readings joined by straight lines, without any rounding."""
    at_s, watts = [Fraction(float(moment)) for moment in samples.at_s], [Fraction(float(w)) for w in power_w]
    return sum(((watts[i] + watts[i + 1]) / 2 * (at_s[i + 1] - at_s[i]) for i in range(len(at_s) - 1)), Fraction(0))


@QUICK
@given(power_w=SHAPES, bound_w=BOUNDS_W, seed=st.integers(0, 99))
def test_energy_is_within_the_bound_times_the_duration(tmp_path: Path, power_w: list[float], bound_w: float, seed: int) -> None:
    samples = samples_of(power_w, seed)
    back = again(samples, tmp_path, bound_w)
    assert np.abs(back.power_w - samples.power_w).max() <= bound_w
    duration_s = Fraction(float(samples.at_s[-1])) - Fraction(float(samples.at_s[0]))
    most_j = Fraction(bound_w) * duration_s * (1 + Fraction(1, 2**52))  # the difference of two floats is rounded once
    for energy_j in (held_j, joined_j):
        assert abs(energy_j(samples, back.power_w) - energy_j(samples, samples.power_w)) <= most_j


@QUICK
@given(power_w=st.lists(st.one_of(WATTS, st.sampled_from([np.nan, np.inf, -np.inf])), max_size=70), bound_w=BOUNDS_W)
def test_what_is_missing_stays_missing_and_all_else_stays_as_it_is(tmp_path: Path, power_w: list[float], bound_w: float) -> None:
    samples = samples_of(power_w)
    back = again(samples, tmp_path, bound_w)
    strange = ~np.isfinite(samples.power_w)
    np.testing.assert_array_equal(back.power_w[strange], samples.power_w[strange])
    assert np.isfinite(back.power_w[~strange]).all()
    for name in ("at_s", "counter_at_s", "energy_j"):
        assert getattr(back, name).tobytes() == getattr(samples, name).tobytes()
    assert back.bound_w == bound_w


@pytest.mark.parametrize("count", [0, 1, 2, 3, 31, 32, 33, 1023, 1025])
def test_any_number_of_readings_comes_back(tmp_path: Path, count: int) -> None:
    samples = samples_of(list(np.random.default_rng(count).uniform(60, 700, count)))
    back = again(samples, tmp_path, 0.5)
    assert len(back) == count
    assert not count or np.abs(back.power_w - samples.power_w).max() <= 0.5


def test_a_code_that_breaks_its_bound_does_not_break_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the package does: readings it would give back too far off are kept as they are."""
    samples = samples_of([100.0, 300.0, np.nan, 500.0, 200.0])

    def broken(code: bytes, count: int) -> np.ndarray:
        values = decode(code, count)
        values[1] += 50.0
        values[2] = np.nan
        return values

    for home in (sample_codec, sys.modules["pie_p.profiling.samples"]):
        monkeypatch.setattr(home, "decode", broken)
    back = again(samples, tmp_path, 1.0)
    assert back.power_w[[1, 3]].tolist() == [300.0, 500.0]
    assert np.nanmax(np.abs(back.power_w - samples.power_w)) <= 1.0
    assert np.isnan(back.power_w).tolist() == [False, False, True, False, False]


def test_threads_do_not_disturb_each_other() -> None:
    many = [np.cumsum(np.random.default_rng(seed).normal(0, 3, 3000)) for seed in range(8)]

    def worst_w(values_w: np.ndarray) -> float:
        return max(float(np.abs(decode(encode(values_w, 0.5)[0], len(values_w)) - values_w).max()) for _ in range(10))

    with ThreadPoolExecutor(8) as threads:
        assert max(threads.map(worst_w, many)) <= 0.5


def test_bounds_of_one_file_after_another_add_up(tmp_path: Path) -> None:
    samples = samples_of(list(np.random.default_rng(0).uniform(60, 700, 500)))
    twice = again(again(samples, tmp_path, 2.0), tmp_path, 3.0)
    assert twice.bound_w == 5.0
    assert np.abs(twice.power_w - samples.power_w).max() <= 5.0
    twice.save(tmp_path / "samples.parquet")
    exactly = Samples.load(tmp_path / "samples.parquet")
    assert (exactly.bound_w, exactly.power_w.tolist()) == (5.0, twice.power_w.tolist())
    assert exactly.integral_error_j(exactly.at_s[0], exactly.at_s[0] + 10.0) == pytest.approx(50.0)


def test_noise_takes_fewer_bytes(tmp_path: Path) -> None:
    samples = samples_of(list(450 + np.random.default_rng(0).normal(0, 30, 20_000)))
    sizes = []
    for bound_w in (None, 0.1, 5.0):
        samples.save(tmp_path / "file.parquet", bound_w=bound_w)
        sizes.append((tmp_path / "file.parquet").stat().st_size)
    assert sizes[0] > sizes[1] > sizes[2]


def test_a_damaged_code_never_reaches_the_package(tmp_path: Path) -> None:
    """SZ3 is C++ that trusts what it reads."""
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "samples.parquet"
    samples_of([100.0, 200.0, 150.0]).save(path, bound_w=1.0)
    table = parquet.read_table(path)
    code = table.column("code").to_pylist()
    code[0] = code[0][:-1] + bytes([code[0][-1] ^ 1])
    parquet.write_table(table.set_column(table.column_names.index("code"), "code", [code]), path)
    with pytest.raises(ProfileError, match="the code of the power values is damaged"):
        Samples.load(path)
    parquet.write_table(table.drop_columns(["code"]), path)
    with pytest.raises(ProfileError, match="power values are missing, and there is no code of them"):
        Samples.load(path)


@pytest.mark.parametrize("bound_w", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bound_that_cannot_be_is_refused(tmp_path: Path, bound_w: float) -> None:
    with pytest.raises(InputError, match=re.escape(f"bound_w = {bound_w}") + ".* above 0"):
        samples_of([1.0]).save(tmp_path / "file.parquet", bound_w=bound_w)
    assert not list(tmp_path.iterdir())


def test_without_the_package_the_extra_is_named_on_writing_and_on_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, samples = tmp_path / "samples.parquet", samples_of([100.0, 200.0])
    samples.save(path, bound_w=1.0)
    monkeypatch.setitem(sys.modules, "pysz", None)
    line = re.escape("'pysz' is not installed. It comes with the extra: pip install 'pie_p[lossy]'")
    with pytest.raises(MissingExtraError, match=f"^{line}$"):
        Samples.load(path)
    with pytest.raises(MissingExtraError, match=f"^{line}$"):
        samples.save(path, bound_w=1.0)
    samples.save(path)
    assert Samples.load(path).power_w.tolist() == [100.0, 200.0]  # exactly kept samples need no package
