"""MLPerf Inference v4.1, power division: wall watts of an 8 x H200 server (github mlcommons/inference_results_v4.1, Apache-2.0).

A run's folder holds LoadGen's summary and the analyser's readings at 1 Hz; watts are averaged over the window that LoadGen marked. Eight
replicas (TP1, DP8), fp8 weights, TensorRT-LLM, GPUs capped. Both layouts are read: the submission's own (`performance/run_1/spl.txt` with
`mlperf_log_detail.txt`) and a reduced one (`spl_time_watts.csv.gz` with `power_window.json`).
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from pie_p.errors import ProfileError
from pie_p.importers.assumptions import PROMPT_TOKENS
from pie_p.importers.gathering import Gathered, json_object

SYSTEM: Final = "H200-SXM-141GBx8_TRT_MaxQ"
REPLICAS: Final = 8
# The engine batch of llama2-70b, 806 requests of 590 tokens, does not fit beside the weights in 16 bits (393 do), and does in 8 (786).
KV_CACHE: Final = "KV cache fp8, since the engine's batch fits no other"
CLOCK: Final = "%m-%d-%Y %H:%M:%S.%f"


class Benchmark(NamedTuple):
    """What a benchmark's name stands for, and how NVIDIA's submission set the server."""

    llm: str
    cap_w: float  # power limit of every GPU [W]
    offline_batch: float  # engine batch per replica [-]; NaN: not stated
    server_batch: float
    decoding: str = ""  # what makes a request more than one running sequence


BENCHMARKS: Final[dict[str, Benchmark]] = {
    "llama2-70b": Benchmark("meta-llama/Llama-2-70b-chat-hf", 500.0, 806.0, 896.0),
    "mixtral-8x7b": Benchmark("mistralai/Mixtral-8x7B-Instruct-v0.1", 500.0, 3072.0, 3072.0),
    "gptj": Benchmark("EleutherAI/gpt-j-6b", 350.0, float("nan"), float("nan"), "; beam search of width 4: four sequences per request"),
}


def gather(gathered: Gathered) -> None:
    """Read every run of the system below the path."""
    found = gathered.files(f"{SYSTEM}/**/mlperf_log_summary.txt")
    files = [path for path in found if not {"accuracy", "ranging"} & set(path.parts)]
    for done, path in enumerate(files, start=1):
        content = gathered.read(path, what="LoadGen summary")
        benchmark = next((name for name in BENCHMARKS if any(part.startswith(name) for part in path.parts)), None)
        if benchmark is None:
            gathered.skip(path, "not a benchmark of an LLM")
        elif not (_has(path, "spl_time_watts.csv.gz") or _has(path, "spl.txt")):
            gathered.skip(path, "no power readings of its own: the same run counts for two accuracy targets")
        elif not gathered.is_repeat(path, content, 1):
            gathered.add_rows("end_to_end", [_row(gathered, path, content.decode("utf-8", "replace"), benchmark)])
        gathered.step(path, done, len(files))


def _has(path: Path, name: str) -> bool:
    return (path.parent / name).exists()


def _row(gathered: Gathered, path: Path, summary: str, benchmark: str) -> dict[str, Any]:
    setting, prompt = BENCHMARKS[benchmark], PROMPT_TOKENS[f"mlperf {benchmark}"]
    server = "Server" in path.parts
    samples_per_s = _figure(summary, r"(?:Completed samples|Samples) per second", path)
    tokens_per_s = _figure(summary, r"(?:Completed tokens|Tokens) per second(?: \(inferred\))?", path)
    power_w, readings = _mean_watts(gathered, path)
    outputs = tokens_per_s / samples_per_s
    batch, batch_from = _batch(summary, setting, samples_per_s, path, server=server)
    row = {
        "llm": setting.llm,
        "gpu": "h200-sxm-141gb",
        "workload": f"mlperf {benchmark} {'server' if server else 'offline'}",
        "mode": "steady",
        "dp": REPLICAS,
        "dtype": "fp8",
        "kv_dtype": "fp8",
        "batch": batch,
        "max_batch": setting.server_batch if server else setting.offline_batch,
        "prompt_tokens": prompt.tokens,
        "output_tokens": outputs,
        "time_per_token_s": batch * REPLICAS / tokens_per_s,
        "throughput_tokens_per_s": tokens_per_s,
        "energy_per_output_token_j": power_w / tokens_per_s,
        "avg_power_w": power_w,
        "power_limit_w": setting.cap_w,
        "meter_scope": "host wall",
        "assumed": f"prompt {prompt.tokens:g} tokens ({prompt.reason}); {batch_from}; {KV_CACHE}{setting.decoding}",
        "engine": "trtllm",
        "detail": f"TensorRT 10.2.0; {readings} wall readings",
        "origin": "imported",
        "source": gathered.source,
    }
    return {**row, **_latencies(summary, path)} if server and "First Token" in summary else row


def _batch(summary: str, setting: Benchmark, samples_per_s: float, path: Path, *, server: bool) -> tuple[float, str]:
    """Requests in flight per replica: by Little's law where they arrive one by one, the engine's batch where all wait from the start."""
    if server:
        latency_s = _figure(summary, r"Mean latency \(ns\)", path) / 1e9
        return latency_s * samples_per_s / REPLICAS, "batch by Little's law from the mean latency, queueing included"
    if setting.offline_batch > 0:
        return setting.offline_batch, "batch is the engine's limit, full all the time"
    return setting.offline_batch, "batch not stated"


def _latencies(summary: str, path: Path) -> dict[str, float]:
    return {
        "ttft_s": _figure(summary, r"Mean First Token latency \(ns\)", path) / 1e9,
        "tpot_s": _figure(summary, r"Mean Time to Output Token \(ns\)", path) / 1e9,
    }


def _figure(summary: str, label: str, path: Path) -> float:
    found = re.search(rf"^{label}\s*:\s*([0-9.eE+]+)\s*$", summary, flags=re.MULTILINE)
    try:
        value = float(found[1]) if found else 0.0
    except ValueError:
        value = 0.0
    if value <= 0:
        raise ProfileError(f"{path} has no figure for {label.split('(')[-1][:40]!r} above 0; it is not a valid LoadGen summary")
    return value


def _mean_watts(gathered: Gathered, path: Path) -> tuple[float, int]:
    """Mean wall power within the marked window [W], and from how many readings."""
    begin, end = _window(gathered, path)
    readings = [watts for time, watts in _readings(gathered, path) if begin <= time <= end]
    if not readings:
        raise ProfileError(f"{path.parent} has no power reading between {begin} and {end}")
    return sum(readings) / len(readings), len(readings)


def _window(gathered: Gathered, path: Path) -> tuple[datetime, datetime]:
    reduced, full = path.parent / "power_window.json", path.parent / "mlperf_log_detail.txt"
    if reduced.exists():
        marks = json_object(gathered.read(reduced, what="power window"), what=str(reduced))
        named = {key: str(marks.get(key)) for key in ("power_begin", "power_end")}
    else:
        text = gathered.read(full, what="LoadGen log").decode("utf-8", "replace")
        named = dict(re.findall(r'"key":\s*"(power_begin|power_end)",\s*"value":\s*"([^"]+)"', text))
    try:
        return _time(named["power_begin"]), _time(named["power_end"])
    except (KeyError, ValueError):
        raise ProfileError(f"{path.parent} does not say when its power window begins and ends") from None


def _readings(gathered: Gathered, path: Path) -> list[tuple[datetime, float]]:
    """(time, watts) of the analyser: `time,watts` lines, or `Time,<time>,Watts,<watts>,...` lines."""
    reduced, full = path.parent / "spl_time_watts.csv.gz", path.parent / "spl.txt"
    source = reduced if reduced.exists() else full
    lines = gathered.read(source, what="power readings").decode("utf-8", "replace").splitlines()
    cells = [line.split(",") for line in lines if line.strip() and not line.lower().startswith("time,watts")]
    try:
        pairs = [(row[1], row[3]) if row[0] == "Time" else (row[0], row[1]) for row in cells]
        return [(_time(time), float(watts)) for time, watts in pairs]
    except (IndexError, ValueError) as error:
        raise ProfileError(f"{source} is not a list of power readings: {error}") from None


def _time(text: str) -> datetime:
    return datetime.strptime(text, CLOCK)
