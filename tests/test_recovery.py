"""Recovery: a simulated host with a known law -> profile through NVML -> train -> load -> predict gives the energies of the law back.

The law's form is not the predictor's (`pie_p/profiling/simulated_host.py`): another norm where compute and memory overlap, shares that grow
with the work, another exponent of power, latency that grows with the group, log-normal jitter.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("xgboost", reason="xgboost is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from known_host import Truth
from known_host import truth as law_of

from pie_p import Predictor, load_predictor
from pie_p.cases import make_case
from pie_p.cli import main
from pie_p.learning import SETTINGS, Settings
from pie_p.operators import collective
from pie_p.power import PowerLaw
from pie_p.profile_constants import constants_of
from pie_p.profiles import load_profile, save_profile
from pie_p.profiling.simulated_host import SimulatedGpu
from pie_p.profiling.simulated_profile import write_simulated_profile
from pie_p.serving import Case, ServingCosts
from pie_p.training import train

GPU = SimulatedGpu()
KINDS = {"linear": 600, "lm_head": 60, "attention_decode": 300, "attention_prefill": 260, "norm": 48, "activation": 48, "embedding": 48}
SMALL = {name: Settings(trees=120, leaves=24, rate=0.15, knee=one.knee) for name, one in SETTINGS.items()}
CASES = {  # LLM, tp, batch, prompt tokens, output tokens
    "8b, one request": ("llama-3.1-8b", 4, 1, 512, 256),
    "8b": ("llama-3.1-8b", 4, 16, 512, 256),
    "8b, much prefill": ("llama-3.1-8b", 4, 64, 1024, 256),
    "8b, a pair": ("llama-3.1-8b", 2, 8, 128, 512),
    "70b": ("llama-3.1-70b", 4, 16, 512, 256),
    "70b, much prefill": ("llama-3.1-70b", 4, 64, 1024, 128),
}


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recovery") / "profile"
    write_simulated_profile(folder, points=KINDS, dtypes=("bf16",))  # type: ignore[arg-type]
    return folder


@pytest.fixture(scope="module")
def predictor(profile: Path) -> Predictor:
    folder = profile.parent / "predictor"
    train([profile], folder, name="recovered", constants=constants_of([profile]), settings=SMALL)
    return Predictor.load(folder)


def case(name: str) -> Case:
    llm, tp, batch, prompt, output = CASES[name]
    return make_case(llm, gpu="h100-sxm-80gb", tp=tp, batch=batch, prompt_tokens=prompt, output_tokens=output)


def truth(asked: Case) -> Truth:
    return law_of(asked, GPU)


@pytest.mark.parametrize("name", CASES)
def test_energies_of_the_law_come_back_part_by_part(predictor: Predictor, name: str) -> None:
    [answer], expected = predictor.predict([case(name)]), truth(case(name))
    assert answer.breakdown.compute_j == pytest.approx(expected.compute_j, rel=0.02)
    assert answer.breakdown.communication_j == pytest.approx(expected.communication_j, rel=0.05)
    assert answer.breakdown.wait_j == pytest.approx(expected.wait_j, rel=0.10)
    assert answer.energy_j == pytest.approx(expected.total_j, rel=0.03)


@pytest.mark.parametrize("name", ["8b, one request", "8b", "8b, a pair"])
def test_leaving_waits_out_costs_the_true_share_of_waits(predictor: Predictor, name: str) -> None:
    none = ServingCosts(**dict.fromkeys(ServingCosts._fields, 0.0))._replace(overlap_power=3.0)
    without = replace(predictor, serving=dict.fromkeys(predictor.serving, none))
    [answer], expected = without.predict([case(name)]), truth(case(name))
    assert answer.breakdown.wait_j == pytest.approx(0.0, abs=1e-6 * expected.total_j)
    share = expected.wait_j / expected.total_j
    assert share > 0.15
    assert 1.0 - answer.energy_j / expected.total_j == pytest.approx(share, rel=0.10)


def test_the_prior_knows_nothing_of_this_host(predictor: Predictor) -> None:
    """Otherwise recovery would prove nothing."""
    [prior], [answer], expected = Predictor().predict([case("8b")]), predictor.predict([case("8b")]), truth(case("8b"))
    assert abs(prior.energy_j / expected.total_j - 1) > 10 * abs(answer.energy_j / expected.total_j - 1)


def test_jitter_gaps_and_the_power_of_waiting_are_those_that_were_put_in(profile: Path) -> None:
    found = constants_of([profile])
    assert found.costs.jitter == pytest.approx(GPU.jitter, rel=0.05)
    assert (found.costs.launch_s, found.costs.step_s) == pytest.approx((GPU.gap_s, GPU.host_s))
    board = case("8b").deployment.cluster.gpu
    assert board.active_idle_w + found.power.wait * (board.limit_w - board.active_idle_w) == pytest.approx(GPU.wait_w, rel=1e-6)


def test_the_power_of_a_collective_is_learned_by_message_size(predictor: Predictor) -> None:
    """All-reduces of 8 KiB to 66 MB on two and four ranks, as requests make them; most sizes lie between profiled ones.

    Truth: 140 W of waiting + 90 W x (link use)^0.8. Imported tables know no power of collectives; the prior is far off here.
    """
    worst = {"learned": 0.0, "prior": 0.0}
    for group_size in (2, 4):
        seen: dict[float, float] = {}
        for batch, prompt in ((1, 16), (1, 300), (8, 1500), (60, 5000), (1, 16000)):
            asked = make_case("llama-3.1-8b", gpu="h100-sxm-80gb", tp=group_size, batch=batch, prompt_tokens=prompt, output_tokens=64)
            for name, who in (("learned", predictor), ("prior", Predictor())):
                for row in who.predict([asked])[0].operators:
                    if row.kind == "all_reduce" and row.calls > 0:
                        meeting = collective("all_reduce", "all_reduce", tokens=1, width=row.payload_bytes / 2, group_size=group_size)
                        assert meeting.payload_bytes == pytest.approx(row.payload_bytes)
                        worst[name] = max(worst[name], abs(row.power_w / GPU.power_w(meeting) - 1))
                        if name == "learned":
                            assert row.power_w * row.time_s == pytest.approx(GPU.power_w(meeting) * GPU.time_s(meeting), rel=0.08)
                            seen[row.payload_bytes] = row.power_w
        powers = [seen[size] for size in sorted(seen)]
        assert min(seen) < 20_000
        assert max(seen) > 60e6
        assert powers == sorted(powers)  # the longer the message, the better it fills the link
        assert powers[-1] > 1.4 * powers[0]
    assert worst["learned"] < 0.04 < 0.1 < worst["prior"]


def test_without_a_power_meter_times_are_learned_and_power_stays_known(profile: Path, tmp_path: Path) -> None:
    held = load_profile(profile)
    unmetered = [table.with_columns(power_w=np.nan) for table in (held.operators, held.collectives, held.waits)]
    save_profile(tmp_path / "profile", held.manifest, unmetered)
    found, timed = constants_of([tmp_path / "profile"]), constants_of([profile], time_only=True)
    assert found.power == timed.power == PowerLaw()
    assert found.roofline == timed.roofline == constants_of([profile]).roofline


def test_the_command_learns_waits_and_gaps_from_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_simulated_profile(tmp_path / "profile", points={"norm": 8, "attention_decode": 12}, payload_count=3)
    out = tmp_path / "predictor"
    for flags in ([], ["--time-only"]):
        with pytest.raises(SystemExit) as stopped:
            main(["train", str(tmp_path / "profile"), "-o", str(out), "--json", *flags])
        assert stopped.value.code in (0, None), capsys.readouterr().err
        assert json.loads(capsys.readouterr().out)["families"] == []  # too few rows for boosters: constants alone
        learned = Predictor.load(out)
        assert learned.costs_of(case("8b").deployment.engine).step_s == GPU.host_s
        assert (learned.power == load_predictor().power) == bool(flags)
