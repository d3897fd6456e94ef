"""What the public measurements do not say, and what is taken instead: every such number stands here, once, with its reason."""

from __future__ import annotations

from typing import Final, NamedTuple


class PromptLength(NamedTuple):
    """Mean prompt tokens of a workload [-], and why."""

    tokens: float
    reason: str


# Mean prompt tokens per workload. v3: fitted on the measured time per token, which prefill shares; only code completion is well
# identified, so the other two are rough. v2: mean length of its published prompt files.
PROMPT_TOKENS: Final[dict[str, PromptLength]] = {
    "lm-arena-chat": PromptLength(150.0, "fitted to time per token; poorly identified"),
    "gpqa": PromptLength(320.0, "fitted to time per token; poorly identified"),
    "sourcegraph-fim": PromptLength(2000.0, "fitted to time per token; well identified"),
    "v2 chat": PromptLength(90.0, "mean of the published prompt file"),
    "v2 code": PromptLength(180.0, "mean of the published prompt file"),
    # MLPerf Inference v4.1 publishes no prompt lengths with its results; these are the data sets' known makes.
    "mlperf llama2-70b": PromptLength(295.0, "Open-Orca subset of 24,576 samples; its published mean prompt, not in the results"),
    "mlperf mixtral-8x7b": PromptLength(320.0, "Open-Orca, GSM8K and MBXP in equal parts; a guess from their makes"),
    "mlperf gptj": PromptLength(850.0, "CNN/DailyMail articles with the summarising instruction; a guess from their make"),
}

# Board power limits that were in force, where the source does not say otherwise: the boards' defaults.
DEFAULT_LIMIT_W: Final[dict[str, float]] = {"h100-sxm-80gb": 700.0, "b200-sxm-180gb": 1000.0, "a100-sxm-40gb": 400.0}
