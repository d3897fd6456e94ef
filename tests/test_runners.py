"""A real transformer split over four real ranks: the same answer as on one, and a record of every moment."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
sys.path.append(str(Path(__file__).parent))  # fresh processes look for the bodies there

import rank_bodies

from pie_p.errors import InputError
from pie_p.profiling.benches import SIMULATED_W
from pie_p.profiling.intervals import times
from pie_p.profiling.ranks import Rank, run_ranks
from pie_p.profiling.runners import Layout, ParallelRun, batch_of, run_parallel
from pie_p.profiling.runs import explained
from pie_p.profiling.transformer import Shape, build, keep_stage


@pytest.fixture(scope="module")
def runs() -> dict[str, ParallelRun]:
    return run_ranks(rank_bodies.parallel, 4)[0]


@pytest.mark.parametrize("name", ["tp", "pp", "dp", "tp+pp"])
def test_split_work_gives_the_answer_of_one_rank(runs: dict[str, ParallelRun], name: str) -> None:
    import torch

    with torch.no_grad():
        alone = build(Shape())(batch_of(Shape(), sequences=4, tokens=16, seed=0))
    assert np.allclose(np.array(runs[name].logits), alone.numpy(), atol=1e-4)


@pytest.mark.parametrize("name", ["tp", "pp", "dp", "tp+pp"])
def test_the_parts_of_every_rank_add_up_to_its_steps(runs: dict[str, ParallelRun], name: str) -> None:
    run = runs[name]
    for intervals, steps in zip(run.intervals, run.steps_s, strict=True):
        between_s = sum(interval.time_s for interval in intervals if interval.cause == "host_gap")
        assert sum(times(intervals).values()) == pytest.approx(steps[-1][1] - steps[0][0])
        assert between_s == pytest.approx(steps[-1][1] - steps[0][0] - sum(end_s - start_s for start_s, end_s in steps), abs=1e-6)


def test_each_layout_shows_the_meetings_it_has_and_no_others(runs: dict[str, ParallelRun]) -> None:
    kinds = {name: {interval.kind for ranks in run.intervals for interval in ranks} for name, run in runs.items()}
    modules = {"embedding", "norm", "attention", "mlp", "lm_head", "wait"}
    assert kinds["dp"] == modules
    assert kinds["tp"] == modules | {"all_reduce"}
    assert kinds["pp"] == modules | {"send_recv"}
    assert kinds["tp+pp"] == modules | {"all_reduce", "send_recv"}


def test_tensor_parallel_ranks_meet_twice_a_layer(runs: dict[str, ParallelRun]) -> None:
    for intervals in runs["tp"].intervals:
        assert sum(interval.kind == "all_reduce" for interval in intervals) == 2 * Shape().layers * len(runs["tp"].steps_s[0])


def test_the_last_stage_of_a_pipeline_waits_in_the_bubble_and_the_first_does_not(runs: dict[str, ParallelRun]) -> None:
    bubbles = [sum(interval.time_s for interval in ranks if interval.cause == "bubble") for ranks in runs["pp"].intervals]
    assert bubbles[0] == 0.0
    assert bubbles[3] > 0.0


@pytest.mark.parametrize("name", ["tp", "tp+pp"])
def test_what_the_meters_saw_during_the_run_adds_up_from_its_parts(runs: dict[str, ParallelRun], name: str) -> None:
    """Boards that draw a known power for each kind, sampled from before the first step until after the last."""
    run = runs[name]
    found = explained(run)
    assert found is not None
    truth_j = dict.fromkeys(found.power_w, 0.0)
    for index, intervals in enumerate(run.intervals):
        for interval in intervals:
            truth_j[interval.kind] += (SIMULATED_W[interval.kind] + 5.0 * index) * interval.time_s
    assert found.measured_j == pytest.approx(sum(truth_j.values()), rel=0.03)
    assert abs(found.unexplained_j) < 0.03 * found.measured_j
    assert found.energy_j["wait"] == pytest.approx(truth_j["wait"], rel=0.1)


def test_a_layout_that_does_not_fit_is_refused_with_its_numbers() -> None:
    alone = Rank(index=0, size=1, backend="gloo", device="cpu")
    with pytest.raises(InputError, match="tp 2 x pp 2 x dp 1 is 4 ranks; 1 were started"):
        run_parallel(alone, layout=Layout(tp=2, pp=2))
    with pytest.raises(InputError, match="4 layers cannot fill 5 pipeline stages; use at most 4"):
        keep_stage(build(Shape()), 0, 5)


@pytest.mark.parametrize(("layers", "stages"), [(4, 4), (5, 2), (7, 3)])
def test_stages_share_out_every_layer_once(layers: int, stages: int) -> None:
    shape = Shape(layers=layers, width=16, heads=2, intermediate=16, vocab=8)
    counts = [len(keep_stage(build(shape), stage, stages).layers) for stage in range(stages)]
    assert sum(counts) == layers
    assert max(counts) - min(counts) <= 1
