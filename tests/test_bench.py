"""End to end: a real server over HTTP, the same checkpoint in a process, and the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_server import GOOD, TOKENS, scripted, status
from tiny_server import OFFLINE, build_checkpoint, serving

from pie_p.bench.plans import BenchPlan, Load, ServerTarget
from pie_p.bench.prompts import load_prompts
from pie_p.bench.results import BenchResult, load_run
from pie_p.bench.running import bench
from pie_p.cli import main

for package in ("tokenizers", "safetensors", "transformers", "torch", "fastapi"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install 'pie_p[dev,profile]'")

MOST = 12


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama on disk."""
    return build_checkpoint(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def here(checkpoint: Path) -> Iterator[subprocess.Popen[str]]:
    """A run in a process of its own, whose warnings are third parties'; it works while the server starts."""
    command = [
        sys.executable,
        "-m",
        "pie_p",
        "bench",
        str(checkpoint),
        "-o",
        str(checkpoint.parent / "here"),
        "--count",
        "5",
        "--seed",
        "1",
    ]
    command += ["--batch", "2", "--max-tokens", str(MOST), "--json", "--device", "cpu"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **OFFLINE}) as process:
        yield process
        process.kill()


@pytest.fixture(scope="session")
def tiny_server(checkpoint: Path, here: subprocess.Popen[str]) -> Iterator[str]:
    """Address of a real server of it."""
    with serving(checkpoint, checkpoint.parent / "serve.log") as url:
        yield url


def cli(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[object, str, str]:
    """Exit code, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as end:
        main(["bench", *words])
    shown = capsys.readouterr()
    return end.value.code, shown.out, shown.err


def lengths(result: BenchResult) -> dict[int, tuple[float, float]]:
    """Prompt and output tokens by prompt."""
    whole = result.whole
    columns = (whole["prompt"], whole["prompt_tokens"], whole["output_tokens"])
    return {int(prompt): (asked, written) for prompt, asked, written in zip(*columns, strict=True)}


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_real_server_answers_every_prompt_and_its_tokens_are_its_own(
    tiny_server: str, checkpoint: Path, tmp_path: Path, api: Any
) -> None:
    from tokenizers import Tokenizer

    prompts = load_prompts().chosen(5, seed=1)
    plan = BenchPlan(target=ServerTarget(url=tiny_server, api=api), load=Load(concurrency=3, max_tokens=MOST, repetitions=2))
    result = bench(plan, prompts, tmp_path)
    assert (result.manifest.state, result.totals.responses, result.faults) == ("complete", 10, {})
    assert result.manifest.served == str(checkpoint)
    assert set(result.whole["token_source"]) == {"usage"}
    assert (result.whole["output_tokens"] <= MOST).all()
    assert result.totals.tokens == result.whole["output_tokens"].sum() >= 10
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    texts = prompts.texts if api == "completions" else [f"user: {text}\nassistant: " for text in prompts.texts]
    counted = [len(tokenizer.encode(text).ids) for text in texts]
    assert [asked for _, (asked, _) in sorted(lengths(result).items())] == counted
    assert (result.whole["ttft_s"] > 0).all()
    assert (result.whole["latency_s"] >= result.whole["ttft_s"]).all()
    assert 0 < result.concurrency <= 3


def test_a_checkpoint_in_process_writes_what_the_server_writes(
    tiny_server: str, here: subprocess.Popen[str], checkpoint: Path, tmp_path: Path
) -> None:
    """Greedy decoding of one checkpoint: the same lengths, whoever runs it."""
    out, err = here.communicate()
    assert here.returncode == 0, err
    told = json.loads(out)
    assert (told["responses"], told["state"], told["energy_source"]) == (5, "complete", "unknown")
    plan = BenchPlan(target=ServerTarget(url=tiny_server), load=Load(concurrency=1, max_tokens=MOST, warmup=0))
    served = bench(plan, load_prompts().chosen(5, seed=1), tmp_path / "there")
    own = load_run(checkpoint.parent / "here")
    assert lengths(own) == lengths(served)
    assert own.totals.words == served.totals.words
    assert own.totals.tokens_per_s == own.totals.tokens / own.totals.seconds
    assert (own.whole["latency_s"] >= own.whole["ttft_s"]).all()


def test_the_command_shows_units_scope_source_and_the_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(GOOD) as server:
        words = [server.url, "-o", str(tmp_path / "run"), "--count", "4", "--llm", "llama-3.1-8b", "--gpu", "h100-sxm-80gb"]
        code, out, _ = cli(*words, capsys=capsys)
        assert code in (0, None)
        assert "energy per output token" in out
        assert "predicted power x measured time" in out
        assert "GPU boards only" in out
        assert f"12 words · {4 * TOKENS} tokens · 4 responses" in out
        code, out, _ = cli(*words, "--json", capsys=capsys)
        told = json.loads(out)
    assert (told["tokens"], told["energy_source"], told["scope"]) == (4 * TOKENS, "predicted", "gpu")
    assert told["prediction"]["errors"]["tokens_per_s"] == pytest.approx(told["prediction"]["tokens_per_s"] / told["tokens_per_s"] - 1)
    assert told["power_w"] == pytest.approx(told["prediction"]["power_w"])
    code, out, _ = cli("-o", str(tmp_path / "run"), "--against", str(tmp_path / "run"), capsys=capsys)
    assert "both were asked the same" in out


def test_the_command_writes_a_profile_and_a_calibrated_predictor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pie_p.predictor import Predictor
    from pie_p.profiles import load_profile

    with scripted(GOOD) as server:
        words = [server.url, "-o", str(tmp_path / "run"), "--count", "4", "--llm", "llama-3.1-8b", "--gpu", "h100-sxm-80gb"]
        words += ["--predictor", "physics", "--profile", str(tmp_path / "profile"), "--calibrate", str(tmp_path / "own")]
        code, _, err = cli(*words, capsys=capsys)
    assert code in (0, None), err
    [row] = load_profile(tmp_path / "profile").end_to_end.iter_rows()
    assert (row["llm"], row["gpu"], row["meter_scope"], row["output_tokens"]) == ("llama-3.1-8b", "h100-sxm-80gb", "none", TOKENS)
    assert Predictor.load(tmp_path / "own").name == "physics-calibrated"


def test_a_run_in_which_nothing_was_answered_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(status(400, "no")) as server, pytest.raises(SystemExit) as end:
        main(["bench", server.url, "-o", str(tmp_path / "run"), "--count", "2", "--warmup", "0"])
    assert end.value.code == 2
    shown = capsys.readouterr()
    assert "incomplete: prompts without an answer" in shown.out
    assert shown.err.splitlines()[-1].startswith("no prompt was answered: ")


def test_the_command_refuses_in_one_line_and_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(status(401, "no key")) as server:
        code, out, err = cli(server.url, "-o", str(tmp_path / "a"), "--served", "x", capsys=capsys)
        assert code == 2
        assert "stopped: 3 prompts in a row had no answer (refused): HTTP 401: no key." in err
        code, out, err = cli(server.url, "-o", str(tmp_path / "b"), "--batch", "2", "--concurrency", "2", capsys=capsys)
        assert (code, out) == (2, "")
        assert err.startswith("InputError: Load: both batch and concurrency given")
    code, out, err = cli("ftp://x", "-o", str(tmp_path / "c"), capsys=capsys)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    code, _, err = cli("-o", str(tmp_path / "none"), capsys=capsys)
    assert (code, err.startswith("ProfileError: no manifest of a benchmark")) == (2, True)
