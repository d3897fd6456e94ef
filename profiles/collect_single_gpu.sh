#!/usr/bin/env bash
# Profile one data-centre GPU in one command and under 8 minutes: the meter's timing, idle and active idle, kernels of every kind, a small
# transformer from end to end, and power held against the energy counter. Safe to stop at any moment; the same command resumes.
#
#   profiles/collect_single_gpu.sh h200-sxm-141gb [OUT] [BUDGET]     OUT: profiles/<gpu>-single/<date>; BUDGET: 7m
#
# Needs a CUDA build of torch, nvidia-ml-py and pyarrow:  pip install -e '.[profile]'
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
gpu=${1:?name of the GPU in the catalogue, for example h200-sxm-141gb}
out=${2:-profiles/$gpu-single/$(date -u +%F)}
budget=${3:-7m}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$out"
nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PERFORMANCE >"$out/nvidia-smi.txt" || echo "nvidia-smi did not answer; going on" >&2
python3 -m pie_p.profiling.single_gpu --gpu "$gpu" --out "$out" --budget "$budget"
python3 - "$out" <<'PYTHON'
import json
import sys

from pie_p.profiles import verify_profile

manifest = verify_profile(sys.argv[1])
facts = json.loads(manifest.conditions.notes or "{}")
print(f"{manifest.rows('operators')} rows, {len(manifest.rejected)} rejected, verified: {sys.argv[1]}")
for name in ("idle_w", "active_idle_w", "meter_timing", "power_against_time", "transformer_step"):
    print(f"{name}: {facts.get(name)}")
PYTHON
