"""Raw power samples in fewer bytes: what a bound on each reading saves, and what it costs in joules, as a Markdown table.

    python benchmarks/lossy_samples.py [--wall-power FOLDER] [--seconds 120]

Three sets of samples:
- the kept samples of a simulated campaign, `pie-p profile --simulated` (levels that hold still);
- a simulated board that wanders (mean-reverting noise, 25 W of spread, forgotten in a second), read by the real sampler for `--seconds`
  through a meter that looks at 25 of every 100 ms: its moments jitter as real ones do;
- measured wall power, with `--wall-power`: a folder of MLPerf Inference results that `profiles/sources.toml` names, every
  `spl_time_watts.csv.gz` or `spl.txt` below it. Not part of the project.

Bytes of power and of all columns are read from the files' own metadata, footers left out; "rounded" is plain Parquet of readings rounded to
steps of twice the bound, which keeps the same bound without a codec. The energy error is the largest over all windows of ten seconds.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet

from pie_p.profiling.campaign import CampaignPlan
from pie_p.profiling.clocks import MonotonicClock
from pie_p.profiling.laws import Timeline
from pie_p.profiling.samples import Samples
from pie_p.profiling.sampling import ProcessSampler
from pie_p.profiling.simulated_meter import SimulatedMeter
from pie_p.profiling.start import start

BOUNDS_W = (0.1, 1.0, 5.0, 20.0)
WINDOW_S = 10.0


def campaign_samples(folder: Path) -> list[Samples]:
    """What a simulated campaign keeps."""
    kernels = {"linear": 4, "norm": 4, "attention_decode": 4}
    start(CampaignPlan(name="kept", gpu="h100-sxm-80gb", kernels=kernels, keep_samples=True), folder, simulated=True)
    return [Samples.load(path) for path in sorted((folder / "samples").iterdir())]


def wandering_samples(seconds: float) -> list[Samples]:
    """A board around 450 W, through the sampler that campaigns use, in real time."""
    chance, board, now_s, level_w = np.random.default_rng(0), Timeline(idle_w=450.0), time.monotonic(), 0.0
    for tenth in range(int(10 * seconds) + 100):
        level_w = 0.9 * level_w + 25.0 * np.sqrt(1 - 0.9**2) * chance.standard_normal()
        board.set_level(now_s + tenth / 10, 450.0 + level_w)
    sampler = ProcessSampler(partial(SimulatedMeter, board, MonotonicClock()), period_s=0.1 / 4.7)
    sampler.start()
    time.sleep(seconds)
    return [sampler.stop()]


def wall_samples(folder: Path) -> list[Samples]:
    """Watts at the wall, once a second."""
    found = []
    for path in sorted([*folder.rglob("spl_time_watts.csv.gz"), *folder.rglob("spl.txt")]):
        text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
        rows = [line.removeprefix("Time,").replace(",Watts,", ",").split(",") for line in text.splitlines() if line[:5] != "time,"]
        moments = [datetime.strptime(row[0], "%m-%d-%Y %H:%M:%S.%f") for row in rows]
        at_s = np.array([(moment - moments[0]).total_seconds() for moment in moments])
        found.append(Samples(at_s=at_s, power_w=np.array([float(row[1]) for row in rows])))
    return found


def column_bytes(many: Sequence[Samples], path: Path, bound_w: float | None) -> tuple[int, int, list[Samples]]:
    """Bytes of power readings, bytes of all columns, and what comes back."""
    power = total = 0
    back = []
    for samples in many:
        alone = replace(samples, counter_at_s=np.empty(0), energy_j=np.empty(0))
        alone.save(path, bound_w=bound_w)
        group = parquet.read_metadata(path).row_group(0)
        sizes = {group.column(i).path_in_schema: group.column(i).total_compressed_size for i in range(group.num_columns)}
        power += sizes["value"] + sizes.get("code", 0)
        total += sum(sizes.values())
        back.append(Samples.load(path))
    return power, total, back


def worst_j(samples: Samples, back: Samples) -> float:
    """Largest error of energy over a window [J]."""
    starts_s = np.arange(samples.at_s[0], samples.at_s[-1] - WINDOW_S, WINDOW_S / 2)
    windows = [(start_s, start_s + WINDOW_S) for start_s in starts_s]
    return max((abs(samples.integral_j(*window) - back.integral_j(*window)) for window in windows), default=0.0)


def rows(name: str, many: Sequence[Samples], path: Path) -> list[str]:
    """One line without a bound, and one for each."""
    power, total, _ = column_bytes(many, path, None)
    count = sum(map(len, many))
    lines = [f"| {name}, {count:,} readings | none | {power:,} | | | {total:,} | 0 | 0 | 0 |"]
    for bound_w in BOUNDS_W:
        coded, all_coded, back = column_bytes(many, path, bound_w)
        step_w = 2 * bound_w
        rounded = column_bytes([replace(each, power_w=np.rint(each.power_w / step_w) * step_w) for each in many], path, None)[0]
        error_w = max(float(np.abs(a.power_w - b.power_w).max()) for a, b in zip(many, back, strict=True))
        error_j = max(worst_j(a, b) for a, b in zip(many, back, strict=True))
        lines.append(
            f"| | {bound_w:g} | {coded:,} | {power / coded:.1f} | {power / rounded:.1f} | {all_coded:,} ({total / all_coded:.1f}) "
            f"| {error_w:.3g} | {float(f'{error_j:.2g}'):g} | {bound_w * WINDOW_S:g} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wall-power", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    arguments = parser.parse_args()
    print("| samples | bound W | power bytes | ratio | rounded | all bytes (ratio) | worst W | worst J in 10 s | allowed J |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        sets = {"simulated campaign": campaign_samples(Path(folder) / "kept"), "wandering board": wandering_samples(arguments.seconds)}
        if arguments.wall_power is not None:
            sets["measured wall power"] = wall_samples(arguments.wall_power)
        for name, many in sets.items():
            print("\n".join(rows(name, many, Path(folder) / "samples.parquet")), flush=True)


if __name__ == "__main__":
    main()
