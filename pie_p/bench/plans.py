"""What a benchmark runs: whom it asks, how much at once, and on what that stands."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, ValidationInfo, field_validator, model_validator

from pie_p.bench.prompts import Prompts
from pie_p.checks import Count, Flag, Noun, Positive, Text
from pie_p.errors import InputError
from pie_p.quantities import as_float, as_int, shown
from pie_p.storage import sha256
from pie_p.units import Dtype

Api = Literal["completions", "chat"]
PATIENCE: Final = ("api_key_env", "connect_s", "first_byte_s", "stall_s", "total_s", "retries", "backoff_s", "most_backoff_s")
OWN_FIELDS: Final = ("model", "prompt", "messages", "stream", "max_tokens")  # of a request, set by the plan itself


def _whole(value: object, info: ValidationInfo) -> int:
    return as_int(info.field_name or "value", value, least=0, most=2**31 - 1)


def _warmth(value: object, info: ValidationInfo) -> float:
    return as_float(info.field_name or "value", value, most=2.0)


def _seconds(value: object, info: ValidationInfo) -> float:
    return as_float(info.field_name or "value", value)


Whole = Annotated[int, BeforeValidator(_whole)]  # 0..2^31 - 1
Warmth = Annotated[float, BeforeValidator(_warmth)]  # 0..2
Seconds = Annotated[float, BeforeValidator(_seconds)]  # finite, 0 or more [s]


class Load(Noun):
    """How much is asked at once, and how often.

    Exactly one of `batch` (so many start together, the next so many when all have ended: static) and `concurrency` (so many are kept in
    flight: steady).

    >>> Load(concurrency=8).mode, Load(batch=64).mode, Load(concurrency=8).together
    ('steady', 'static', 8)
    """

    batch: Count | None = None
    concurrency: Count | None = None
    max_tokens: Count = 256  # most that one response has [-]
    warmup: Whole = 1  # requests before the clock starts; they count nowhere [-]
    repetitions: Count = 1  # of all prompts [-]
    seed: Whole = 0  # of the order of prompts, and sent to the server
    temperature: Warmth = 0.0
    shuffled: Flag = False  # another order in each repetition

    @model_validator(mode="after")
    def _one_of_both(self) -> Load:
        if (self.batch is None) == (self.concurrency is None):
            came = "both batch and concurrency" if self.batch is not None else "neither batch nor concurrency"
            raise InputError(f"{came} given; give one: batch (so many start together) or concurrency (so many are kept in flight)")
        return self

    @property
    def together(self) -> int:
        """Requests in flight at most [-]."""
        return self.batch or self.concurrency or 1

    @property
    def mode(self) -> Literal["static", "steady"]:
        """What the requests in flight do, in a prediction's words."""
        return "static" if self.batch else "steady"


class ServerTarget(Noun):
    """An OpenAI-compatible server.

    >>> ServerTarget(url="http://localhost:8000/v1/").base
    'http://localhost:8000/v1'
    """

    url: Text  # with or without /v1 at its end
    api: Api = "completions"
    served: str = ""  # name the server has for its LLM; empty: the only one it lists
    api_key_env: str = "OPENAI_API_KEY"  # environment variable that holds the key; the key itself is stored nowhere
    connect_s: Positive = 10.0  # to connect within [s]
    first_byte_s: Positive = 300.0  # to begin within [s]
    stall_s: Positive = 60.0  # longest pause in a stream [s]
    total_s: Positive = 1800.0  # a whole response within [s]
    retries: Whole = 3  # attempts after the first [-]
    backoff_s: Seconds = 0.5  # before the first retry; doubles each time, up to `most_backoff_s` [s]
    most_backoff_s: Seconds = 30.0  # also the most that a Retry-After is followed [s]
    extra: str = "{}"  # JSON object of further fields of each request

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise InputError(
                f"url = {shown(url, most=80)} is no address of a server; give one like http://localhost:8000, and the key by --api-key-env"
            )
        return url

    @field_validator("extra")
    @classmethod
    def _object(cls, extra: str) -> str:
        try:
            fields = json.loads(extra)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise InputError(f"extra = {shown(extra)} is no JSON object; give one like '{{\"ignore_eos\": true}}'")
        taken = [name for name in OWN_FIELDS if name in fields]
        if taken:
            raise InputError(f"extra must not set {', '.join(taken)}; the plan does")
        return json.dumps(fields, sort_keys=True)

    @property
    def base(self) -> str:
        """The address up to and with /v1."""
        url = self.url.rstrip("/")
        return url if url.endswith("/v1") else f"{url}/v1"

    @property
    def fields(self) -> dict[str, Any]:
        """Further fields of each request."""
        return dict(json.loads(self.extra))

    def __str__(self) -> str:
        return f"{self.base} ({self.api}{', ' + self.served if self.served else ''})"


class InProcessTarget(Noun):
    """A Hugging Face checkpoint that runs in this process, batches at a time."""

    checkpoint: Text  # folder or hub id
    device: Text = "auto"  # "cpu", "cuda", "cuda:1"; "auto": the first GPU, else the CPU
    dtype: Text = "auto"  # as the checkpoint says

    def __str__(self) -> str:
        return f"{self.checkpoint} in this process on {self.device}"


class Deployed(Noun):
    """On what the target stands: what a prediction needs to know. Degrees are recorded in every run.

    >>> Deployed(llm="llama-3.1-8b", gpu="h100-sxm-80gb", tp=2).gpus
    2
    """

    llm: Text | None = None  # catalogue name or path of a config.json
    gpu: Text | None = None  # catalogue name
    cluster: Text | None = None  # TOML file, instead of gpu
    tp: Count = 1
    pp: Count = 1
    dp: Count = 1
    ep: Count = 1
    dtype: Dtype | None = None
    kv_dtype: Dtype | None = None
    engine: Text = "vllm"
    power_limit_w: Positive | None = None  # cap per board where no meter reads it [W]

    @property
    def gpus(self) -> int:
        """Boards of the deployment [-]."""
        return self.tp * self.pp * self.dp

    @property
    def known(self) -> bool:
        """Whether there is enough for a prediction."""
        return self.llm is not None and (self.gpu is not None or self.cluster is not None)


class BenchPlan(Noun):
    """A whole benchmark. Equal plans with equal prompts make runs that can be compared, and continued."""

    target: ServerTarget | InProcessTarget
    load: Load
    deployed: Deployed = Deployed()
    tokenizer: str = ""  # folder or hub id; counts tokens where the server does not say

    @model_validator(mode="after")
    def _batches_in_process(self) -> BenchPlan:
        if isinstance(self.target, InProcessTarget) and self.load.batch is None:
            raise InputError("a checkpoint in this process runs batches: give batch, not concurrency")
        return self


def work_hash(plan: BenchPlan, prompts: Prompts) -> str:
    """Hash of what was asked: prompts, lengths, load. Runs that share it differ only in who answered."""
    api = plan.target.api if isinstance(plan.target, ServerTarget) else "completions"
    extra = plan.target.extra if isinstance(plan.target, ServerTarget) else "{}"
    return sha256(json.dumps([prompts.sha256, plan.load.model_dump(), api, extra], sort_keys=True).encode())


def plan_hash(plan: BenchPlan, prompts: Prompts) -> str:
    """Hash of everything that was set, but for patience: a folder holds runs of one only."""
    settings = plan.model_dump()
    settings["target"] = {name: value for name, value in settings["target"].items() if name not in PATIENCE}
    return sha256(json.dumps([prompts.sha256, settings], sort_keys=True).encode())
