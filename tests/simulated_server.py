"""A serving engine simulated step by step, and the metrics page it would show: the truth that estimates are held against.

Its clock and its watts do not come from the estimator: every step's time and energy is looked up among single steps of the predictor (one
mixed step, one decode-only step, as `Predictor.run` settles them) or given as a law; between requests the boards draw idle power. Counters
are whole numbers that change at the end of a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pie_p.cases import make_case
from pie_p.predictor import load_predictor
from pie_p.serving import WAIT_CAUSES, assemble

StepCost = Callable[[int, float, int, float], tuple[float, float]]  # decoding, their context, prompts, their tokens -> seconds, joules


@dataclass
class Sequence:
    prompt: int
    left: int
    arrival_s: float
    made: int = 0
    last_s: float = 0.0
    first_s: float = 0.0


@dataclass
class Counts:
    """What the page shows."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    finished: int = 0
    finished_prompt_tokens: int = 0
    finished_output_tokens: int = 0
    steps: int = 0
    decode_steps: int = 0
    itl_sum_s: float = 0.0
    itl_count: int = 0
    tpot_sum_s: float = 0.0  # of requests that ended, one sample each
    tpot_count: int = 0
    ttft_sum_s: float = 0.0
    ttft_count: int = 0
    running: int = 0
    waiting: int = 0


@dataclass
class SimulatedServer:
    """One engine. `advance(t)` runs it up to a time; `energy_j` is the truth since the start.

    Args:
        cost: seconds and joules of one step, all boards together.
        idle_w: all boards together, with nothing to do.
        arrivals: (time, prompt tokens, output tokens), rising.
        most_running: sequences that run together at most.
        prompts_per_step: prompts that one step reads at most.
    """

    cost: StepCost
    idle_w: float
    arrivals: deque[tuple[float, int, int]]
    most_running: int = 256
    prompts_per_step: int = 1
    now_s: float = 0.0
    energy_j: float = 0.0
    busy_s: float = 0.0
    counts: Counts = field(default_factory=Counts)
    queue: deque[Sequence] = field(default_factory=deque)
    active: list[Sequence] = field(default_factory=list)

    def advance(self, until_s: float) -> None:
        """Run to `until_s`; a step that goes beyond it is booked when it ends, its energy in proportion."""
        while self.now_s < until_s:
            self._arrive()
            if not self.queue and not self.active:
                next_s = min(until_s, self.arrivals[0][0] if self.arrivals else until_s)
                self.energy_j += self.idle_w * (next_s - self.now_s)
                self.now_s = next_s
                continue
            self._step()
        self._arrive()
        self.counts.running, self.counts.waiting = len(self.active), len(self.queue)

    def _arrive(self) -> None:
        while self.arrivals and self.arrivals[0][0] <= self.now_s:
            at_s, prompt, output = self.arrivals.popleft()
            self.queue.append(Sequence(prompt, output, at_s))

    def _step(self) -> None:
        room = min(self.prompts_per_step, self.most_running - len(self.active), len(self.queue))
        entering = [self.queue.popleft() for _ in range(room)]
        context = float(np.mean([one.prompt + one.made for one in self.active])) if self.active else 0.0
        tokens = float(np.mean([one.prompt for one in entering])) if entering else 0.0
        seconds, joules = self.cost(len(self.active), context, len(entering), tokens)
        self.now_s += seconds
        self.energy_j += joules
        self.busy_s += seconds
        counts = self.counts
        counts.steps += 1
        counts.decode_steps += 1 if self.active else 0
        for one in entering:
            one.first_s = self.now_s
            counts.prompt_tokens += one.prompt
            counts.ttft_count += 1
            counts.ttft_sum_s += self.now_s - one.arrival_s
        for one in self.active:
            counts.itl_count += 1
            counts.itl_sum_s += self.now_s - one.last_s
        for one in (*self.active, *entering):
            one.made, one.left, one.last_s = one.made + 1, one.left - 1, self.now_s
            counts.output_tokens += 1
        self.active += entering
        for one in [one for one in self.active if one.left <= 0]:
            self.active.remove(one)
            counts.finished += 1
            counts.finished_prompt_tokens += one.prompt
            counts.finished_output_tokens += one.made
            if one.made > 1:
                counts.tpot_count += 1
                counts.tpot_sum_s += (one.last_s - one.first_s) / (one.made - 1)


def predicted_steps(deployment: Mapping[str, Any], *, output_tokens: int, most: int = 96, slower: float = 1.0) -> tuple[StepCost, float]:
    """Step costs out of the predictor's own single steps, and idle watts of all boards.

    Args:
        deployment: as for `predict_energy`, one replica.
        output_tokens: mean output, for the mix of the mixed steps' power.
        most: largest batch looked up.
        slower: how much longer every step takes than predicted; the work's energy is the same, the rest is drawn at idle.
    """
    predictor = load_predictor("physics")
    prompts = (64, 256, 1024)
    contexts = tuple(p + 0.75 * output_tokens for p in prompts)  # of sequences with these prompts, at the spread a mean output stands for
    batches = [*range(1, 17), *range(18, 33, 2), *range(36, 65, 4), *range(72, most + 1, 8)]
    gpu = make_case(**deployment, prompt_tokens=1, output_tokens=1).deployment
    idle_w = gpu.cluster.gpu.active_idle_w * gpu.plan.gpus

    def table(mode_of: Callable[[int], str], axis: tuple[int, ...], step: int, outputs: Callable[[int], float]) -> Any:
        cases = [
            make_case(**deployment, batch=b, prompt_tokens=p, output_tokens=outputs(p), mode=mode_of(b)) for b in batches for p in axis
        ]
        run = predictor.run(assemble(cases))
        picked = [np.flatnonzero(run.assembly.step_case == number)[step] for number in range(len(cases))]
        return np.array([_step(run, one) for one in picked]).reshape(len(batches), len(axis), 2)

    decode = table(lambda b: "steady" if b > 1 else "static", prompts, -1, lambda p: float(output_tokens))  # `b` decode, no prompt
    mixed = table(lambda b: "steady" if b > 1 else "static", prompts, 0, lambda p: float(output_tokens))  # b - 1 decode beside one prompt

    def read(grid: Any, axis: tuple[float, ...], b: float, x: float) -> tuple[float, float]:
        per_axis = [np.interp(b, batches, grid[:, k, figure]) for figure in (0, 1) for k in range(len(axis))]
        return tuple(float(np.interp(x, axis, per_axis[f * len(axis) : (f + 1) * len(axis)])) for f in (0, 1))  # type: ignore[return-value]

    known: dict[tuple[int, int, int, int], tuple[float, float]] = {}

    def cost(decoding: int, context: float, entering: int, tokens: float) -> tuple[float, float]:
        key = decoding, int(context) // 32, entering, int(tokens)
        if key not in known:
            seconds, joules = read(mixed, prompts, decoding + 1, tokens) if entering else read(decode, contexts, decoding, context)
            known[key] = seconds * slower, joules + (slower - 1.0) * seconds * idle_w
        return known[key]

    return cost, idle_w


def _step(run: Any, step: int) -> tuple[float, float]:
    """Seconds and joules of one settled step, all ranks together."""
    assembly = run.assembly
    stages = np.flatnonzero(assembly.stage_step == step)
    rows = np.isin(assembly.row_stage, stages)
    joules = float(np.sum(assembly.calls[rows] * run.time_s[rows] * run.power_w[rows] * assembly.stage_ranks[assembly.row_stage[rows]]))
    waited = np.sum([run.clock.waits_s[cause] for cause in WAIT_CAUSES], axis=0)
    joules += float(np.sum((waited * run.wait_power_w * assembly.stage_ranks)[stages]))
    return float(run.clock.step_s[step]), joules


def bursty_arrivals(*, seconds: float, seed: int, rates: tuple[float, ...] = (0.0, 0.6, 6.0, 1.5, 12.0), output: int = 96) -> deque[Any]:
    """Poisson arrivals whose rate jumps every 20 s, with bursts of simultaneous requests and silence in between."""
    rng = np.random.default_rng(seed)

    def drawn() -> Iterator[tuple[float, int, int]]:
        at_s = 0.0
        while at_s < seconds:
            rate = rates[int(at_s // 20) % len(rates)]
            if rate <= 0:
                at_s = (at_s // 20 + 1) * 20
                continue
            at_s += float(rng.exponential(1.0 / rate))
            together = int(rng.integers(8, 24)) if rng.random() < 0.04 else 1
            for _ in range(together):
                yield at_s, int(rng.choice([64, 128, 256, 640])), int(max(1, rng.exponential(output)))

    return deque(drawn())


def vllm_page(counts: Counts, *, version: str = "0.12", engine: str | None = "0", served: str = "meta-llama/Llama-3.1-8B-Instruct") -> str:
    """vLLM's page, with the names of `vllm/v1/metrics/loggers.py` (0.12) or `vllm/engine/metrics.py` (0.8.5)."""
    labels = f'model_name="{served}"' if engine is None else f'engine="{engine}",model_name="{served}"'
    old = version < "0.11"
    itl = "time_per_output_token_seconds" if old else "inter_token_latency_seconds"
    kv = "gpu_cache_usage_perc" if old else "kv_cache_usage_perc"
    return "\n".join(
        [
            "# HELP vllm:num_requests_running Number of requests in model execution batches.",
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{{{labels}}} {float(counts.running)}",
            f"vllm:num_requests_waiting{{{labels}}} {float(counts.waiting)}",
            f"vllm:{kv}{{{labels}}} {counts.running / 512}",
            "# TYPE vllm:prompt_tokens_total counter",
            f"vllm:prompt_tokens_total{{{labels}}} {float(counts.prompt_tokens)}",
            f"vllm:prompt_tokens_created{{{labels}}} 1.7e+09",
            f"vllm:generation_tokens_total{{{labels}}} {float(counts.output_tokens)}",
            f'vllm:request_success_total{{{labels},finished_reason="stop"}} {float(counts.finished - counts.finished // 3)}',
            f'vllm:request_success_total{{{labels},finished_reason="length"}} {float(counts.finished // 3)}',
            "# TYPE vllm:iteration_tokens_total histogram",
            f"vllm:iteration_tokens_total_sum{{{labels}}} {float(counts.prompt_tokens + counts.output_tokens)}",
            f'vllm:iteration_tokens_total_bucket{{{labels},le="+Inf"}} {float(counts.steps)}',
            f"vllm:iteration_tokens_total_count{{{labels}}} {float(counts.steps)}",
            f"vllm:{itl}_sum{{{labels}}} {counts.itl_sum_s}",
            f'vllm:{itl}_bucket{{{labels},le="0.01"}} {float(counts.itl_count)}',
            f"vllm:{itl}_count{{{labels}}} {float(counts.itl_count)}",
            f"vllm:time_to_first_token_seconds_sum{{{labels}}} {counts.ttft_sum_s}",
            f"vllm:time_to_first_token_seconds_count{{{labels}}} {float(counts.ttft_count)}",
            "",
        ]
    )


def sglang_page(counts: Counts, *, new: bool = True, served: str = "meta-llama/Llama-3.1-8B-Instruct") -> str:
    """SGLang's page, with the names of `srt/metrics/collector.py`: token counters grow when requests end; `new` adds the live ones."""
    labels = f'model_name="{served}"'
    ranks = f'engine_type="unified",model_name="{served}",pp_rank="0",tp_rank="0"'
    live = [
        f'sglang:realtime_tokens_total{{{ranks},mode="prefill_compute"}} {float(counts.prompt_tokens)}',
        f'sglang:realtime_tokens_total{{{ranks},mode="decode"}} {float(counts.itl_count)}',
        f'sglang:cuda_graph_passes_total{{{ranks},mode="decode_cuda_graph"}} {float(counts.decode_steps)}',
        f'sglang:cuda_graph_passes_total{{{ranks},mode="prefill_none"}} {float(counts.ttft_count)}',
    ]
    return "\n".join(
        [
            "# TYPE sglang:prompt_tokens_total counter",
            f"sglang:prompt_tokens_total{{{labels}}} {float(counts.finished_prompt_tokens)}",
            f"sglang:generation_tokens_total{{{labels}}} {float(counts.finished_output_tokens)}",
            f"sglang:num_requests_total{{{labels}}} {float(counts.finished)}",
            f"sglang:num_running_reqs{{{ranks}}} {float(counts.running)}",
            f"sglang:num_queue_reqs{{{ranks}}} {float(counts.waiting)}",
            f"sglang:token_usage{{{ranks}}} {counts.running / 512}",
            f"sglang:cache_hit_rate{{{ranks}}} 0.0",
            f"sglang:inter_token_latency_seconds_sum{{{labels}}} {counts.itl_sum_s}",
            f"sglang:inter_token_latency_seconds_count{{{labels}}} {float(counts.itl_count)}",
            f"sglang:time_to_first_token_seconds_sum{{{labels}}} {counts.ttft_sum_s}",
            f"sglang:time_to_first_token_seconds_count{{{labels}}} {float(counts.ttft_count)}",
            *(live if new else ()),
            "",
        ]
    )


def trtllm_page(counts: Counts, *, served: str = "llama") -> str:
    """TensorRT-LLM's page, with the names of `tensorrt_llm/metrics/collector.py` (1.3): request metrics grow when requests end."""
    labels = f'engine_type="trtllm",model_name="{served}"'
    return "\n".join(
        [
            f"trtllm_prompt_tokens_total{{{labels}}} {float(counts.finished_prompt_tokens)}",
            f"trtllm_generation_tokens_total{{{labels}}} {float(counts.finished_output_tokens)}",
            f'trtllm_request_success_total{{{labels},finished_reason="stop"}} {float(counts.finished)}',
            f"trtllm_time_per_output_token_seconds_sum{{{labels}}} {counts.tpot_sum_s}",
            f"trtllm_time_per_output_token_seconds_count{{{labels}}} {float(counts.tpot_count)}",
            f"trtllm_num_requests_running{{{labels}}} {float(counts.running)}",
            f"trtllm_num_requests_waiting{{{labels}}} {float(counts.waiting)}",
            f"trtllm_kv_cache_utilization{{{labels}}} {counts.running / 512}",
            f"trtllm_kv_cache_hit_rate{{{labels}}} 0.0",
            "",
        ]
    )
