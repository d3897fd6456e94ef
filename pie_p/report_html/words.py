"""Plain words for what a page shows."""

from __future__ import annotations

from typing import Final

GLOSSARY: Final = {
    "joule (J)": "The unit of energy. One watt for one second. 3,600 J are one watt-hour; a phone battery holds about 50,000 J.",
    "request": "One question to the language model with its whole answer.",
    "token": "A piece of text, on average about three quarters of an English word. Prompt tokens go in, output tokens come out.",
    "prefill": "Reading the prompt. All its tokens are worked on at once, so it is limited by arithmetic.",
    "decode": "Writing the answer, one token after the other. Every token reads all weights, so it is limited by memory.",
    "batch": "How many requests run together on one replica. They share the reading of the weights, so each costs less.",
    "compute": "Energy while a computing kernel runs on the GPU.",
    "communication": "Energy while data move between GPUs and nothing is computed.",
    "wait": "Energy of GPUs that neither compute nor communicate: for a slower GPU, for the host, for their turn in the pipeline.",
    "TP, PP, DP, EP": "How GPUs share the work: within every layer (tensor), layer after layer (pipeline), whole copies (data), by expert.",
    "time to first token": "From the start of reading to the first word of the answer, without queueing.",
    "time per token": "How long each further token of the answer takes.",
    "latency": "From the start of reading the prompt to the last token of the answer.",
    "steady, static": "Steady: a server kept at its batch, whoever finishes is replaced. Static: all requests of a batch start together.",
    "scope": "Which watts are counted: the GPU boards, also their share of the host, or also the site's cooling and losses (PUE).",
    "90 % interval": "On deployments of LLMs the method never saw, the measured energy lay between these bounds in nine of ten cases.",
    "Pareto front": "The plans that no other plan beats: whatever is faster costs more energy, and whatever costs less is slower.",
    "feasible": "The plan divides the LLM evenly, and its weights and the batch's cache fit into the memory of the GPUs.",
    "KV cache": "What the LLM remembers of each running request; it grows with the batch and the length of the texts.",
}

PREDICTION_WORDS: Final = (
    "joule (J)", "request", "token", "prefill", "decode", "batch", "compute", "communication", "wait", "TP, PP, DP, EP",
    "time to first token", "time per token", "latency", "steady, static", "scope", "90 % interval",
)  # fmt: skip
SWEEP_WORDS: Final = (
    "joule (J)", "request", "token", "batch", "TP, PP, DP, EP", "time to first token", "time per token", "latency", "Pareto front",
    "feasible", "KV cache", "scope", "90 % interval",
)  # fmt: skip

SCOPE_SENTENCES: Final = {
    "gpu": "Counted are the GPU boards. Not counted: processor, memory, fans and power supply of the host, and the building's cooling.",
    "host": "Counted are the GPU boards and their share of the host (processor, fans, power supply). Not counted: the building's cooling.",
    "facility": "Counted is everything: the GPU boards, their share of the host, and the site's cooling and losses.",
}

# Parts of a path in the operator tree.
PLACES: Final = {
    "prefill": "reading the prompt",
    "decode": "writing the answer",
    "layer": "the transformer layers",
    "attention": "attention: each token looks at the ones before it",
    "mlp": "feed-forward part of a layer",
    "moe": "the experts of a layer",
    "experts": "the chosen experts at work",
    "router": "choice of the experts",
    "shared_expert": "the expert that always runs",
    "norm": "normalisation",
    "qkv_proj": "matrix that makes queries, keys and values",
    "out_proj": "matrix after attention",
    "gate_up_proj": "first matrices of the feed-forward part",
    "up_proj": "first matrix of the feed-forward part",
    "down_proj": "last matrix of the feed-forward part",
    "activation": "non-linearity between the matrices",
    "embedding": "tokens to vectors",
    "head": "vectors to the next token",
    "lm_head": "matrix that scores every token of the vocabulary",
    "pipeline": "hand-over between pipeline stages",
    "all_reduce": "sum over GPUs, so that all hold the same",
    "all_gather": "collecting pieces from all GPUs",
    "reduce_scatter": "sum over GPUs, each keeps a piece",
    "all_to_all": "tokens sent to the GPUs of their experts",
    "dispatch": "tokens sent to the GPUs of their experts",
    "combine": "answers of the experts brought back",
    "send_recv": "hand-over to the next pipeline stage",
    "wait": "powered, but neither computing nor communicating",
    "launch": "gaps between kernels, until the next is launched",
    "skew": "for the slowest GPU of a group",
    "expert_imbalance": "for the GPU whose experts have most to do",
    "bubble": "for their turn in the pipeline",
    "host": "for the host, between steps",
    "itself": "this part without what stands below it",
}
COMMUNICATION: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "dispatch", "combine")

WHY_HEADS: Final = {
    "plan": "The degrees do not divide the LLM, or need more GPUs than there are",
    "memory": "The weights do not fit into the memory",
    "kv_cache": "The cache of that many requests does not fit beside the weights",
    "power_limit": "The board cannot hold this power limit",
}

# What was asked and what answered, as a page names it.
FACTS: Final = {
    "llm": "language model",
    "gpu": "GPU board",
    "gpus": "GPUs",
    "tp": "tensor parallel (TP)",
    "pp": "pipeline stages (PP)",
    "dp": "data parallel (DP)",
    "ep": "expert parallel (EP)",
    "batch": "batch per replica",
    "prompt_tokens": "prompt tokens",
    "cached_prompt_tokens": "prompt tokens in the cache",
    "output_tokens": "output tokens",
    "dtype": "format of the weights",
    "kv_dtype": "format of the KV cache",
    "mode": "mode",
    "engine": "serving engine",
    "cluster": "hosts",
    "power_limit_w": "power limit per GPU [W]",
    "scope": "scope",
    "pue": "PUE of the site",
}
