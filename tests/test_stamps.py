"""The common clock of several hosts, against clocks whose offset and drift are known."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p.profiling.stamps import Exchange, Offset, offset_of, on_common_clock


def exchange(true_s: float, offset_s: float, drift: float, there_s: float, back_s: float) -> Exchange:
    """Rank 0's clock is the true one; the asker's is `offset_s` behind at 0 and loses `drift` s per s."""

    def askers(moment_s: float) -> float:
        return moment_s * (1 - drift) - offset_s

    return Exchange(askers(true_s), true_s + there_s, askers(true_s + there_s + back_s))


@given(offset_s=st.floats(-1e4, 1e4), delays=st.lists(st.tuples(st.floats(1e-5, 1e-2), st.floats(1e-5, 1e-2)), min_size=1, max_size=20))
def test_the_offset_is_never_off_by_more_than_its_doubt(offset_s: float, delays: list[tuple[float, float]]) -> None:
    found = offset_of([exchange(50.0 + index, offset_s, 0.0, there, back) for index, (there, back) in enumerate(delays)])
    assert abs(found.offset_s - offset_s) <= found.doubt_s + 1e-8
    assert found.doubt_s <= min(there + back for there, back in delays) / 2 + 1e-8


def test_stamps_of_a_drifting_clock_come_back_within_the_exchange_s_delay() -> None:
    chance, offset_s, drift = random.Random(1), 1234.5, 40e-6  # 40 ppm: 2.4 ms a minute

    def delay_s() -> float:
        return chance.uniform(2e-5, 8e-5)

    before, after = (
        offset_of([exchange(moment + 0.01 * turn, offset_s, drift, delay_s(), delay_s()) for turn in range(32)]) for moment in (0.0, 60.0)
    )
    true_s = np.linspace(1.0, 59.0, 30)
    assert on_common_clock(true_s * (1 - drift) - offset_s, before, after) == pytest.approx(true_s, abs=5e-5)


def test_no_time_between_two_estimates_means_no_drift() -> None:
    same = Offset(5.0, 2.0, 0.0)
    assert on_common_clock(np.array([7.0]), same, same).tolist() == [9.0]
