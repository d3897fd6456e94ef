"""aiconfigurator's power tables: latency [ms] and mean board power [W] per operator on H200 and B200.

Power is NVML's averaged reading every 100 ms over a window of 0.3-1 s: kernels below 0.1 ms are seen by one or two samples and often read
too low. All rows are kept; those with `time_s >= 1e-4` are the trustworthy ones (docs/data.md). Rows without a reading keep NaN.
"""

from __future__ import annotations

from pie_p.importers.aiconfigurator_tables import read_tables
from pie_p.importers.gathering import Gathered


def gather(gathered: Gathered) -> None:
    """Read every table below the path that has a power column."""
    read_tables(gathered, with_power=True)
