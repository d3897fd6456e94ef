"""ParallelPlan: over how many GPUs the layers, the requests and the experts are spread."""

from __future__ import annotations

from dataclasses import dataclass

from pie_p.errors import PlanError
from pie_p.quantities import as_int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """Degrees of tensor, pipeline, data and expert parallelism.

    `ep` never multiplies the number of GPUs: it is 1 or divides `tp * dp`, and says over how many ranks the experts are spread.
    `dp > 1` with `ep = 1` means independent replicas; with `ep > 1` attention-DP (attention on every dp rank, experts over all).

    Args:
        tp: ranks that share every matrix [-].
        pp: pipeline stages [-].
        dp: data-parallel ranks [-].
        ep: ranks the routed experts are spread over [-].
        micro_batches: pieces a batch is cut into for the pipeline; default `pp`.

    Raises:
        InputError: a degree that is not a whole number of at least 1.
        PlanError: `ep` that does not divide `tp * dp`.

    >>> ParallelPlan(tp=4, dp=2, ep=8).gpus
    8
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    micro_batches: int | None = None

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "ep"):
            object.__setattr__(self, name, as_int(name, getattr(self, name), most=65536))
        if self.micro_batches is not None:
            object.__setattr__(self, "micro_batches", as_int("micro_batches", self.micro_batches, most=65536))
        if (self.tp * self.dp) % self.ep:
            raise PlanError(f"ep = {self.ep} does not divide tp * dp = {self.tp * self.dp}; allowed: 1 or a divisor of {self.tp * self.dp}")

    @property
    def gpus(self) -> int:
        """GPUs of the deployment: `tp * pp * dp` [-]."""
        return self.tp * self.pp * self.dp

    @property
    def attention_dp(self) -> bool:
        """Attention replicated over dp ranks that share one set of experts."""
        return self.dp > 1 and self.ep > 1

    @property
    def pipeline_pieces(self) -> int:
        """Micro-batches in flight [-]."""
        return self.micro_batches or self.pp

    def __str__(self) -> str:
        degrees = {"TP": self.tp, "PP": self.pp, "DP": self.dp, "EP": self.ep}
        return " ".join(f"{name}{degree}" for name, degree in degrees.items() if degree > 1) or "one GPU"
