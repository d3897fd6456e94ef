"""`pie-p sweep` and `pie-p compare`: the library's numbers, and one line for every mistake."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pie_p import predict_energy, sweep

TOKENS = ["--prompt-tokens", "500", "--output-tokens", "300"]
SWEEP = ["sweep", "llama-3.1-70b", "--gpu", "h100-sxm-80gb", *TOKENS]
COMPARE = ["compare", "llama-3.1-70b", "--gpu", "h100-sxm-80gb", "--batch", "16", *TOKENS]


def test_json_is_the_dictionary_of_the_library_and_the_choice(run: Any) -> None:
    ran = run(*SWEEP, "--tp", "2,4", "--tp", "8", "--pp", "1", "--batch", "1,16", "--power-limit-w", "none,500", "--json")
    plans = sweep(
        "llama-3.1-70b", gpus="h100-sxm-80gb", tp=[2, 4, 8], pp=1, batch=[1, 16], power_limit_w=[None, 500], prompt_tokens=500,
        output_tokens=300,
    )  # fmt: skip
    answer = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    best = answer.pop("best")
    assert answer == json.loads(json.dumps(plans.to_dict()))
    assert answer["candidates"][best] == json.loads(json.dumps(plans.best().to_dict()))


def test_limits_and_the_objective_are_those_of_best(run: Any) -> None:
    words = ["--objective", "tokens_per_s_per_gpu", "--max-tpot-s", "0.02", "--max-gpus", "4", "--margin", "0.05"]
    answer = json.loads(run(*SWEEP, *words, "--json").out)
    chosen = sweep("llama-3.1-70b", gpus="h100-sxm-80gb", prompt_tokens=500, output_tokens=300).best(
        "tokens_per_s_per_gpu", max_tpot_s=0.02, max_gpus=4, margin=0.05
    )
    assert answer["candidates"][answer["best"]] == json.loads(json.dumps(chosen.to_dict()))


def test_the_table_marks_the_choice_and_says_what_cannot_run(run: Any) -> None:
    ran = run(*SWEEP, "--max-tpot-s", "0.05")
    chosen = sweep("llama-3.1-70b", gpus="h100-sxm-80gb", prompt_tokens=500, output_tokens=300).best(max_tpot_s=0.05)
    assert (ran.code, ran.err) == (0, "")
    [marked] = [line for line in ran.out.splitlines() if line.startswith("→")]
    assert chosen.plan in marked
    assert "whose weights do not fit" in ran.out
    assert "scope gpu (GPU boards only)" in ran.out


def test_the_choice_is_printed_with_the_limits_it_keeps(run: Any) -> None:
    words = " ".join(run(*SWEEP, "--max-tpot-s", "0.05", "--max-gpus", "4", "--margin", "0.05").out.split())
    assert "with time per output token after the first at most 50.0 ms, GPUs at most 4, margin 5 %: 4 x" in words
    assert " with " not in run(*SWEEP).out


def test_a_narrow_terminal_says_a_common_format_once(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    table = run(*SWEEP).out.partition("\nbest by")[0]
    assert table.count("bf16") == 1
    [marked] = [line for line in table.splitlines() if line.startswith("→")]
    assert "batch" in marked
    assert "plan, fp8" in run(*SWEEP, "--dtype", "fp8").out


def test_a_narrow_terminal_keeps_every_figure_whole(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = run(*SWEEP).out
    assert "…" not in out
    assert max(map(len, out.splitlines()[:10])) <= 80


def test_every_plan_goes_into_a_file(run: Any, tmp_path: Path) -> None:
    ran = run(*SWEEP, "-o", str(tmp_path / "plans.csv"))
    plans = sweep("llama-3.1-70b", gpus="h100-sxm-80gb", prompt_tokens=500, output_tokens=300)
    assert len((tmp_path / "plans.csv").read_text(encoding="utf-8").splitlines()) == 1 + len(plans) + len(plans.infeasible)
    assert ran.err == f"{len(plans)} feasible plans and {plans.refused} that cannot run written to {tmp_path / 'plans.csv'}\n"


def test_configurations_stand_side_by_side_with_ratios_to_the_first(run: Any) -> None:
    answer = json.loads(run(*COMPARE, "--tp", "2,4,8", "--json").out)
    alone = [
        predict_energy("llama-3.1-70b", gpu="h100-sxm-80gb", tp=tp, batch=16, prompt_tokens=500, output_tokens=300).to_dict()
        for tp in (2, 4, 8)
    ]
    assert answer["answers"] == json.loads(json.dumps(alone))
    for over, each in zip(answer["ratios"], alone, strict=True):
        assert over["energy_j"] == pytest.approx(each["energy_j"] / alone[0]["energy_j"])
        assert over["breakdown.communication_j"] == pytest.approx(
            each["breakdown"]["communication_j"] / alone[0]["breakdown"]["communication_j"]
        )
    out = run(*COMPARE, "--tp", "2,4,8").out
    ratio = alone[1]["energy_j"] / alone[0]["energy_j"]
    assert re.search(rf"^energy per request .*\({ratio:.2f}x\)", out, flags=re.MULTILINE)
    assert "tp 8" in out
    assert re.search(r"^llm llama-3\.1-70b, gpu h100-sxm-80gb", out)


def test_files_and_llms_are_compared_too(run: Any, tmp_path: Path) -> None:
    files = []
    for tp in ("2", "4"):
        ran = run("predict", "llama-3.1-70b", "--gpu", "h100-sxm-80gb", "--tp", tp, *TOKENS, "--json")
        files.append(str(tmp_path / f"tp{tp}.json"))
        Path(files[-1]).write_text(ran.out, encoding="utf-8")
    answer = json.loads(run("compare", *files, "--json").out)
    assert answer["ratios"][0]["energy_j"] == 1.0
    assert [each["tp"] for each in answer["answers"]] == [2, 4]
    assert "tp4" in run("compare", *files).out
    llms = json.loads(run("compare", "llama-3.1-8b", "qwen3-8b", "--gpu", "l40s-48gb", *TOKENS, "--json").out)
    assert [each["llm"] for each in llms["answers"]] == ["llama-3.1-8b", "qwen3-8b"]


MISTAKES = [
    (["sweep", "llama-3.1-70b", *TOKENS], r"UsageError: Missing option '--gpu'"),
    ([*SWEEP[:2], "--gpu", "h100", *TOKENS], r"UnknownGpuError: no GPU 'h100'"),
    ([*SWEEP[:2], "--gpu", ",", *TOKENS], r"InputError: gpus is an empty list"),
    ([*SWEEP, "--tp", "1,x"], r"UsageError: Invalid value: --tp = '1,x' is not a list of numbers"),
    ([*SWEEP, "--tp", "none"], r"InputError: tp = None is not a number"),
    ([*SWEEP, "--max-tpot-s", "0.0001"], r"InputError: none of \d+ feasible plans keeps tpot_s <= 0\.0001 s; the nearest, 8 x"),
    ([*SWEEP, "--objective", "joules"], r"InputError: 'joules' is no figure to choose by"),
    ([*SWEEP, "--margin", "-1"], r"InputError: margin = -1 is not allowed"),
    ([*SWEEP, "-o", "plans.xlsx"], r"InputError: cannot save a sweep as 'plans\.xlsx'"),
    ([*SWEEP, "--tp", "1", "--pp", "1"], r"InputError: no plan of the sweep can run \(9 tried\); the first: the bf16 weights"),
    ([*COMPARE], r"InputError: one configuration is nothing to compare"),
    ([*COMPARE, "--tp", "2,4", "--dtype", "bf16,fp8,int4"], r"InputError: tp has 2 values where another option has 3"),
    (["compare", "llama-3.1-70b", "--gpu", "h100-sxm-80gb,b200-sxm-180gb"], r"InputError: --prompt-tokens is missing"),
    (["compare", "no.json", "other.json"], r"InputError: no result at no\.json"),
    (["compare", "no.json", "other.json", "--tp", "2"], r"InputError: --tp beside files"),
]


@pytest.mark.parametrize(("words", "text"), MISTAKES, ids=[text[:40] for _, text in MISTAKES])
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(
    run: Any, words: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert re.match(text, ran.err)


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("pie-p sweep llama-3.1-7", "llama-3.1-70b"),
        ("pie-p sweep llama-3.1-70b --gpu h100-sxm-80gb,b2", "h100-sxm-80gb,b200-sxm-180gb"),
        ("pie-p predict qwen3-3", "qwen3-32b"),
        ("pie-p predict llama-3.1-8b --gpu a100-p", "a100-pcie-80gb"),
        ("pie-p compare llama-3.1-8b --dtype f", "fp8"),
        ("pie-p sw", "sweep"),
        ("pie-p sweep llama-3.1-70b --objective ttf", "ttft_s"),
    ],
)
def test_a_shell_completes_verbs_and_names(run: Any, monkeypatch: pytest.MonkeyPatch, line: str, completed: str) -> None:
    monkeypatch.setenv("_PIE_P_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    assert completed in run().out.split()


def test_completion_can_be_installed(run: Any) -> None:
    text = run("--help").out
    assert "--install-completion" in text
    assert "--show-completion" in text


def test_every_verb_prints_json_and_shows_an_example(run: Any) -> None:
    from pie_p.cli import app

    for command in app.registered_commands:
        name = command.name or command.callback.__name__  # type: ignore[union-attr]
        text = run(name, "--help").out
        assert "--json" in text, name
        assert f"Example: pie-p {name}" in " ".join(text.split()), name


def test_damage_in_a_compared_file_is_one_line(run: Any, tmp_path: Path) -> None:
    answer = predict_energy("llama-3.1-8b", gpu="h100-sxm-80gb", prompt_tokens=9, output_tokens=9).to_dict()
    for name, odd in (("time_per_token_s", "x"), ("breakdown", {"wait_j": None}), ("batch", None), ("scope", 3), ("warnings", [1])):
        (tmp_path / "good.json").write_text(json.dumps(answer), encoding="utf-8")
        (tmp_path / "bad.json").write_text(json.dumps(answer | {name: odd}), encoding="utf-8")
        ran = run("compare", str(tmp_path / "good.json"), str(tmp_path / "bad.json"))
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert f"bad.json is a damaged prediction: {name}" in ran.err
