"""Time of placements: a trace of 20,000 requests on five systems, with and without limits.

python benchmarks/time_place.py                      # a synthetic trace
python benchmarks/time_place.py AzureLLMInferenceTrace_conv.csv.gz
"""

from __future__ import annotations

import json
import os
import sys
import time

from pie_p import load_trace, place, predict_system, synthetic_trace
from pie_p.arrivals import Lognormal

SHARES = {"most_share": {"qwen3-32b": 0.2}, "least_share": {"llama-3.1-70b": 0.25}}
WISHES = ({}, SHARES, {"within_s": 1000.0}, {"within_s": 2000.0, **SHARES})


def main() -> None:
    lengths = {"prompt_tokens": Lognormal(mean=1150, variation=1.0), "output_tokens": Lognormal(mean=210, variation=0.8)}
    trace = load_trace(sys.argv[1]) if sys.argv[1:] else synthetic_trace(requests=20_000, rate_per_s=5.5, seed=1, **lengths)
    systems = [
        predict_system("llama-3.1-8b", gpu="h100-sxm-80gb", batch=32, accuracy=0.66),
        predict_system("llama-3.1-8b", gpu="l40s-48gb", batch=16, accuracy=0.66),
        predict_system("qwen3-32b", gpu="h100-sxm-80gb", tp=2, batch=32, accuracy=0.80),
        predict_system("llama-3.1-70b", gpu="h100-sxm-80gb", tp=4, batch=32, accuracy=0.79),
        predict_system("qwen3-30b-a3b", gpu="h100-sxm-80gb", batch=32, accuracy=0.75),
    ]
    for wishes in WISHES:
        for zeta in (0.0, 0.3, 0.7, 1.0):
            start_s, start_processor_s = time.perf_counter(), time.process_time()
            best = place(trace, systems, zeta=zeta, **wishes)
            spent = {"wall_s": time.perf_counter() - start_s, "processor_s": time.process_time() - start_processor_s}
            figures = {"requests": len(trace), "types": len(best.problem.counts), "zeta": zeta, "gap": best.gap, **spent}
            print(json.dumps(figures | {"load": os.getloadavg()[0], "wishes": wishes}), flush=True)


if __name__ == "__main__":
    main()
