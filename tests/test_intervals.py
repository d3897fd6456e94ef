"""Intervals tile a step exactly, and their energies come back through a meter that sees mixtures."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p.profiling.intervals import Interval, Record, explain, tile, times
from pie_p.profiling.laws import Timeline
from pie_p.profiling.simulated_meter import Artefacts


def test_a_meeting_is_cut_where_the_last_rank_arrives() -> None:
    records = [
        Record(path="layer/mlp", kind="mlp", start_s=0.1, end_s=1.0),
        Record(path="layer/mlp_meet", kind="all_reduce", start_s=1.0, end_s=2.0),
    ]
    tiled = tile(records, start_s=0.0, end_s=2.5, met_s=[1.4])
    assert times(tiled) == pytest.approx({("wait", "launch_gap"): 0.6, ("mlp", ""): 0.9, ("wait", "skew"): 0.4, ("all_reduce", ""): 0.6})


def test_a_micro_batch_is_waited_for_until_it_is_ready_and_then_moved() -> None:
    records = [
        Record(path="layer/mlp", kind="mlp", start_s=2.0, end_s=3.0, opens=True, closes=True),
        Record(path="layer/mlp", kind="mlp", start_s=3.5, end_s=4.0, opens=True, closes=True),
    ]
    tiled = tile(records, start_s=0.0, end_s=4.0, ready_s=[1.8, 2.5])  # the second was ready before this stage was free
    assert times(tiled) == pytest.approx({("wait", "bubble"): 1.8, ("send_recv", ""): 0.7, ("mlp", ""): 1.5})


@given(
    lengths=st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.booleans(), st.floats(-1.0, 2.0)), max_size=12),
    tail_s=st.floats(0.0, 1.0),
)
def test_intervals_cover_a_step_without_gap_or_overlap(lengths: list[tuple[float, float, bool, float]], tail_s: float) -> None:
    records, met_s, now_s = [], [], 5.0
    for gap_s, run_s, meets, late_s in lengths:
        start_s = now_s + gap_s
        now_s = start_s + run_s
        records.append(Record(path="p", kind="all_reduce" if meets else "mlp", start_s=start_s, end_s=now_s))
        if meets:
            met_s.append(start_s + late_s)
    tiled = tile(records, start_s=5.0, end_s=now_s + tail_s, met_s=met_s)
    assert sum(times(tiled).values()) == pytest.approx(now_s + tail_s - 5.0)
    for one, other in pairwise(tiled):
        assert one.end_s == other.start_s


TRUTH_W = {"mlp": 600.0, "attention": 450.0, "all_reduce": 250.0, "wait": 150.0}


def busy_rank(seed: int) -> tuple[list[Interval], Timeline]:
    """Twenty seconds of work of uneven length, and the power it draws."""
    chance, law, intervals, now_s = np.random.default_rng(seed), Timeline(idle_w=75.0, rise_s=0.002), [], 1.0
    while now_s < 21.0:
        for kind, power_w in TRUTH_W.items():
            end_s = now_s + float(chance.uniform(0.005, 0.06))
            law.set_level(now_s, power_w)
            intervals.append(Interval(path=kind, kind=kind, cause="", start_s=now_s, end_s=end_s))
            now_s = end_s
    law.set_level(now_s, 75.0)
    return intervals, law


def test_parts_add_up_to_the_whole_and_each_part_is_its_own() -> None:
    artefacts, rows, measured_j, truth_j = Artefacts(), [], 0.0, 0.0
    for seed in range(4):
        intervals, law = busy_rank(seed)
        ticks_s = np.arange(1.1, intervals[-1].end_s, artefacts.period_s)
        readings_w = np.array([artefacts.published_w(law, float(tick) + 1e-6) for tick in ticks_s])
        rows.append((intervals, ticks_s, readings_w))
        measured_j += float(readings_w.mean()) * (intervals[-1].end_s - 1.0)
        truth_j += law.energy_j(1.0, intervals[-1].end_s)
    found = explain(rows, artefacts.window_s, measured_j)
    assert found.measured_j == pytest.approx(truth_j, rel=0.03)
    assert sum(found.energy_j.values()) == pytest.approx(found.measured_j, rel=0.03)
    assert found.unexplained_j == pytest.approx(found.measured_j - sum(found.energy_j.values()))
    for kind, power_w in TRUTH_W.items():
        assert found.power_w[kind] == pytest.approx(power_w, rel=0.05)


def test_energy_that_no_part_explains_is_reported() -> None:
    intervals, law = busy_rank(0)
    ticks_s = np.arange(1.1, 21.0, 0.1)
    readings_w = np.array([Artefacts().published_w(law, float(tick) + 1e-6) for tick in ticks_s])
    known_j = law.energy_j(1.0, intervals[-1].end_s)
    assert explain([(intervals, ticks_s, readings_w)], 0.025, known_j + 500.0).unexplained_j == pytest.approx(500.0, abs=0.03 * known_j)
