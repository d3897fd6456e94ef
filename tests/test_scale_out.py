"""Scale out: answers of many workers are those of one process, also when a worker is lost."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pie_p.errors import InputError
from pie_p.predictor import predict_many
from pie_p.replaying import replay_fleet
from pie_p.sweeping import sweep
from pie_p.traces import synthetic_trace

pytest.importorskip("distributed", reason="dask comes with the extra: pip install 'pie_p[dask]'")
from pie_p.scale_out import Crew, workers

CONFIGURATIONS: list[dict[str, Any]] = [
    {"llm": llm, "gpu": "h100-sxm-80gb", "tp": tp, "batch": batch, "prompt_tokens": prompt, "output_tokens": 100}
    for llm in ("llama-3.1-8b", "qwen3-30b-a3b")
    for tp in (1, 2)
    for batch in (1, 8, 32)
    for prompt in range(50, 1000, 50)
]


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with workers(2, processes=False) as found:
        yield found


def test_predictions_are_those_of_one_process(crew: Crew) -> None:
    alone = predict_many(CONFIGURATIONS, keep_working=False)
    assert [one.to_dict() for one in predict_many(CONFIGURATIONS, predictor=crew.predictor())] == [one.to_dict() for one in alone]


def test_a_sweep_is_that_of_one_process(crew: Crew) -> None:
    question: dict[str, Any] = {"gpus": ["h100-sxm-80gb", "l40s-48gb"], "prompt_tokens": 500, "output_tokens": 300, "progress": False}
    alone, together = sweep("llama-3.1-70b", **question), sweep("llama-3.1-70b", **question, predictor=crew.predictor())
    assert together.to_dict() == alone.to_dict()


def test_replays_are_those_of_one_process(crew: Crew) -> None:
    trace = synthetic_trace(requests=60, rate_per_s=4, prompt_tokens=[50, 500], output_tokens=[20, 200], seed=3)
    jobs = [{"trace": trace, "fleet": [{"llm": "llama-3.1-8b", "gpu": gpu, "replicas": 2}]} for gpu in ("h100-sxm-80gb", "l40s-48gb")]
    for job, far in zip(jobs, crew.replay(jobs), strict=True):
        near = replay_fleet(job["trace"], job["fleet"])  # type: ignore[arg-type]
        assert np.array_equal(near.request_j, far.request_j)
        assert far.to_dict() == near.to_dict()


def test_a_lost_worker_costs_time_and_no_results(tmp_path: Path) -> None:
    with workers(2) as crew:
        mark = tmp_path / "died"
        assert crew.map(_die_once, [(number, str(mark)) for number in range(8)]) == [number**2 for number in range(8)]
        assert mark.exists()
        part = CONFIGURATIONS[:60]
        alone = predict_many(part, keep_working=False)
        assert [one.to_dict() for one in predict_many(part, predictor=crew.predictor())] == [one.to_dict() for one in alone]


def _die_once(job: tuple[int, str]) -> int:
    """The fourth job takes its worker down the first time it runs."""
    number, mark = job
    if number == 3 and not Path(mark).exists():
        Path(mark).touch()
        os._exit(1)
    time.sleep(0.05)
    return number**2


def test_an_address_where_nobody_answers_is_one_clear_line() -> None:
    with pytest.raises(InputError, match=r"^no dask scheduler at 'tcp://127.0.0.1:9': "), workers(scheduler="tcp://127.0.0.1:9"):
        pass


def test_a_job_that_is_no_replay_is_refused(crew: Crew) -> None:
    with pytest.raises(InputError, match=r"give mappings with `trace` and `fleet`"):
        crew.replay([{"trace": 1}])


def test_pie_p_sweep_asks_the_workers_at_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    from distributed import LocalCluster

    from pie_p.cli import main

    words = ["sweep", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--tp", "1,2", "--prompt-tokens", "100", "--output-tokens", "50", "--json"]

    def printed(*more: str) -> object:
        with pytest.raises(SystemExit) as end:
            main([*words, *more])
        assert end.value.code in (0, None)
        return json.loads(capsys.readouterr().out)

    with LocalCluster(n_workers=1, processes=False, protocol="tcp", dashboard_address=":0") as cluster:
        far = printed("--scheduler", cluster.scheduler_address)
    assert far == printed()
