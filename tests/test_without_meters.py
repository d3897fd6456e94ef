"""A cluster without power meters: timings from there, power from boards that had a meter. Both hosts are simulated, so the truth is known.

The metered host and the one without share a board; the other's memory runs at 72 %, its links at 38 %, its host side takes three times as
long. Its true energies come from the law and are never shown to anything.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("xgboost", reason="xgboost is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from known_host import Truth, truth

from pie_p import Predictor, load_predictor
from pie_p.cases import make_case
from pie_p.cli import main
from pie_p.profiles import load_profile, save_profile
from pie_p.profiling.simulated_host import SimulatedGpu
from pie_p.profiling.simulated_profile import write_simulated_profile
from pie_p.serving import Case

METERED = SimulatedGpu()
OTHER = replace(METERED, hbm_bytes_per_s=2.4e12, link_bytes_per_s=150e9, host_s=3e-3, gap_s=3e-6)
SLOW_CPU = replace(METERED, host_s=4e-3, gap_s=4e-6)  # the same kernels and links
KINDS = {"linear": 32, "lm_head": 10, "attention_decode": 20, "attention_prefill": 20, "norm": 8, "activation": 8, "embedding": 8}
ASKED = [  # LLM, tp, batch, prompt tokens, output tokens
    ("llama-3.1-8b", 4, 1, 512, 256),
    ("llama-3.1-8b", 4, 16, 512, 256),
    ("llama-3.1-8b", 4, 64, 1024, 256),
    ("llama-3.1-8b", 2, 8, 128, 512),
    ("llama-3.1-70b", 4, 1, 300, 100),
    ("llama-3.1-70b", 4, 16, 512, 256),
    ("qwen3-14b", 4, 8, 256, 256),
    ("qwen3-14b", 2, 1, 256, 256),
    ("qwen3-14b", 2, 32, 256, 256),
]


def case(asked: tuple[str, int, int, int, int]) -> Case:
    llm, tp, batch, prompt, output = asked
    return make_case(llm, gpu="h100-sxm-80gb", tp=tp, batch=batch, prompt_tokens=prompt, output_tokens=output)


CASES = [case(asked) for asked in ASKED]


def truths(gpu: SimulatedGpu) -> list[Truth]:
    return [truth(each, gpu) for each in CASES]


def errors(predictor: Predictor, gpu: SimulatedGpu) -> tuple[float, float]:
    """Mean absolute relative error of time per token and of energy [-]."""
    answers, expected = predictor.predict(CASES), truths(gpu)
    time = np.mean([abs(ours.time_per_token_s / true.time_per_token_s - 1) for ours, true in zip(answers, expected, strict=True)])  # type: ignore[operator]
    energy = np.mean([abs(ours.energy_j / true.total_j - 1) for ours, true in zip(answers, expected, strict=True)])
    return float(time), float(energy)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both hosts' profiles; that of the one without meters has lost every watt."""
    place = tmp_path_factory.mktemp("without-meters")
    for name, gpu in (("metered", METERED), ("with-watts", OTHER)):
        write_simulated_profile(place / name, gpu=gpu, points=KINDS, dtypes=("bf16",), payload_count=5)  # type: ignore[arg-type]
    held = load_profile(place / "with-watts")
    unmetered = [table.with_columns(power_w=np.nan) for table in (held.operators, held.collectives, held.waits)]
    save_profile(place / "other", held.manifest, unmetered)
    return place


def trained(folder: Path, profile: str, *flags: str) -> Predictor:
    out = folder / "-".join([profile, "predictor", str(len(flags))])
    with pytest.raises(SystemExit) as stopped:
        main(["train", str(folder / profile), "-o", str(out), "--json", *flags])
    assert stopped.value.code in (0, None)
    return Predictor.load(out)


@pytest.fixture(scope="module")
def metered(folder: Path) -> Predictor:
    return trained(folder, "metered")


def test_timings_alone_bring_time_and_energy_near_and_leave_power_as_it_was(folder: Path, metered: Predictor) -> None:
    before = errors(metered, OTHER)
    learned = trained(folder, "other", "--time-only", "--power-from", str(folder / "metered-predictor-0"))
    time, energy = errors(learned, OTHER)
    assert learned.power == metered.power
    assert before[0] > 0.3  # otherwise nothing would be proven
    assert before[1] > 0.25
    assert time < 0.06
    assert energy < 0.15 < before[1] / 2
    assert [learned.costs_of(one.deployment.engine).step_s for one in CASES[:1]] == [OTHER.host_s]


def test_watts_that_are_there_are_not_looked_at(folder: Path) -> None:
    """`--time-only` on a profile with watts learns what it learns on the same profile without."""
    flags = ("--time-only", "--power-from", str(folder / "metered-predictor-0"))
    with_watts, without = (trained(folder, name, *flags) for name in ("with-watts", "other"))
    assert (with_watts.power, with_watts.roofline, with_watts.serving) == (without.power, without.roofline, without.serving)


def test_without_a_predictor_named_power_is_that_of_the_shipped_one(folder: Path) -> None:
    assert trained(folder, "other", "--time-only").power == load_predictor().power


def test_measured_runs_without_watts_calibrate_the_host_side(metered: Predictor) -> None:
    """Nine timed runs on the host with the slow processor; errors are those of the LLM left out."""
    rows = _rows(SLOW_CPU)
    result = metered.calibrate(rows)
    assert result.split == "llm"
    assert result.before["time"] > 0.25
    assert result.after["time"] < 0.1
    assert set(result.after) == {"time"}  # nothing is claimed about what was not measured
    assert result.predictor.power == metered.power
    assert not any(name.startswith("power") for name in result.changed)
    before, after = errors(metered, SLOW_CPU), errors(result.predictor, SLOW_CPU)
    assert before[1] > 0.2
    assert after[1] < 0.06
    assert result.predictor.costs_of(CASES[0].deployment.engine).step_s == pytest.approx(
        SLOW_CPU.host_s, rel=0.35
    )  # gaps count as host too


def test_calibration_says_that_kernels_it_cannot_move_stay_wrong(metered: Predictor) -> None:
    """Slower memory and links are no host costs: calibration helps, and the error it states for runs left out stays large."""
    result = metered.calibrate(_rows(OTHER))
    assert 0.06 < result.after["time"] < result.before["time"]


def _rows(gpu: SimulatedGpu) -> list[dict[str, Any]]:
    names = ("llm", "tp", "batch", "prompt_tokens", "output_tokens")
    return [
        {**dict(zip(names, asked, strict=True)), "gpu": "h100-sxm-80gb", "time_per_token_s": true.time_per_token_s}
        for asked, true in zip(ASKED, truths(gpu), strict=True)
    ]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--power-from", "default"], "--power-from default goes with --time-only"),
        (["--time-only", "--power-from", "defalt"], "no predictor 'defalt'; known: "),
        (["--time-only", "--power-from", "default", "--learn", "operators"], "needs profiles with waits, or --learn profile"),
        (["--time-only", "--learn", "end-to-end"], "--time-only learns times of operators"),
    ],
)
def test_what_does_not_go_together_is_one_line(folder: Path, flags: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", str(folder / "other"), "-o", str(folder / "never"), *flags])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert text in said
    assert "Traceback" not in said
    assert not (folder / "never").exists()


def test_the_command_says_what_it_wrote(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", str(folder / "other"), "-o", str(folder / "said"), "--json", "--time-only", "--name", "ours"])
    assert json.loads(capsys.readouterr().out)["name"] == "ours"
