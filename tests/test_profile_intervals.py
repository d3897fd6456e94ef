"""Intervals of a predictor trained on a profile alone: tested on runs that taught nothing, and absent where there are too few."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("xgboost", reason="xgboost is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from known_host import truth

from pie_p import Predictor
from pie_p.cases import make_case
from pie_p.cli import main
from pie_p.end_to_end import measured_runs
from pie_p.errors import PredictorError, ProfileError
from pie_p.intervals import LEVELS
from pie_p.profile_intervals import LEAST_LLMS, intervals_from_runs
from pie_p.profiles import append_profile
from pie_p.profiling.simulated_host import SimulatedGpu
from pie_p.profiling.simulated_profile import write_simulated_profile
from pie_p.tables import Table

GPU = SimulatedGpu()
KINDS = {"linear": 32, "lm_head": 10, "attention_decode": 20, "attention_prefill": 20, "norm": 8, "activation": 8, "embedding": 8}
LLMS = (
    "llama-3.1-8b", "llama-3.1-70b", "qwen3-14b", "qwen3-32b", "codellama-13b", "codellama-34b", "gemma-7b", "falcon3-7b", "glm-4-32b",
    "granite-3.3-8b", "internlm2-20b", "command-r-08-2024",
)  # fmt: skip
OTHERS = ("qwen3-8b", "codellama-7b", "codellama-70b", "deepseek-llm-67b", "deepseek-llm-7b", "falcon3-10b", "internlm2-7b", "gemma-2-27b")
LOADS = ((2, 1, 256, 256), (4, 16, 512, 256), (4, 48, 1024, 128))  # tp, batch, prompt tokens, output tokens


def runs_of(llms: Sequence[str]) -> Table:
    """Whole deployments measured on the simulated host: the energies of its law."""
    rows: dict[str, list[object]] = {}
    for llm in llms:
        for tp, batch, prompt, output in LOADS:
            case = make_case(llm, gpu="h100-sxm-80gb", tp=tp, batch=batch, prompt_tokens=prompt, output_tokens=output)
            true, plan = truth(case, GPU), case.deployment.plan
            row = {
                "llm": llm, "gpu": "h100-sxm-80gb", "tp": float(tp), "batch": float(batch), "prompt_tokens": float(prompt),
                "output_tokens": float(output), "mode": case.request.mode, "engine": "vllm", "time_per_token_s": true.time_per_token_s,
                "avg_power_w": true.total_j / output * batch / true.time_per_token_s, "energy_per_output_token_j": true.total_j / output,
            }  # fmt: skip
            assert plan.gpus == tp
            for name, value in row.items():
                rows.setdefault(name, []).append(value)
    return Table.from_columns("end_to_end", {**rows, "origin": "simulated", "source": "test"})


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("intervals") / "profile"
    write_simulated_profile(folder, points=KINDS, dtypes=("bf16",), payload_count=5)  # type: ignore[arg-type]
    return folder


@pytest.fixture(scope="module")
def with_runs(profile: Path) -> Path:
    folder = profile.parent / "with-runs"
    shutil.copytree(profile, folder)
    append_profile(folder, [runs_of(LLMS)])
    return folder


def train(profile: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    with pytest.raises(SystemExit) as stopped:
        main(["train", str(profile), "-o", str(out), "--json"])
    assert stopped.value.code in (0, None)
    return dict(json.loads(capsys.readouterr().out))


def test_without_runs_there_is_no_interval_and_the_command_says_what_to_profile(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = train(profile, tmp_path / "bare", capsys)
    assert told["interval"] == (
        "no interval: the profiles hold no end-to-end runs; an interval needs measured energies of 10 base LLMs or more, "
        "as end_to_end rows of boards in the catalogue"
    )
    [answer] = Predictor.load(tmp_path / "bare").predict([make_case("qwen3-8b", gpu="h100-sxm-80gb", prompt_tokens=9, output_tokens=9)])
    with pytest.raises(PredictorError, match="no tested interval"):
        answer.interval(0.9)


def test_with_runs_there_is_an_interval_and_the_card_says_on_what_it_was_tested(
    with_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = train(with_runs, tmp_path / "tested", capsys)
    assert told["interval"] == "interval tested on 36 runs of 12 LLMs, none of which taught the predictor"
    predictor = Predictor.load(tmp_path / "tested")
    [answer] = predictor.predict([make_case("qwen3-8b", gpu="h100-sxm-80gb", tp=2, prompt_tokens=256, output_tokens=256)])
    low_j, high_j = answer.interval(0.9)
    assert low_j < answer.energy_j < high_j < 1.5 * low_j  # some percent off here: an interval of a factor would say nothing
    assert "interval tested on 36 runs" in (tmp_path / "tested" / "card.md").read_text()


def test_nine_in_ten_llms_that_neither_taught_nor_tested_are_covered(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twenty LLMs, twelve drawn to make the interval and eight to check it, forty times: exchangeable, so nine in ten should be inside."""
    train(profile, tmp_path / "plain", capsys)
    predictor = Predictor.load(tmp_path / "plain")
    runs = measured_runs(runs_of(LLMS + OTHERS).iter_rows())
    ours = np.array([answer.energy_per_output_token_j for answer in predictor.predict(runs.cases)])
    off = np.abs(np.log(ours / runs.energy_per_output_token_j))
    chance, covered = np.random.default_rng(5), []
    for _ in range(40):
        made = np.isin(runs.base, chance.choice(np.unique(runs.base), 12, replace=False))
        width = intervals_from_runs(predictor, runs.take(made)).widths["energy"]["llm"][LEVELS.index(0.9)]
        covered.append((off[~made] <= width).mean())
    assert 0.85 <= np.mean(covered) <= 0.98


def test_the_runs_change_no_answer(profile: Path, with_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They test and do not teach."""
    train(with_runs, tmp_path / "tested", capsys)
    train(profile, tmp_path / "untested", capsys)
    tested, untested = Predictor.load(tmp_path / "tested"), Predictor.load(tmp_path / "untested")
    assert (tested.roofline, tested.power, tested.serving) == (untested.roofline, untested.power, untested.serving)
    assert untested.intervals is None
    assert tested.intervals is not None


def test_fewer_llms_than_needed_are_one_clear_line() -> None:
    runs = measured_runs(runs_of(LLMS[: LEAST_LLMS - 1]).iter_rows())
    with pytest.raises(ProfileError, match="9 LLMs with measured energy; an interval needs measured energies of 10 base LLMs or more"):
        intervals_from_runs(Predictor(), runs)
    with pytest.raises(ProfileError, match="1 LLM with measured energy"):
        intervals_from_runs(Predictor(), runs.take(runs.base == LLMS[0]))


def test_a_worse_predictor_gets_wider_bounds_at_every_level(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(profile, tmp_path / "good", capsys)
    runs = measured_runs(runs_of(LLMS).iter_rows())
    good, bad = (intervals_from_runs(each, runs).widths["energy"]["llm"] for each in (Predictor.load(tmp_path / "good"), Predictor()))
    assert len(good) == len(LEVELS)
    assert all(narrow < wide for narrow, wide in zip(good, bad, strict=True))
    assert list(good) == sorted(good)
