"""Engine: how a serving engine schedules, and what its host side costs per step.

The times are priors with their source; a trained or calibrated predictor brings its own (`Predictor.serving`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

from pie_p.errors import UnknownNameError, did_you_mean
from pie_p.quantities import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A serving engine's scheduling limits.

    Args:
        name: "vllm", "sglang" or "trtllm".
        version: release the figures belong to.
        chunk_tokens: tokens one step may hold before a prompt is cut into chunks [-].
        graph_sequences: largest decode batch replayed as one CUDA graph; above it kernels are launched one by one [-].
        expert_exchange: how attention-DP ranks hand tokens to experts.
        asked: version that was asked for, where another one's figures stand in.
        pads: attention-DP ranks all compute as much as the fullest one (vLLM 0.11: its runs cost a stall per prompt that grows with dp).
    """

    name: str
    version: str
    chunk_tokens: int
    graph_sequences: int
    expert_exchange: Literal["gather", "all_to_all"]
    asked: str = ""  # version that was asked for, where another one answers
    pads: bool = False  # attention-DP ranks all compute as much as the fullest one

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


VERSION: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*(\.?(rc|post|dev|a|b)[0-9]{1,9})*")

# Defaults of each release: vLLM docs "Optimization and Tuning" (max_num_batched_tokens 8192 on 80 GB boards for the API server from 0.9 on,
# 512 with chunking before), "CUDA graphs" (capture sizes up to 512; 256 before 0.10); SGLang "Server Arguments" (chunked-prefill-size 8192,
# cuda-graph-max-bs 160 to 512 by memory); TensorRT-LLM "Useful Runtime Options" (max_num_tokens 8192, CUDA graphs up to max_batch_size).
ENGINES: Final[tuple[Engine, ...]] = (
    Engine(name="vllm", version="0.5.4", chunk_tokens=8192, graph_sequences=256, expert_exchange="gather", pads=True),
    Engine(name="vllm", version="0.11.1", chunk_tokens=8192, graph_sequences=512, expert_exchange="gather", pads=True),
    Engine(name="sglang", version="0.5.9", chunk_tokens=8192, graph_sequences=512, expert_exchange="all_to_all"),
    Engine(name="trtllm", version="1.3.0rc15", chunk_tokens=8192, graph_sequences=2048, expert_exchange="all_to_all"),
)


def load_engine(engine: str | Engine) -> Engine:
    """The engine of that name; a bare name means the newest version known, a version means the nearest one not newer than it.

    Raises:
        UnknownNameError: with the engines that are known.

    >>> str(load_engine("vllm"))
    'vllm==0.11.1'
    >>> str(load_engine("vllm==0.6.0"))
    'vllm==0.5.4'
    """
    if isinstance(engine, Engine):
        return engine
    name, _, version = (part.strip() for part in str(engine).lower()[:80].partition("=="))
    known = [one for one in ENGINES if one.name == name]
    if not known:
        names = sorted({one.name for one in ENGINES})
        near = did_you_mean(name, names) or " "
        raise UnknownNameError(f"no engine {shown(engine)}; known: {', '.join(names)}, each optionally with ==VERSION.{near}".rstrip())
    if not version:
        return known[-1]
    if not VERSION.fullmatch(version):
        raise UnknownNameError(f"engine {shown(engine)} has no version I can order; give one like {known[-1]}")
    older = [one for one in known if _order(one.version) <= _order(version)]
    found = older[-1] if older else known[0]
    return found if found.version == version else replace(found, asked=version)


def _order(version: str) -> tuple[int, ...]:
    digits = ["".join(char for char in part if char.isdigit()) for part in version.replace("rc", ".").split(".")]
    return tuple(int(part) for part in digits if part)
