"""The command line: the same numbers as the library, JSON by contract, and one line with exit code 2 for every mistake."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pie_p import gpu_names, llm_names, predict_energy
from pie_p.cli import main
from pie_p.cli_options import ELSEWHERE

ASK = ["predict", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--prompt-tokens", "200", "--output-tokens", "100"]

# The contract that others build on: keys of --json that are attributes of Prediction.
FIGURES = ("energy_j", "energy_per_output_token_j", "latency_s", "ttft_s", "tpot_s", "itl_s", "time_per_token_s", "avg_power_w")
ENERGIES = ("breakdown", "prefill", "decode")
NAMES = ("gpus", "cluster", "engine", "scope", "mode", "warnings", "predictor")
CONTRACT = {*FIGURES, *ENERGIES, *NAMES}
ASKED = {"llm", "gpu", "tp", "pp", "dp", "ep", "batch", "prompt_tokens", "cached_prompt_tokens", "output_tokens", "dtype", "kv_dtype"}
PARTS = ("compute_j", "communication_j", "wait_j")


def test_json_has_the_keys_of_the_contract_and_echoes_what_was_asked(run: Any) -> None:
    ran = run(*ASK, "--json")
    answer = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert answer.keys() >= CONTRACT
    assert answer.keys() - CONTRACT == ASKED | {"power_limit_w", "interval", "pue", "exclusive_host"}
    for name in ENERGIES:
        assert tuple(answer[name]) == PARTS
    assert set(answer["predictor"]) == {"name", "sha256"}


@pytest.mark.parametrize(
    ("words", "arguments", "parts"),
    [
        ([], {}, PARTS),
        (["--tp", "2", "--batch", "16.5", "--mode", "static"], {"tp": 2, "batch": 16.5, "mode": "static"}, PARTS),
        (["--scope", "host"], {"scope": "host"}, (*PARTS, "host_j")),
        (["--scope", "host", "--exclusive-host"], {"scope": "host", "exclusive_host": True}, (*PARTS, "host_j")),
        (["--scope", "facility", "--pue", "1.3"], {"scope": "facility", "pue": 1.3}, (*PARTS, "host_j", "facility_j")),
        (
            ["--dtype", "fp8", "--kv-dtype", "fp8", "--power-limit-w", "400"],
            {"dtype": "fp8", "kv_dtype": "fp8", "power_limit_w": 400},
            PARTS,
        ),
        (
            ["--pp", "2", "--dp", "2", "--micro-batches", "4", "--engine", "sglang"],
            {"pp": 2, "dp": 2, "micro_batches": 4, "engine": "sglang"},
            PARTS,
        ),
        (["--cached-prompt-tokens", "150"], {"cached_prompt_tokens": 150}, PARTS),
    ],
)
def test_json_is_what_the_library_answers(run: Any, words: list[str], arguments: dict[str, Any], parts: tuple[str, ...]) -> None:
    p = predict_energy("llama-3.1-8b", gpu="h100-sxm-80gb", prompt_tokens=200, output_tokens=100, **arguments)
    answer = json.loads(run(*ASK, *words, "--json").out)
    assert answer == json.loads(json.dumps(p.to_dict()))
    for name in (*FIGURES, "gpus", "cluster", "engine", "scope", "mode"):
        assert answer[name] == getattr(p, name)
    for name in ENERGIES:
        assert tuple(answer[name]) == parts
        assert sum(answer[name].values()) == pytest.approx(getattr(p, name).total_j, rel=1e-12)
    assert answer["warnings"] == list(p.warnings)
    assert answer["predictor"] == dict(p.predictor)


def test_a_prefill_only_request_has_null_where_there_is_no_figure(run: Any) -> None:
    answer = json.loads(
        run("predict", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--prompt-tokens", "9", "--output-tokens", "0", "--json").out
    )
    assert [answer[name] for name in ("energy_per_output_token_j", "tpot_s", "itl_s", "time_per_token_s")] == [None] * 4


@pytest.mark.parametrize(
    ("words", "scope"),
    [
        ([], "GPU boards only"),
        (["--scope", "host"], "their share of the host"),
        (["--scope", "facility", "--pue", "1.2"], "overhead (PUE)"),
    ],
)
def test_the_table_prints_units_and_scope(run: Any, words: list[str], scope: str) -> None:
    ran = run(*ASK, *words)
    assert (ran.code, ran.err) == (0, "")
    first = next(line for line in ran.out.splitlines() if line.startswith("energy per request"))
    assert re.search(r" [\d.]+ k?J ", first)
    assert scope in first
    assert re.search(r"^power of all GPUs +[\d.]+ k?W ", ran.out, flags=re.MULTILINE)
    assert re.search(r"^latency +[\d.]+ m?s ", ran.out, flags=re.MULTILINE)


def test_the_table_shows_the_energy_that_json_gives(run: Any) -> None:
    energy_j = json.loads(run(*ASK, "--json").out)["energy_j"]
    shown = re.search(r"^energy per request +([\d.]+) J ", run(*ASK).out, flags=re.MULTILINE)
    assert shown
    assert float(shown[1]) == pytest.approx(energy_j, rel=0.006)


def test_warnings_are_printed(run: Any) -> None:
    out = run(*ASK, "--batch", "5000").out
    assert "warning: the KV cache of batch 5000 does not fit beside the weights; about" in " ".join(out.split())


def test_a_tree_is_printed_as_deep_as_asked(run: Any) -> None:
    paths = re.findall(r"^((?:decode|prefill)/\S+)", run(*ASK, "--tree", "2").out, flags=re.MULTILINE)
    assert "decode/layer" in paths
    assert {path.count("/") for path in paths} == {1}


MISTAKES = [
    (["predict"], r"UsageError: Missing argument"),
    (["predict", "llama-3.1-8b"], r"UsageError: Missing option '--prompt-tokens'"),
    ([*ASK, "--bogus"], r"UsageError: No such option: --bogus"),
    ([*ASK, "--tp"], r"UsageError: Option '--tp' requires an argument"),
    ([*ASK, "more"], r"UsageError: Got unexpected extra argument"),
    (
        [*ASK, "--tensor-parallel-size", "4"],
        r"UsageError: No such option: --tensor-parallel-size; here it is --tp; see pie-p predict --help",
    ),
    ([*ASK, "--kv-cache-dtype", "fp8"], r"UsageError: No such option: --kv-cache-dtype; here it is --kv-dtype;"),
    (
        ["predict", "--model", "llama-3.1-8b"],
        r"UsageError: No such option: --model; the LLM is the first word: pie-p predict llama-3\.1-8b",
    ),
    (["watch", "--model", "llama-3.1-8b"], r"UsageError: No such option: --model; here it is --llm; see pie-p watch --help"),
    (
        ["sweep", *ASK[1:], "l40s-48gb"],
        r"UsageError: Got unexpected extra argument.*; a list has commas and no spaces, as 1,2,4; see pie-p sweep",
    ),
    (["predikt"], r"UsageError: No such command 'predikt'"),
    ([*ASK, "--batch", "eight"], r"UsageError: Invalid value for '--batch': 'eight' is not a number; give one like 300 or 0\.5"),
    ([*ASK, "--tree", "two"], r"UsageError: Invalid value for '--tree': 'two' is not a number"),
    ([*ASK, "--tree", "9"], r"InputError: tree = 9 is not allowed; give a finite number of at least 0 and at most 6"),
    ([*ASK, "--batch", "nan"], r"InputError: batch = nan is not allowed; give a finite number of at least 1"),
    ([*ASK, "--batch", "inf"], r"InputError: batch = inf is not allowed"),
    ([*ASK, "--batch", "-3"], r"InputError: batch = -3 is not allowed"),
    ([*ASK, "--tp", "1.5"], r"InputError: tp = 1\.5 is not a whole number"),
    ([*ASK, "--tp", "3"], r"PlanError: tp = 3 does not divide the 32 query heads of llama-3\.1-8b; allowed: divisors of 32"),
    ([*ASK, "--ep", "2"], r"PlanError: ep = 2 does not divide tp \* dp = 1"),
    ([*ASK, "--dtype", "fp7"], r"InputError: dtype = 'fp7' is not known; allowed: bf16, fp16"),
    ([*ASK, "--mode", "fast"], r"InputError: mode = 'fast' is not known"),
    ([*ASK, "--scope", "rack"], r"InputError: scope = 'rack' is not known; allowed: 'gpu', 'host', 'facility'"),
    ([*ASK, "--scope", "facility"], r"InputError: scope='facility' needs pue"),
    ([*ASK, "--engine", "tgi"], r"UnknownNameError: no engine 'tgi'; known: sglang, trtllm, vllm"),
    ([*ASK, "--power-limit-w", "10"], r"InputError: power_limit_w = 10 W is outside what h100-sxm-80gb can hold"),
    ([*ASK, "--cluster", "none.toml"], r"InputError: both gpu and cluster given"),
    ([*ASK[:2], *ASK[4:]], r"InputError: neither gpu nor cluster given; .*on the command line: --gpu or --cluster"),
    ([*ASK[:2], "--gpu", "h100", *ASK[4:]], r"UnknownGpuError: no GPU 'h100' in the catalogue\. Did you mean: h100-sxm-80gb"),
    ([ASK[0], "lama-3.1-8b", *ASK[2:]], r"UnknownLLMError: no LLM 'lama-3\.1-8b' in the catalogue .*Did you mean: llama-3\.1-8b"),
    ([ASK[0], "llama-3.1-70b", *ASK[2:]], r"MemoryFitError: the bf16 weights of llama-3\.1-70b take 141\.1 GB .*tp=2 would fit"),
]


@pytest.mark.parametrize(("words", "text"), MISTAKES, ids=[text[:50] for _, text in MISTAKES])
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["table", "json"])
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(run: Any, words: list[str], text: str, more: list[str]) -> None:
    ran = run(words[0], *(more if words[0] == "predict" else []), *words[1:])
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    assert re.match(text, ran.err)
    assert "Traceback" not in ran.err


def test_a_broken_config_file_is_one_line(run: Any, tmp_path: Path) -> None:
    broken = tmp_path / "config.json"
    broken.write_text("{'not': json\n\n", encoding="utf-8")
    ran = run("predict", str(broken), *ASK[2:])
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "config.json" in ran.err


def test_a_mistake_in_a_process_of_its_own_is_one_line_and_exit_code_2() -> None:
    command = [sys.executable, "-c", "from pie_p.cli import main; main()", *ASK, "--tp", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "PlanError: tp = 3 does not divide the 32 query heads of llama-3.1-8b; allowed: divisors of 32\n"


def test_a_terminal_without_unicode_gets_its_table() -> None:
    command = [sys.executable, "-c", "from pie_p.cli import main; main()", *ASK, "--tree", "2"]
    done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"energy per request" in done.stdout
    assert done.stdout.isascii()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("more", [["--json"], []], ids=["json", "table"])
def test_a_full_disk_is_one_line(more: list[str]) -> None:
    command = [sys.executable, "-c", "from pie_p.cli import main; main()", *ASK, *more]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("cannot write: No space left on device")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="closes a descriptor with sh")
@pytest.mark.parametrize("words", ["hardware --json", "llms", "--version"])
def test_a_closed_output_is_no_traceback(words: str) -> None:
    command = f'"{sys.executable}" -c "from pie_p.cli import main; main()" {words} >&-'
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_asked_is_answered_with_help(run: Any) -> None:
    ran = run()
    assert ran.code == 0
    assert "predict" in ran.out
    assert run("--help").out == ran.out


def test_every_option_of_another_tool_is_answered_with_one_that_exists(run: Any) -> None:
    every = run("predict", "--help").out + run("watch", "--help").out
    assert all(re.search(rf"{ours}\b", every) for ours in ELSEWHERE.values())
    assert not any(re.search(rf"{theirs}[ ,]", every) for theirs in ELSEWHERE)


def test_help_names_every_option_of_the_library(run: Any) -> None:
    from inspect import signature

    text = run("predict", "--help").out
    for name in signature(predict_energy).parameters:
        assert name == "llm" or f"--{name.replace('_', '-')}" in text


def test_the_version_is_the_package_s(run: Any) -> None:
    import pie_p

    assert run("--version") == (0, f"pie_p {pie_p.__version__}\n", "")


def test_every_bundled_llm_and_board_is_listed(run: Any) -> None:
    llms, boards = json.loads(run("llms", "--json").out), json.loads(run("hardware", "--json").out)
    assert [llm["name"] for llm in llms] == list(llm_names())
    assert [board["name"] for board in boards] == list(gpu_names())
    assert next(llm for llm in llms if llm["name"] == "llama-3.1-8b")["parameters"] == 8_030_261_248  # model card
    assert "llama-3.1-8b" in run("llms").out
    assert re.search(r"h100-sxm-80gb .*700 W", run("hardware").out)


def test_import_writes_a_profile_and_says_what_it_holds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shared = Path(os.environ.get("PIE_P_SHARED", Path(__file__).parents[2] / "shared")) / "data"
    if not (shared / "mlenergy_v3").is_dir():
        pytest.skip(f"no public measurements below {shared}")
    with pytest.raises(SystemExit) as end:
        main(["import", "mlenergy_v3", str(shared), "--out", str(tmp_path / "v3")])
    assert end.value.code in (0, None)
    assert "end_to_end: 374 rows" in capsys.readouterr().out
    assert (tmp_path / "v3" / "manifest.json").is_file()


def test_an_unknown_source_is_one_line_with_the_known_ones(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as end:
        main(["import", "mlenergy", str(tmp_path), "--out", str(tmp_path / "x")])
    assert end.value.code == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "mlenergy_v3" in shown


def test_doctor_names_every_extra_and_the_predictor(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--json"])
    found = {line["what"]: line["state"] for line in json.loads(capsys.readouterr().out)}
    assert {"extra train", "extra profile", "extra plot", "GPUs", "predictor"} <= set(found)


def test_train_says_what_is_allowed_and_what_is_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words, named in ((["--learn", "all"], "auto, operators, profile, end-to-end"), ([], "manifest.json")):
        with pytest.raises(SystemExit) as end:
            main(["train", str(tmp_path), "--out", str(tmp_path / "x"), *words])
        shown = capsys.readouterr().err
        assert end.value.code == 2
        assert shown.count("\n") == 1
        assert named in shown
