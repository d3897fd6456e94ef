"""ML.ENERGY Benchmark v3: energy per token of vLLM 0.11.1 on H100 and B200 in steady state (github ml-energy/leaderboard, Apache-2.0).

One JSON file per LLM and task, `models/<org>__<name>__<task>.json`, with a list of configurations. Energy is that of the GPU boards
(NVML's counter), prefill included, per OUTPUT token; `avg_batch_size` is the running batch of the whole server. Time per token is
batch / throughput; energy per token = power * time / batch holds to rounding in every row, and is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pie_p.errors import InputError, ProfileError
from pie_p.importers.assumptions import DEFAULT_LIMIT_W, PROMPT_TOKENS
from pie_p.importers.gathering import GPU_NAMES, Gathered, json_object, number
from pie_p.workload import LengthDistribution

ENGINE, ENGINE_VERSION = "vllm", "0.11.1"
DTYPES: Final = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "mxfp4": "mxfp4", "nvfp4": "nvfp4", "int8": "int8", "int4": "int4"}
MOST_CLOSURE_ERROR: Final = 0.01  # energy per token against power * time / batch [-]


def gather(gathered: Gathered) -> None:
    """Read every configuration below the path."""
    files = gathered.files("models/*__*__*.json")
    for done, path in enumerate(files, start=1):
        content = gathered.read(path, what="ML.ENERGY v3 result")
        record = json_object(content, what=str(path))
        configurations = record.get("configurations")
        if not isinstance(configurations, list) or not all(isinstance(item, dict) for item in configurations):
            raise ProfileError(f"{path} has no list of configurations; it is not an ML.ENERGY v3 result")
        if not gathered.is_repeat(path, content, len(configurations)):
            gathered.add_rows("end_to_end", _rows(gathered, path, record))
        gathered.step(path, done, len(files))


def _rows(gathered: Gathered, path: Path, record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    task = str(record.get("task"))
    if task not in PROMPT_TOKENS:
        gathered.reject(path, f"task {task}: not text in, text out", len(record["configurations"]))
        return
    for index, configuration in enumerate(record["configurations"]):
        what = f"{path}, configuration {index}"
        try:
            yield _row(gathered.source, record, configuration, what=what)
        except KeyError as error:
            raise ProfileError(f"{what} lacks {error}") from None


def _row(source: str, record: dict[str, Any], configuration: dict[str, Any], *, what: str) -> dict[str, Any]:
    gpu = GPU_NAMES.get(str(configuration["gpu_model"]).lower())
    if gpu is None:
        raise ProfileError(f"{what}: the GPU {configuration['gpu_model']!r} is not one this importer knows")
    plan, plan_assumed = _plan(configuration, what=what)
    server_batch = number(configuration, "avg_batch_size", what=what)
    throughput = number(configuration, "output_throughput_tokens_per_sec", what=what)
    power_w = number(configuration, "avg_power_watts", what=what)
    energy_j = number(configuration, "energy_per_token_joules", what=what)
    if abs(power_w / throughput / energy_j - 1) > MOST_CLOSURE_ERROR:
        raise ProfileError(
            f"{what}: {power_w:g} W / {throughput:g} token/s is not {energy_j:g} J per token; the units are not as published"
        )
    lengths = _lengths(configuration, record, what=what)
    workload = str(record["task"])
    return {
        "llm": str(record["model_id"]),
        "gpu": gpu,
        "workload": workload,
        "mode": "steady",
        **plan,
        "dtype": _dtype(record, what=what),
        "kv_dtype": "bf16",
        "batch": server_batch / plan["dp"],
        "max_batch": number(configuration, "max_num_seqs", what=what) / plan["dp"],
        "prompt_tokens": PROMPT_TOKENS[workload].tokens,
        "output_tokens": number(configuration, "avg_output_len", what=what),
        "output_second_moment": lengths.spread * number(configuration, "avg_output_len", what=what) ** 2,
        "time_per_token_s": server_batch / throughput,
        "itl_s": number(configuration, "median_itl_ms", what=what) / 1e3,
        "itl_p90_s": number(configuration, "p90_itl_ms", what=what) / 1e3,
        "itl_p99_s": number(configuration, "p99_itl_ms", what=what) / 1e3,
        "throughput_tokens_per_s": throughput,
        "energy_per_output_token_j": energy_j,
        "avg_power_w": power_w,
        "power_limit_w": DEFAULT_LIMIT_W[gpu],
        "meter_scope": "gpu",
        "assumed": _assumed(workload, plan_assumed),
        "odd_group": _odd_group(record, configuration, gpu, plan),
        "engine": ENGINE,
        "engine_version": ENGINE_VERSION,
        "detail": f"architecture={record.get('architecture', '')}",
        "origin": "imported",
        "source": source,
    }


def _plan(configuration: dict[str, Any], *, what: str) -> tuple[dict[str, int], str]:
    """Degrees per design: `expert_parallel = N` with `tensor_parallel = 1, data_parallel = 1` ran attention TP = N with EP = N."""
    given = configuration["parallelization"]
    gpus = int(number(configuration, "num_gpus", what=what))
    tp, ep, dp = (int(given.get(f"{name}_parallel") or 1) for name in ("tensor", "expert", "data"))
    assumed = ""
    if ep > 1 and dp == 1 and tp == 1:
        tp, assumed = ep, f"attention ran TP{ep} (the engine's default; the file says tensor_parallel = 1)"
    if tp * dp != gpus:
        raise ProfileError(f"{what}: tensor {tp} x data {dp} is not the {gpus} GPUs it names")
    return {"tp": tp, "pp": 1, "dp": dp, "ep": ep}, assumed


def _lengths(configuration: dict[str, Any], record: dict[str, Any], *, what: str) -> LengthDistribution:
    """Output lengths of the configuration; of the whole file where it has no histogram of its own."""
    histogram = configuration.get("output_length_distribution") or record.get("output_length_distribution")
    if not isinstance(histogram, dict) or not isinstance(histogram.get("bins"), list) or not isinstance(histogram.get("counts"), list):
        raise ProfileError(f"{what} has no histogram of output lengths")
    try:
        return LengthDistribution.from_histogram(histogram["bins"], histogram["counts"])
    except (InputError, TypeError) as error:
        raise ProfileError(f"{what}: {error}") from None


def _dtype(record: dict[str, Any], *, what: str) -> str:
    precision = str(record["weight_precision"]).lower()
    if precision not in DTYPES:
        raise ProfileError(f"{what}: weight_precision {precision!r} is not known; allowed: {', '.join(DTYPES)}")
    return DTYPES[precision]


def _assumed(workload: str, plan_assumed: str) -> str:
    prompt = PROMPT_TOKENS[workload]
    parts = [f"prompt {prompt.tokens:g} tokens ({prompt.reason})", "KV cache bf16", "default power limit", plan_assumed]
    return "; ".join(part for part in parts if part)


def _odd_group(record: dict[str, Any], configuration: dict[str, Any], gpu: str, plan: dict[str, int]) -> str:
    """Groups that behave like nothing else; kept, and named so that figures are given with and without them."""
    if plan["dp"] > 1 and plan["ep"] > 1:
        return "attention-dp"
    single = gpu.startswith("b200") and configuration["num_gpus"] == 1
    if single and record["task"] == "gpqa" and "/Qwen3-" in str(record["model_id"]):
        return "b200-gpqa-single"  # 30-45 ms floor where the same LLM on chat takes 7 ms; cause unknown
    return ""
