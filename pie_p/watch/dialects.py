"""Dialects: what vLLM, SGLang and TensorRT-LLM call the metrics that are read, by version.

Sources, read on 2026-12-01:
- vLLM: `vllm/engine/metrics.py` (0.5.0 to 0.8.5, docs "Production Metrics") and `vllm/v1/metrics/loggers.py` (0.8 on).
  `gpu_cache_usage_perc` became `kv_cache_usage_perc`, and `gpu_prefix_cache_*` `prefix_cache_*`, in 0.9.2;
  `time_per_output_token_seconds` became `inter_token_latency_seconds` in 0.11.0 (pull request 24110). Counters grow with every engine step.
- SGLang: `python/sglang/srt/metrics/collector.py` (0.4, 0.5) and `srt/observability/metrics_collector.py` (2026), with `--enable-metrics`.
  Its token counters grow when a request ends (`observe_one_finished_request`), its latency histograms with every token.
  `realtime_tokens_total` and `cuda_graph_passes_total` grow with every batch; they came late in 0.5, and `gpu_execution_seconds_total`
  needs its device timer.
- TensorRT-LLM: `tensorrt_llm/metrics/collector.py`: five request metrics in 1.1.0rc5 (behind NVIDIA Dynamo, which puts `trtllm:` or
  `trtllm_` before them), token counters and scheduler gauges in 1.3. Token counters grow when a request ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

Role = Literal[
    "prompt_tokens",  # counter [-]
    "output_tokens",  # counter [-]
    "cached_tokens",  # counter: prompt tokens found in the prefix cache [-]
    "live_prompt_tokens",  # counter that grows as prompts are read, beside one that grows when requests end [-]
    "live_output_tokens",  # the same of output tokens after the first [-]
    "finished",  # counter: requests that ended [-]
    "steps",  # counter: engine steps [-]
    "busy_s",  # counter: seconds in which the GPU works [s]
    "itl_sum",  # histogram of the time between tokens: its sum [s]
    "itl_count",  # its number of samples [-]
    "first_tokens",  # histogram of time to first token: its number of samples, so prompts read [-]
    "running",  # gauge: requests that run [-]
    "waiting",  # gauge: requests that wait [-]
    "kv_usage",  # gauge: share of the KV cache in use, 0..1
    "cache_hit_rate",  # gauge: share of prompt tokens found in the prefix cache, 0..1
]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
GAUGES: Final[frozenset[Role]] = frozenset(("running", "waiting", "kv_usage", "cache_hit_rate"))

# What is lost where a server does not give a metric; those without an entry have a stand-in that loses nothing worth a word.
LOSSES: Final[dict[Role, str]] = {
    "prompt_tokens": "energy of prefill: prompts count with an assumed length",
    "output_tokens": "energy per output token; running requests alone say how busy the server was",
    "running": "the batch: it is taken from engine steps or latencies, else 1",
    "waiting": "whether the server was busy all the time",
    "finished": "the mean output length: an assumed one stands in",
    "steps": "bursts shorter than the time between scrapes: the batch comes from gauges",
    "itl_sum": "the correction of predicted by measured time",
    "first_tokens": "prompts that were just read: they count when their request ends",
    "cached_tokens": "prompt tokens saved by the prefix cache: every prompt counts in full",
    "kv_usage": "a figure that is only shown",
}


class Name(NamedTuple):
    """A metric without its prefix; where a label is named, only series whose value begins like this count."""

    metric: str
    label: str = ""
    begins: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The metrics of one server: for each role the names to look for, newest first."""

    server: Literal["vllm", "sglang", "trtllm"]
    prefixes: tuple[str, ...]  # of every metric
    names: dict[Role, tuple[Name, ...]]
    live_tokens: bool  # the token counters grow as tokens are made, not when a request ends


def _names(**metrics: str | tuple[Name, ...]) -> dict[Role, tuple[Name, ...]]:
    known = {role: metrics[role] for role in ROLES if role in metrics}
    return {role: tuple(map(Name, names.split())) if isinstance(names, str) else names for role, names in known.items()}


VLLM: Final = Dialect(
    server="vllm",
    prefixes=("vllm:",),
    names=_names(
        prompt_tokens="prompt_tokens_total",
        output_tokens="generation_tokens_total",
        cached_tokens="prefix_cache_hits_total gpu_prefix_cache_hits_total",  # 0.9.2 on; 0.8 to 0.11
        finished="request_success_total",
        steps="iteration_tokens_total_count",  # 0.6.5 on
        itl_sum="inter_token_latency_seconds_sum time_per_output_token_seconds_sum",  # 0.11 on; up to 0.12
        itl_count="inter_token_latency_seconds_count time_per_output_token_seconds_count",
        first_tokens="time_to_first_token_seconds_count",
        running="num_requests_running",
        waiting="num_requests_waiting",
        kv_usage="kv_cache_usage_perc gpu_cache_usage_perc",  # 0.9.2 on; up to 0.11
        cache_hit_rate="gpu_prefix_cache_hit_rate",  # V0 engine
    ),
    live_tokens=True,
)

SGLANG: Final = Dialect(
    server="sglang",
    prefixes=("sglang:", "sglang_"),  # the second behind collectors that rewrite names
    names=_names(
        prompt_tokens="prompt_tokens_total",
        output_tokens="generation_tokens_total",
        cached_tokens="cached_tokens_total",
        live_prompt_tokens=(Name("realtime_tokens_total", "mode", "prefill_compute"),),
        live_output_tokens=(Name("realtime_tokens_total", "mode", "decode"),),
        finished="num_requests_total",
        steps=(Name("cuda_graph_passes_total", "mode", "decode"),),
        busy_s="gpu_execution_seconds_total",
        itl_sum="inter_token_latency_seconds_sum time_per_output_token_seconds_sum",  # 0.4.6 on; before
        itl_count="inter_token_latency_seconds_count time_per_output_token_seconds_count",
        first_tokens="time_to_first_token_seconds_count",
        running="num_running_reqs",
        waiting="num_queue_reqs",
        kv_usage="full_token_usage token_usage",
        cache_hit_rate="cache_hit_rate",
    ),
    live_tokens=False,
)

TRTLLM: Final = Dialect(
    server="trtllm",
    prefixes=("trtllm_", "trtllm:"),
    names=_names(
        prompt_tokens="prompt_tokens_total",
        output_tokens="generation_tokens_total",
        cached_tokens="prompt_cached_tokens_total",
        finished="num_requests_completed_total request_success_total",
        itl_sum="time_per_output_token_seconds_sum",  # one sample per request, when it ends
        itl_count="time_per_output_token_seconds_count",
        running="num_requests_running",
        waiting="num_requests_waiting",
        kv_usage="kv_cache_utilization",
        cache_hit_rate="kv_cache_hit_rate",
    ),
    live_tokens=False,
)

DIALECTS: Final = (VLLM, SGLANG, TRTLLM)
METRICS_PATHS: Final = ("/metrics", "/prometheus/metrics")  # the second is TensorRT-LLM's
