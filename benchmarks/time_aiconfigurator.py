"""aiconfigurator: one `cli_estimate`, Llama-3.1-70B on 4 x H100 under TP 4 with vLLM: times from its tables."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

from stopwatch import measure

# The id it bundles a config for; other ids are downloaded.
LLM = "meta-llama/Meta-Llama-3.1-70B"


def load() -> Callable[[], object]:
    from aiconfigurator.cli.api import cli_estimate

    def call() -> object:
        with contextlib.redirect_stdout(io.StringIO()):
            return cli_estimate(LLM, "h100_sxm", backend_name="vllm", isl=150, osl=300, batch_size=16, tp_size=4)

    return call


if __name__ == "__main__":
    measure("aiconfigurator", load, repeats=5)
