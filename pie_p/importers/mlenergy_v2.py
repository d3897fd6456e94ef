"""ML.ENERGY Leaderboard v2: energy per request of vLLM 0.5.4 on H100 (and A100) under load (github ml-energy/leaderboard-v2, Apache-2.0).

One JSON file per run, `llm_text_generation/<chat|code>/<GPU>/<org>/<name>/bs<max>+tp<n>+pp<n>.json`. Energy is that of the GPU boards.
Time per token is batch / throughput; the file's `Avg TPOT` is another thing (median ratio 1.26) and is kept as `tpot_s`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pie_p.errors import ProfileError
from pie_p.importers.assumptions import DEFAULT_LIMIT_W, PROMPT_TOKENS
from pie_p.importers.gathering import Gathered, json_object, number

ENGINE, ENGINE_VERSION = "vllm", "0.5.4"
GPUS: Final = {"NVIDIA H100 80GB HBM3": "h100-sxm-80gb", "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb"}
DTYPE_MARKS: Final = (("fp8", "fp8"), ("awq", "int4"), ("gptq", "int4"), ("int8", "int8"))


def gather(gathered: Gathered) -> None:
    """Read every run below the path."""
    files = gathered.files("llm_text_generation/*/*/*/*/bs*tp*pp*.json")
    for done, path in enumerate(files, start=1):
        content = gathered.read(path, what="ML.ENERGY v2 result")
        if not gathered.is_repeat(path, content, 1):
            gathered.add_rows("end_to_end", [_row(gathered.source, path, json_object(content, what=str(path)))])
        gathered.step(path, done, len(files))


def _row(source: str, path: Path, run: dict[str, Any]) -> dict[str, Any]:
    gpu = GPUS.get(str(run.get("GPU")))
    if gpu is None:
        raise ProfileError(f"{path}: the GPU {run.get('GPU')!r} is not one this importer knows: {', '.join(GPUS)}")
    workload = f"v2 {path.parts[-5]}"
    if workload not in PROMPT_TOKENS:
        raise ProfileError(f"{path}: the workload {path.parts[-5]!r} is not known; allowed: chat, code")
    value = {key: number(run, key, what=str(path)) for key in _FIELDS}
    energy_j = value["Energy/req (J)"] / value["Avg Output Tokens"]
    prompt = PROMPT_TOKENS[workload]
    return {
        "llm": str(run.get("Model")),
        "gpu": gpu,
        "workload": workload,
        "mode": "steady",
        "tp": value["TP"],
        "pp": value["PP"],
        "dtype": _dtype(str(run.get("Model"))),
        "batch": value["Avg BS (reqs)"],
        "max_batch": value["Max BS (reqs)"],
        "prompt_tokens": prompt.tokens,
        "output_tokens": value["Avg Output Tokens"],
        "time_per_token_s": value["Avg BS (reqs)"] / value["Token tput (tok/s)"],
        "tpot_s": value["Avg TPOT (s)"],
        "throughput_tokens_per_s": value["Token tput (tok/s)"],
        "energy_per_output_token_j": energy_j,
        "avg_power_w": energy_j * value["Token tput (tok/s)"],
        "power_limit_w": DEFAULT_LIMIT_W[gpu],
        "meter_scope": "gpu",
        "assumed": f"prompt {prompt.tokens:g} tokens ({prompt.reason}); spread of output lengths not published; KV cache bf16; "
        "default power limit; power = energy per token x throughput",
        "engine": ENGINE,
        "engine_version": ENGINE_VERSION,
        "origin": "imported",
        "source": source,
    }


_FIELDS: Final = (
    "TP",
    "PP",
    "Energy/req (J)",
    "Avg TPOT (s)",
    "Token tput (tok/s)",
    "Avg Output Tokens",
    "Avg BS (reqs)",
    "Max BS (reqs)",
)


def _dtype(llm: str) -> str:
    """Weights as the checkpoint's name says; the others ran as published, in 16 bits."""
    return next((dtype for mark, dtype in DTYPE_MARKS if mark in llm.lower()), "bf16")
