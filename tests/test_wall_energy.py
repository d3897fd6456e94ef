"""Wall watts of a whole host: MLPerf Inference v4.1 Power, NVIDIA's 8 x H200 server (github mlcommons/inference_results_v4.1 @198fc467).

The meter hung at the plug; boards were capped. Watts are means of the analyser's readings in the marked window.
"""

from __future__ import annotations

import pytest

from pie_p import Accounting, Predictor, load_cluster, make_case

# LLM, requests per replica, prompt, output, cap [W], wall [W]. GPT-J decodes with beams of width 4: four sequences per request.
RUNS = [
    ("llama-2-70b", 806, 295, 291, 500, 6153),
    ("llama-2-70b", 394, 295, 291, 500, 6280),
    ("mixtral-8x7b", 3072, 320, 146, 500, 6155),
    ("mixtral-8x7b", 735, 320, 146, 500, 6175),
    ("gpt-j-6b", 259, 850, 69, 350, 4723),
]


@pytest.mark.parametrize(("llm", "batch", "prompt", "output", "cap_w", "wall_w"), RUNS)
def test_wall_watts_under_a_cap_are_those_of_the_meter(
    llm: str, batch: float, prompt: float, output: float, cap_w: float, wall_w: float
) -> None:
    case = make_case(
        llm,
        gpu="h200-sxm-141gb",
        dp=8,
        batch=batch,
        prompt_tokens=prompt,
        output_tokens=output,
        dtype="fp8",
        kv_dtype="fp8",
        engine="trtllm",
        power_limit_w=cap_w,
    )
    [answer] = Predictor().predict([case], accounting=Accounting(scope="host", exclusive_host=True))
    boards_w = answer.avg_power_w
    host_w = boards_w * answer.breakdown.host_j / answer.breakdown.gpu_j  # type: ignore[operator]
    assert boards_w + host_w == pytest.approx(wall_w, rel=0.05)


def test_an_idle_host_draws_what_the_meter_read_before_the_run() -> None:
    """2372 to 2529 W at the wall with eight boards without a context."""
    cluster = load_cluster("h200-sxm-141gb", gpus=8)
    wall_w = cluster.host_idle_w + 8 * cluster.gpu.idle_w * (1 + cluster.host_load_fraction)
    assert 2300 < wall_w < 2550
