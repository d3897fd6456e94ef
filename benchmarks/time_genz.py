"""genz-llm: latency of one request, prefill and decode, Llama-3.1-70B on 4 x H100 under TP 4 (it has no energy)."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

from stopwatch import measure


def load() -> Callable[[], object]:
    from GenZ import decode_moddeling, prefill_moddeling

    common = {"model": "meta-llama/Llama-3.1-70B", "batch_size": 16, "system_name": "H100_GPU", "bits": "bf16", "tensor_parallel": 4}

    def call() -> object:
        with contextlib.redirect_stdout(io.StringIO()):
            prefill = prefill_moddeling(**common, input_tokens=150)
            decode = decode_moddeling(**common, input_tokens=150, output_tokens=300, Bb=1)
        return prefill, decode

    return call


if __name__ == "__main__":
    measure("genz-llm", load)
