"""Sweeps: every combination once, each figure what a prediction alone says, and the choice that brute force finds."""

from __future__ import annotations

import csv
import io
import json
import pickle
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pie_p import Candidate, Cluster, Sweep, load_gpu, predict_energy, sweep
from pie_p.candidates import FIGURES
from pie_p.errors import InputError, MissingExtraError, PiePError

ASK: dict[str, Any] = {"prompt_tokens": 500, "output_tokens": 300}


@pytest.fixture(scope="module")
def plans() -> Sweep:
    """Llama-3.1-70B on two boards with everything left out."""
    return sweep("llama-3.1-70b", gpus=["h100-sxm-80gb", "a100-sxm-80gb"], **ASK)


def test_the_first_line_of_the_how_to_just_works() -> None:
    chosen = sweep("llama-3.1-70b", gpus=["h100-sxm-80gb"], **ASK).best(max_tpot_s=0.05)
    assert chosen.tpot_s is not None
    assert chosen.tpot_s <= 0.05
    assert chosen.gpus >= 2  # 141 GB of weights


def test_every_combination_is_there_once_feasible_or_with_its_reason() -> None:
    lists: dict[str, Any] = {
        "tp": [1, 2, 3, 4],
        "pp": [1, 2],
        "dp": [1, 2],
        "batch": [1, 16, 4096],
        "dtype": ["bf16", "fp8"],
        "power_limit_w": [None, 10, 500],
    }
    found = sweep("llama-3.1-70b", gpus=["h100-sxm-80gb"], **lists, **ASK)
    assert len(found) + found.refused == len(list(product(*lists.values())))
    keys = [(c.tp, c.pp, c.dp, c.batch, c.dtype, c.power_limit_w) for c in found]
    assert len(set(keys)) == len(keys)
    why = {each.why: each.reason for each in found.infeasible}
    assert set(why) == {"plan", "memory", "kv_cache", "power_limit"}
    assert "tp = 3 does not divide the 64 query heads" in why["plan"]
    assert "weights of llama-3.1-70b take" in why["memory"]
    assert "the KV cache of batch 4096 does not fit" in why["kv_cache"]
    assert "power_limit_w = 10 W is outside" in why["power_limit"]


def test_reasons_are_those_a_prediction_alone_gives() -> None:
    found = sweep("llama-3.1-70b", gpus="h100-sxm-80gb", tp=[1, 3], pp=1, batch=8, **ASK)
    for refused in found.infeasible:
        with pytest.raises(PiePError) as error:
            predict_energy("llama-3.1-70b", gpu="h100-sxm-80gb", tp=refused.tp, batch=8, **ASK)
        assert refused.reason == str(error.value)
    assert len(found.infeasible) == 2
    assert len(found) == 0
    with pytest.raises(InputError, match=r"^no plan of the sweep can run \(2 tried\); the first: the bf16 weights .* take 141\.1 GB"):
        found.best()


def test_equal_entries_count_once() -> None:
    twice = sweep(
        "meta-llama/Llama-3.1-8B-Instruct", gpus=["h100-sxm-80gb", load_gpu("NVIDIA H100 80GB HBM3")], tp=[1, 1.0], pp=1, batch=[8, 8.0],
        dtype=[None, "bf16"], power_limit_w=[None, 700], **ASK,
    )  # fmt: skip
    assert (len(twice), twice.refused) == (1, 0)


@pytest.mark.parametrize("scope", [{}, {"scope": "host"}, {"scope": "facility", "pue": 1.3}])
def test_figures_are_those_of_a_prediction_alone(scope: dict[str, Any]) -> None:
    found = sweep("mixtral-8x7b", gpus="h100-sxm-80gb", tp=4, pp=2, dp=2, ep=8, batch=[1, 24], power_limit_w=500, **scope, **ASK)
    for each in found:
        alone = predict_energy(
            "mixtral-8x7b", gpu="h100-sxm-80gb", tp=4, pp=2, dp=2, ep=8, batch=each.batch, power_limit_w=500, **scope, **ASK
        )
        for name in (
            "energy_j",
            "energy_per_output_token_j",
            "latency_s",
            "ttft_s",
            "tpot_s",
            "itl_s",
            "avg_power_w",
            "gpus",
            "power_limit_w",
        ):
            assert getattr(each, name) == pytest.approx(getattr(alone, name), rel=1e-12)
        assert (each.interval_low_j, each.interval_high_j) == pytest.approx(alone.interval(0.9))
        assert each.warnings == alone.warnings
        whole = found.predict(each)
        assert whole.energy_j == pytest.approx(each.energy_j, rel=1e-12)
        assert sum(operator.energy_j for operator in whole.operators) == pytest.approx(alone.breakdown.gpu_j)


def test_throughput_times_energy_is_power(plans: Sweep) -> None:
    """In scope gpu, J per token times tokens per second are the watts of all boards."""
    for each in plans:
        assert each.energy_per_output_token_j is not None
        assert each.tokens_per_s is not None
        assert each.energy_per_output_token_j * each.tokens_per_s == pytest.approx(each.avg_power_w, rel=1e-9)
        assert each.tokens_per_s == pytest.approx(each.requests_per_s * 300)


def test_memory_is_weights_and_cache() -> None:
    """Llama-3.1-70B in bf16 at TP 4: 70.55e9 x 2 B / 4, and 2 x 8/4 heads x 128 x 80 layers x 2 B per token, of 500 + 300 / 2 tokens."""
    [one] = sweep("llama-3.1-70b", gpus="h100-sxm-80gb", tp=4, pp=1, batch=1, **ASK)
    assert one.memory_bytes_per_gpu == pytest.approx(70.55e9 * 2 / 4 + 2 * 2 * 128 * 80 * 2 * 650, rel=1e-3)
    assert one.memory_share == pytest.approx(one.memory_bytes_per_gpu / load_gpu("h100-sxm-80gb").memory_bytes)


def test_degrees_left_out_stay_on_one_host_and_the_weights_fit(plans: Sweep) -> None:
    assert max(each.gpus for each in plans) == 8
    assert {each.tp for each in plans} == {1, 2, 4, 8}
    large = sweep("deepseek-v3", gpus="h100-sxm-80gb", batch=8, **ASK)  # 673 GB of fp8 weights; one host has 640
    assert min(each.gpus for each in large) == 16
    assert {each.ep for each in large} >= {1, 16}  # experts whole in shards, and spread over all
    two = Cluster(gpu="h100-sxm-80gb", hosts=1)
    assert len(sweep("deepseek-v3", gpus=two, batch=8, **ASK)) == 0  # a cluster is as large as it is


def dominates(one: Candidate, other: Candidate, names: tuple[str, str]) -> bool:
    signs = [-1 if FIGURES[name].more_is_better else 1 for name in names]
    a, b = ([sign * getattr(each, name) for sign, name in zip(signs, names, strict=True)] for each in (one, other))
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


@pytest.mark.parametrize("names", [("latency_s", "energy_per_output_token_j"), ("tokens_per_s_per_gpu", "tpot_s"), ("gpus", "energy_j")])
def test_the_front_is_what_brute_force_finds(plans: Sweep, names: tuple[str, str]) -> None:
    brute = [each for each in plans if not any(dominates(other, each, names) for other in plans)]
    front = plans.pareto(*names)
    assert {id(each) for each in front} == {id(each) for each in brute}
    sign = -1 if FIGURES[names[0]].more_is_better else 1
    assert [sign * getattr(each, names[0]) for each in front] == sorted(sign * getattr(each, names[0]) for each in front)


def test_equal_points_are_on_the_front_together() -> None:
    found = sweep("llama-3.1-8b", gpus="h100-sxm-80gb", tp=1, pp=1, dp=[1, 2], batch=8, **ASK)  # replicas change no joule
    assert len(found.pareto()) == 2
    assert found.best().dp == 1  # of equal ones that with the fewest GPUs


LIMITS: list[dict[str, float]] = [
    {},
    {"max_tpot_s": 0.02},
    {"max_ttft_s": 0.1, "max_gpus": 4},
    {"min_tokens_per_s": 1000, "max_latency_s": 15},
    {"max_avg_power_w": 2000, "max_time_per_token_s": 0.06, "min_requests_per_s": 1},
]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("objective", ["energy_per_output_token_j", "tokens_per_s_per_gpu"])
def test_the_best_is_what_brute_force_finds(plans: Sweep, limits: dict[str, float], objective: str) -> None:
    def kept(each: Candidate) -> bool:
        return all(getattr(each, n[4:]) <= v if n.startswith("max") else getattr(each, n[4:]) >= v for n, v in limits.items())

    least = min if objective.endswith("_j") else max
    expected = least(getattr(each, objective) for each in plans if kept(each))
    chosen = plans.best(objective, **limits)  # type: ignore[arg-type]
    assert kept(chosen)
    assert getattr(chosen, objective) == expected


def test_a_margin_keeps_clear_of_the_limit(plans: Sweep) -> None:
    limit = plans.best(max_tpot_s=0.03).tpot_s
    assert limit is not None
    careful = plans.best(max_tpot_s=limit, margin=0.1)
    assert careful.tpot_s is not None
    assert careful.tpot_s * 1.1 <= limit
    assert plans.best(max_gpus=2, margin=0.5).gpus == 2  # what is counted needs no margin


def test_limits_that_nothing_keeps_name_the_nearest_miss(plans: Sweep) -> None:
    least = min(plans, key=lambda each: each.tpot_s or 0)
    with pytest.raises(InputError) as error:
        plans.best(max_tpot_s=0.001)
    assert str(error.value).startswith(
        f"none of {len(plans)} feasible plans keeps tpot_s <= 0.001 s; the nearest, {least.plan}, has tpot_s = "
    )


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"gpus": []}, r"gpus is an empty list; give at least one"),
    ({"gpus": ["h100"]}, r"no GPU 'h100' in the catalogue\. Did you mean: h100-sxm-80gb"),
    ({"gpus": 7}, r"7 is no GPU"),
    ({"tp": []}, r"tp is an empty list"),
    ({"tp": [1, 2.5]}, r"tp = 2\.5 is not a whole number"),
    ({"batch": [1, "x"]}, r"batch = 'x' is not a number"),
    ({"dtype": ["bf16", "fp7"]}, r"dtype = 'fp7' is not known"),
    ({"engine": ["tgi"]}, r"no engine 'tgi'"),
    ({"power_limit_w": -5}, r"power_limit_w = -5 is not allowed"),
    ({"prompt_tokens": -1}, r"prompt_tokens = -1 is not allowed"),
    ({"mode": "fast"}, r"mode = 'fast' is not known"),
    ({"scope": "facility"}, r"needs pue"),
    ({"batch": range(1, 10**6), "tp": 1}, r"more than 200,000 configurations"),
]


@pytest.mark.parametrize(("wrong", "text"), MISTAKES, ids=[text[:30] for _, text in MISTAKES])
def test_what_can_be_nothing_is_one_line(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(PiePError, match=text) as error:
        sweep("llama-3.1-8b", **({"gpus": "h100-sxm-80gb"} | ASK | wrong))
    assert "\n" not in str(error.value)


def test_unknown_figures_are_named(plans: Sweep) -> None:
    with pytest.raises(InputError, match=r"'energy' is no figure to choose by\. Did you mean: energy_j"):
        plans.best("energy")
    with pytest.raises(InputError, match=r"is no figure"):
        plans.pareto("latency_s", "joules")
    with pytest.raises(InputError, match=r"max_tpot_s = 'x' is not a number"):
        plans.best(max_tpot_s="x")  # type: ignore[arg-type]


def test_a_prefill_only_request_is_chosen_by_its_energy() -> None:
    found = sweep("llama-3.1-8b", gpus="h100-sxm-80gb", tp=[1, 2], pp=1, batch=[1, 4], prompt_tokens=900, output_tokens=0)
    assert found.best().energy_j == min(each.energy_j for each in found)
    assert {each.tokens_per_s for each in found} == {None}
    assert found.pareto()
    with pytest.raises(InputError, match=r"energy_per_output_token_j does not exist here"):
        found.best("energy_per_output_token_j")
    with pytest.raises(InputError, match=r"has no tpot_s"):
        found.best(max_tpot_s=0.05)


def test_tables_carry_units_scope_and_every_row(plans: Sweep, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = plans.to_frame()
    assert list(frame["energy_j"]) == [each.energy_j for each in plans]
    assert {"scope", "llm", "predictor", "memory_bytes_per_gpu"} <= set(frame.columns)
    everything = plans.to_frame(infeasible=True)
    assert len(everything) == len(plans) + len(plans.infeasible)
    assert everything["reason"].notna().sum() == len(plans.infeasible)
    for suffix, read in (("csv", pandas.read_csv), ("parquet", pandas.read_parquet)):
        plans.save(tmp_path / f"plans.{suffix}")
        back = read(tmp_path / f"plans.{suffix}")
        assert list(back.columns) == list(everything.columns)
        assert back["energy_j"].dropna().tolist() == [each.energy_j for each in plans]
    assert not list(tmp_path.glob(".*"))


def test_without_pandas_a_frame_is_an_arrow_table(plans: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    monkeypatch.setattr("pie_p.frames.find_spec", lambda name: None if name == "pandas" else object())
    table = plans.to_frame()
    assert isinstance(table, arrow.Table)
    assert table["energy_j"].to_pylist() == [each.energy_j for each in plans]


def test_json_is_the_dictionary_and_csv_needs_no_package(plans: Sweep, tmp_path: Path) -> None:
    plans.save(tmp_path / "plans.json")
    assert json.loads((tmp_path / "plans.json").read_text(encoding="utf-8")) == json.loads(json.dumps(plans.to_dict()))
    plain = plans.to_dict()
    assert plain["tried"] == len(plans) + plans.refused
    assert [plain["candidates"][place]["energy_j"] for place in plain["front"]] == [each.energy_j for each in plans.pareto()]
    plans.save(str(tmp_path / "plans.csv"))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "plans.csv").read_text(encoding="utf-8"))))
    assert [float(row["energy_j"]) for row in rows if not row["reason"]] == [each.energy_j for each in plans]


@pytest.mark.parametrize("name", ["plans.xlsx", "plans", "no/such/folder/plans.csv"])
def test_a_file_that_cannot_be_is_one_line(plans: Sweep, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"\.csv, \.json, \.parquet|cannot write"):
        plans.save(tmp_path / name)


def test_a_notebook_shows_the_front_in_the_page_s_colours(plans: Sweep) -> None:
    html = plans._repr_html_()
    assert html.count('r="5.5"') == len(plans.pareto())
    assert f"{plans.refused:,} that cannot run" in html
    assert "scope gpu" in html
    assert "<script" not in html
    assert "http" not in html
    assert repr(plans) == f"<Sweep of llama-3.1-70b, 500 prompt + 300 output tokens: {len(plans)} feasible, {plans.refused} not; scope gpu>"


def test_a_notebook_shows_a_sweep_without_a_feasible_plan() -> None:
    none = sweep("llama-3.1-70b", gpus="t4-16gb", tp=1, pp=1, **ASK)
    assert "take 141.1 GB" in none._repr_html_()
    assert "<svg" not in none._repr_html_()


def test_a_picture_has_every_candidate_and_the_front(plans: Sweep) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    [axes] = plans.plot().axes
    every, front = axes.get_lines()
    assert len(every.get_xdata()) == len(plans)
    assert list(front.get_ydata()) == [each.energy_per_output_token_j for each in plans.pareto()]
    assert "[s]" in axes.get_xlabel()


def test_a_picture_without_matplotlib_names_the_extra(plans: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pie_p\[plot\]"):
        plans.plot()


def test_a_sweep_pickles(plans: Sweep) -> None:
    again = pickle.loads(pickle.dumps(plans))
    assert again == plans
    assert again.best().plan == plans.best().plan


def test_nothing_is_drawn_where_nobody_looks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pie_p.sweep_progress.PATIENCE_S", -1.0)
    monkeypatch.setattr("pie_p.sweeping.CASES_AT_ONCE", 2)
    sweep("llama-3.1-8b", gpus="h100-sxm-80gb", tp=1, pp=1, **ASK)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_when_it_takes_long(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pie_p.sweep_progress.PATIENCE_S", -1.0)
    monkeypatch.setattr("pie_p.sweeping.CASES_AT_ONCE", 2)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    sweep("llama-3.1-8b", gpus="h100-sxm-80gb", tp=1, pp=1, **ASK)
    out, err = capsys.readouterr()
    assert out == ""
    assert "sweep llama-3.1-8b" in err
    sweep("llama-3.1-8b", gpus="h100-sxm-80gb", tp=1, pp=1, progress=False, **ASK)
    assert capsys.readouterr() == ("", "")


def test_a_notebook_gets_a_bar_that_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=shown.append)
    pages = SimpleNamespace(HTML=str, display=lambda page, display_id: shown.append(page) or handle)
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setattr("pie_p.sweep_progress.PATIENCE_S", -1.0)
    monkeypatch.setattr("pie_p.sweeping.CASES_AT_ONCE", 2)
    for name, module in (("ipykernel", object()), ("IPython", SimpleNamespace(get_ipython=lambda: shell)), ("IPython.display", pages)):
        monkeypatch.setitem(sys.modules, name, module)
    sweep("llama-3.1-8b", gpus="h100-sxm-80gb", tp=1, pp=1, **ASK)
    assert "max='9' value='2'" in shown[1]
    assert shown[-1] == ""


def test_a_picture_of_nothing_is_empty_and_not_an_error() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    none = sweep("llama-3.1-70b", gpus="t4-16gb", tp=1, pp=1, **ASK)
    assert list(none.plot().axes[0].get_lines()[0].get_xdata()) == []
