"""Fresh processes, quickly: forked from a clean server that has imported torch once, where the system has fork; else started anew.

A process that is forked from this one would inherit its threads and its CUDA context; a spawned one imports torch for seconds.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Final

# Imported by the server, once; what is not installed is passed over. Only what was asked for before its first process counts.
PRELOADED: Final = ("torch", "torch.distributed.tensor.parallel", "torch.distributed.pipelining", "pie_p.profiling.runs")


def fresh_context() -> ForkServerContext | SpawnContext:
    """The context to start processes with."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context
