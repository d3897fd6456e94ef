"""aiconfigurator's latency tables: operators of more GPUs, NCCL, custom all-reduce and expert exchanges.

No power: `power_w` is NaN in every row. Files that hold the same measurements under two engines or GPUs are kept once.
"""

from __future__ import annotations

from pie_p.importers.aiconfigurator_tables import read_tables
from pie_p.importers.gathering import Gathered


def gather(gathered: Gathered) -> None:
    """Read every table below the path that has no power column."""
    read_tables(gathered, with_power=False)
