"""Speed and size of pie_p beside its neighbours, each in its own environment, on the machine at hand.

    python benchmarks/run.py                        # makes the environments (about 2 GB) under ./build/benchmarks, then measures
    python benchmarks/run.py --write docs/benchmarks.md
    python benchmarks/run.py --only pie_p           # no neighbours, no downloads of theirs

The figures are of the machine that ran them, so only the ratios travel, and only when the load was alike (it is a row
of the table; about 1 is this script itself). No test has a time limit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stopwatch import peak_bytes

HERE = Path(__file__).parent
ROOT = HERE.parent
COLD_RUNS = 5


@dataclass(frozen=True)
class Tool:
    """One tool: what to install, the script that times its calls, and a cold command for the same question."""

    name: str
    requirement: str
    script: str
    cold: str  # the first word is found in the environment's bin folder


TOOLS = (
    Tool(
        "pie_p",
        str(ROOT),
        "time_pie_p.py",
        "pie-p predict llama-3.1-70b --gpu h100-sxm-80gb --tp 4 --batch 16 --prompt-tokens 150 --output-tokens 300 --json",
    ),
    Tool("genz-llm", "genz_llm==0.0.16", "time_genz.py", "python -c 'import time_genz; time_genz.load()()'"),
    Tool(
        "aiconfigurator",
        "aiconfigurator==0.12.0",
        "time_aiconfigurator.py",
        "aiconfigurator cli estimate --model-path meta-llama/Meta-Llama-3.1-70B --system h100_sxm --backend vllm"
        " --isl 150 --osl 300 --batch-size 16 --tp-size 4",
    ),
)

ROWS = (
    ("environment_bytes", "fresh environment", "MB", 1e6),
    ("import_s", "import", "s", 1.0),
    ("import_processor_s", "import, processor time", "s", 1.0),
    ("first_call_s", "first call", "ms", 1e-3),
    ("warm_call_s", "warm call, median", "ms", 1e-3),
    ("warm_call_processor_s", "warm call, processor time, median", "ms", 1e-3),
    ("cold_s", "cold command, median", "s", 1.0),
    ("cold_peak_bytes", "cold command, peak memory", "MB", 1e6),
    ("thousand_s", "1,000 configurations in one call", "s", 1.0),
    ("thousand_processor_s", "the same, processor time", "s", 1.0),
    ("sweep_s", "sweep of 1,000 plans", "s", 1.0),
    ("sweep_processor_s", "the same, processor time", "s", 1.0),
    ("twenty_thousand_s", "20,000 configurations in one call, working dropped", "s", 1.0),
    ("twenty_thousand_processor_s", "the same, processor time", "s", 1.0),
    ("extra_peak_bytes", "peak memory of the process that did so", "MB", 1e6),
    ("load_average", "load of the machine meanwhile", "processes", 1.0),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "benchmarks", help="where the environments are made")
    parser.add_argument("--only", choices=[tool.name for tool in TOOLS], action="append", help="measure these tools only")
    parser.add_argument("--write", type=Path, help="Markdown page to write")
    options = parser.parse_args()
    tools = [tool for tool in TOOLS if not options.only or tool.name in options.only]
    results = {tool.name: measure(tool, options.environments.resolve() / tool.name) for tool in tools}
    page = as_page(results)
    print(page)
    if options.write:
        options.write.write_text(page, encoding="utf-8")


def measure(tool: Tool, environment: Path) -> dict[str, float]:
    """Everything about one tool, in its own environment."""
    install(tool, environment)
    print(f"measuring {tool.name} ...", file=sys.stderr)
    call = subprocess.run([environment / "bin" / "python", HERE / tool.script], check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(call.stdout.splitlines()[-1])
    result.update(cold(tool, environment))
    result["environment_bytes"] = disk_bytes(environment)
    result["load_average"] = os.getloadavg()[0]
    return result


def install(tool: Tool, environment: Path) -> None:
    """A fresh environment with the tool; an existing one is used as it is, but pie_p itself is installed anew."""
    if not environment.exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    elif tool.name != "pie_p":
        return
    print(f"installing {tool.requirement} ...", file=sys.stderr)
    subprocess.run([environment / "bin" / "pip", "install", "--quiet", tool.requirement], check=True)


def cold(tool: Tool, environment: Path) -> dict[str, float]:
    """Wall time and peak memory of the command in processes of their own, after one run that fills the disk cache."""
    environ = os.environ | {"PYTHONPATH": str(HERE)}
    walls_s, peaks_bytes = [], []
    for _ in range(1 + COLD_RUNS):
        program, *arguments = shlex.split(tool.cold)
        argv = [str(environment / "bin" / program), *arguments]
        start_s = time.perf_counter()
        child = subprocess.Popen(argv, env=environ, cwd=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        walls_s.append(time.perf_counter() - start_s)
        peaks_bytes.append(peak_bytes(usage))
        if status:
            raise SystemExit(f"{tool.name}: the cold command failed with {os.waitstatus_to_exitcode(status)}: {tool.cold}")
    return {"cold_s": statistics.median(walls_s[1:]), "cold_peak_bytes": max(peaks_bytes)}


def disk_bytes(folder: Path) -> float:
    """What the folder occupies, as `du` counts it [B]."""
    out = subprocess.run(["du", "-sk", folder.resolve()], check=True, capture_output=True, text=True).stdout
    return int(out.split()[0]) * 1024


def as_page(results: dict[str, dict[str, float]]) -> str:
    """The table, pie_p first, with the ratio of the others to it."""
    names, versions = list(results), {tool.name: tool.requirement.replace("_", "-") for tool in TOOLS if "==" in tool.requirement}
    lines = [
        "# Benchmarks",
        "",
        "The same question to each tool: Llama-3.1-70B on 4 x H100 (TP 4), batch 16, 150 prompt and 300 output tokens. pie_p answers with",
        "joules by kind; genz-llm and aiconfigurator answer with times. In brackets: how many times pie_p's figure. Wall time",
        "depends on what else the machine does, processor time much less; the load meanwhile stands in the last row.",
        "",
        "| | " + " | ".join(versions.get(name, name) for name in names) + " |",
        "|---|" + "---|" * len(names),
    ]
    lines += [
        f"| {label} | " + " | ".join(cell(results, name, key, unit, scale) for name in names) + " |" for key, label, unit, scale in ROWS
    ]
    lines += ["", f"{machine()}. Made by `python benchmarks/run.py` on {datetime.now(timezone.utc):%Y-%m-%d}.", ""]
    return "\n".join(lines)


def cell(results: dict[str, dict[str, Any]], name: str, key: str, unit: str, scale: float) -> str:
    """One figure, and its ratio to pie_p's where both exist."""
    value = results[name].get(key)
    if value is None:
        return "not measured"
    ours = results.get("pie_p", {}).get(key)
    compared = ours and name != "pie_p" and key != "load_average"
    return f"{three_digits(value / scale)} {unit}" + (f" ({three_digits(value / ours)}x)" if compared else "")


def three_digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:.3g}" if value < 1000 else f"{round(value, 2 - len(str(int(value))) + 1):,.0f}"


def machine() -> str:
    """The machine in words: processor, cores available, Python."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{processor()}, {cores} cores available, {platform.system()}, Python {platform.python_version()}"


def processor() -> str:
    """The processor's name as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
