"""A real server for tests: a tiny random Llama with a tokenizer built on the spot, served by `transformers serve` on loopback.

Everything is offline. Building needs no torch: numpy writes the weights. The server is a process group of its own, ended with the block.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np

WIDTH, LAYERS, HEADS, KV_HEADS, INTERMEDIATE, VOCAB = 32, 2, 4, 2, 64, 400
TEXTS = ["How many apples are left when three of nine are eaten?", "Write a short letter to the moon.", "Say why ships float."]
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "",
}
LONGEST_START_S = 300.0  # a busy machine imports torch for long


def build_checkpoint(folder: Path) -> Path:
    """Config, weights and tokenizer of a Llama with 36,000 parameters."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    vocab = tokenizer.get_vocab_size()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    settings = {**special, "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    shape = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": vocab,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "torch_dtype": "float32", **ids,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(shape))
    (folder / "generation_config.json").write_text(json.dumps(ids))
    save_file(_weights(vocab), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _weights(vocab: int) -> dict[str, np.ndarray]:
    random, head = np.random.default_rng(0), WIDTH // HEADS

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.normal(0.0, 0.05, (rows, columns)).astype(np.float32)

    ones = np.ones(WIDTH, dtype=np.float32)
    weights = {"model.embed_tokens.weight": matrix(vocab, WIDTH), "lm_head.weight": matrix(vocab, WIDTH), "model.norm.weight": ones}
    for number in range(LAYERS):
        place = f"model.layers.{number}"
        for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            weights[f"{place}.self_attn.{name}_proj.weight"] = matrix(rows * head, WIDTH)
        weights[f"{place}.self_attn.o_proj.weight"] = matrix(WIDTH, HEADS * head)
        for name in ("gate", "up"):
            weights[f"{place}.mlp.{name}_proj.weight"] = matrix(INTERMEDIATE, WIDTH)
        weights[f"{place}.mlp.down_proj.weight"] = matrix(WIDTH, INTERMEDIATE)
        for name in ("input", "post_attention"):
            weights[f"{place}.{name}_layernorm.weight"] = ones
    return weights


@contextlib.contextmanager
def serving(checkpoint: Path, log: Path) -> Iterator[str]:
    """Address of a server of the checkpoint, while the block runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(checkpoint), "--device", "cpu"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, **OFFLINE, "HF_HOME": str(log.parent / "hf")}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
        try:
            _wait_until_ready(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end_s = time.monotonic() + LONGEST_START_S
    while time.monotonic() < end_s:
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.1)
    raise AssertionError(f"no answer within {LONGEST_START_S:g} s: {log.read_text(errors='replace')[-2000:]}")
