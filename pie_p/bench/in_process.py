"""A Hugging Face checkpoint that runs in this process: the target of the words-to-watts benchmark as it was published.

Batches are padded on the left and generated together; a response ends at its first end-of-sequence token, so what a finished row is fed
until the others end is not counted as output.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from types import TracebackType
from typing import Any

from pie_p.bench.in_flight import InFlight
from pie_p.bench.outcomes import Answer, Outcome
from pie_p.bench.plans import InProcessTarget, Load
from pie_p.bench.server import Item, Report
from pie_p.errors import InputError, MissingExtraError
from pie_p.extras import require


def transformers_module() -> Any:
    """The package `transformers`, or one line that says how to get it."""
    if find_spec("transformers") is None:
        raise MissingExtraError("'transformers' is not installed. A checkpoint in this process needs it: pip install transformers torch")
    return require("transformers", extra="bench")


class InProcess:
    """A checkpoint that answers batches. Use it as an asynchronous context manager.

    Raises:
        InputError: no such checkpoint, or it does not load.
    """

    def __init__(self, target: InProcessTarget, load: Load, texts: Sequence[str]) -> None:
        self.target, self.load, self.texts = target, load, texts
        self.in_flight = InFlight()
        self.notes: dict[str, None] = {}
        self.served = target.checkpoint
        self._torch = require("torch", extra="profile")
        self._stop = threading.Event()
        transformers = transformers_module()
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(target.checkpoint, padding_side="left")
            self._network = transformers.AutoModelForCausalLM.from_pretrained(target.checkpoint, dtype=target.dtype)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot load the checkpoint {target.checkpoint}: {' '.join(str(error).split())[:200]}") from None
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._device = target.device if target.device != "auto" else "cuda" if self._torch.cuda.is_available() else "cpu"
        self._network = self._network.to(self._device).eval()
        self._criteria = transformers.StoppingCriteriaList

    async def __aenter__(self) -> InProcess:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()

    async def together(self, items: Sequence[Item], report: Report) -> None:
        """Generate for several at once; all are reported when the last has ended, none when it was stopped before."""
        try:
            outcomes = await asyncio.to_thread(self._batch, items)
        except asyncio.CancelledError:
            self._stop.set()  # the thread ends at its next step
            raise
        for outcome in outcomes:
            report(outcome)

    async def answer(self, item: Item) -> Outcome:
        """One prompt by itself."""
        return (await asyncio.to_thread(self._batch, [item]))[0]

    def _batch(self, items: Sequence[Item]) -> list[Outcome]:
        steps, start_s = _Steps(self._stop, self._torch), time.monotonic()
        try:
            with self.in_flight.one(len(items)), self._torch.inference_mode():
                rows, prompt_tokens, start_s = self._generated(items, steps)
        except RuntimeError as error:  # torch's for an exhausted or failed device
            failed = partial(Outcome, answer=None, faults=("server error",), detail=" ".join(str(error).split())[:200])
            return [failed(repetition=item[0], prompt=item[1], start_s=start_s, end_s=time.monotonic()) for item in items]
        return [self._outcome(item, row, asked, steps, start_s) for item, row, asked in zip(items, rows, prompt_tokens, strict=True)]

    def _generated(self, items: Sequence[Item], steps: _Steps) -> tuple[list[list[int]], list[int], float]:
        """Tokens written and asked by each row, and the moment generation began [s]."""
        load, sampled = self.load, self.load.temperature > 0
        inputs = self._tokenizer([self.texts[prompt] for _, prompt in items], return_tensors="pt", padding=True).to(self._device)
        self._torch.manual_seed(load.seed + items[0][0])
        start_s = time.monotonic()
        written = self._network.generate(
            **inputs,
            max_new_tokens=load.max_tokens,
            do_sample=sampled,
            pad_token_id=self._tokenizer.pad_token_id,
            stopping_criteria=self._criteria([steps]),
            **({"temperature": load.temperature} if sampled else {}),
        )
        return written[:, inputs["input_ids"].shape[1] :].tolist(), inputs["attention_mask"].sum(dim=1).tolist(), start_s

    def _outcome(self, item: Item, row: list[int], prompt_tokens: int, steps: _Steps, start_s: float) -> Outcome:
        """What one row of a batch has written, up to and with its first end-of-sequence token."""
        ends = self._network.generation_config.eos_token_id
        ends = set(ends) if isinstance(ends, list) else {ends}
        length = next((place + 1 for place, token in enumerate(row) if token in ends), len(row))
        at_s = steps.moments_s
        answer = Answer(
            words=len(self._tokenizer.decode(row[:length], skip_special_tokens=True).split()),
            output_tokens=length,
            token_source="tokenizer",
            prompt_tokens=prompt_tokens,
            chunks=length,
            finish_reason="stop" if row[length - 1] in ends else "length",
            ttft_s=at_s[0] - start_s,
            latency_s=at_s[length - 1] - start_s,
        )
        repetition, prompt = item
        return Outcome(repetition=repetition, prompt=prompt, answer=answer, start_s=start_s, end_s=at_s[-1])


class _Steps:
    """When each step of a batch was done; also where a stopped run ends it."""

    def __init__(self, stop: threading.Event, torch: Any) -> None:
        self._stop, self._torch = stop, torch
        self.moments_s: list[float] = []

    def __call__(self, input_ids: Any, _scores: Any, **_: Any) -> Any:
        if input_ids.device.type == "cuda":
            self._torch.cuda.synchronize(input_ids.device)
        self.moments_s.append(time.monotonic())
        return self._torch.full((input_ids.shape[0],), self._stop.is_set(), dtype=self._torch.bool, device=input_ids.device)
