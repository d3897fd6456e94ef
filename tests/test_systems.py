"""Systems: deployments by their joules and seconds, predicted, fitted, saved and read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pie_p.errors import InputError, PiePError
from pie_p.predictor import predict_energy
from pie_p.system_files import load_systems
from pie_p.systems import System, fit_system, predict_system, save_systems
from pie_p.workload_fits import WorkloadFit


def test_a_predicted_system_answers_as_predict_energy_does() -> None:
    system = predict_system("llama-3.1-8b", gpu="h100-sxm-80gb", batch=32, accuracy=0.66)
    for prompt, output in ((100, 50), (500, 300), (3000, 200)):
        direct = predict_energy("llama-3.1-8b", gpu="h100-sxm-80gb", batch=32, prompt_tokens=prompt, output_tokens=output)
        assert float(system.energy_j(prompt, output)) == pytest.approx(direct.energy_j, rel=0.12)
        assert float(system.time_s(prompt, output)) == pytest.approx(direct.latency_s, rel=0.2)


def test_slots_are_the_requests_in_flight_on_all_replicas() -> None:
    assert predict_system("llama-3.1-8b", gpu="h100-sxm-80gb", batch=8, dp=2).slots == 16


def test_saved_systems_come_back_equal(tmp_path: Path) -> None:
    systems = [predict_system("llama-3.1-8b", gpu=gpu, batch=16, accuracy=0.5) for gpu in ("h100-sxm-80gb", "l40s-48gb")]
    save_systems(tmp_path / "fits.json", systems)
    assert load_systems(tmp_path / "fits.json") == systems


def test_a_file_names_deployments(tmp_path: Path) -> None:
    text = '[[systems]]\nllm = "llama-3.1-8b"\ngpu = "h100-sxm-80gb"\nbatch = 32\naccuracy = 0.66\n'
    (tmp_path / "systems.toml").write_text(text, encoding="utf-8")
    [system] = load_systems(tmp_path / "systems.toml")
    assert system == predict_system("llama-3.1-8b", gpu="h100-sxm-80gb", batch=32, accuracy=0.66)


def test_a_system_may_be_fitted_to_measured_rows() -> None:
    rows = {"prompt_tokens": [10, 10, 1000, 1000], "output_tokens": [10, 100, 10, 100]}
    system = fit_system("ours", llm="own", energy_j=[2.11, 11.2, 13.0, 31.0], time_s=[1.0, 10.0, 1.0, 10.0], form="bilinear", **rows)
    assert float(system.energy_j(10, 100)) == pytest.approx(11.2)
    assert float(system.time_s(500, 50)) == pytest.approx(5.0)  # a tenth of a second per token


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no list of systems"),
        ('[[systems]]\nllm = "llama-3.1-8b"\ngpus = "l4-24gb"\n', r"system 1 of systems.toml: no field 'gpus'. Did you mean: gpu"),
        ('[[systems]]\ngpu = "l4-24gb"\n', r"system 1 of systems.toml: llm is missing"),
        ('[[systems]]\nllm = "llama-3.1-8b"\ngpu = "l4-24gb"\naccuracy = "high"\n', "accuracy = 'high' is not a number"),
        ('[[systems]]\nllm = "llama-3.1-8b"\ngpu = "l4"\n', "no GPU 'l4'"),
        ("[[systems]", "cannot be read as TOML"),
    ],
)
def test_a_file_that_cannot_be_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "systems.toml").write_text(text, encoding="utf-8")
    with pytest.raises(PiePError, match=message) as error:
        load_systems(tmp_path / "systems.toml")
    assert "\n" not in str(error.value)


def test_two_systems_of_one_name_are_refused(tmp_path: Path) -> None:
    fit = WorkloadFit(form="wilkins", method="relative", coefficients=(1.0, 1.0, 0.0))
    system = System(name="a", llm="x", energy_j=fit, time_s=fit)
    with pytest.raises(InputError, match=r"^two systems are called 'a'; give each a name of its own$"):
        save_systems(tmp_path / "fits.json", [system, system])
    assert not (tmp_path / "fits.json").exists()
