"""Accounting: which watts an answer counts, from GPU boards to the whole site."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal, cast

from pie_p.deployment import Deployment
from pie_p.energy import EnergyBreakdown
from pie_p.errors import InputError
from pie_p.quantities import as_float, as_truth, shown

Scope = Literal["gpu", "host", "facility"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """Which watts one answer counts.

    Args:
        scope: "gpu" boards, "host" with CPU, memory, fans and PSU loss, "facility" with PUE.
        pue: power usage effectiveness, for scope "facility" [-].
        exclusive_host: count the whole host, idle neighbour boards included; for the scopes that count a host.

    Raises:
        InputError: a scope that is not known, a PUE below 1, or one that the scope does not count.
    """

    scope: Scope = "gpu"
    pue: float | None = None
    exclusive_host: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.scope, str) or self.scope not in ("gpu", "host", "facility"):
            raise InputError(f"scope = {shown(self.scope)} is not known; allowed: 'gpu', 'host', 'facility'")
        object.__setattr__(self, "exclusive_host", as_truth("exclusive_host", self.exclusive_host))
        if self.exclusive_host and self.scope == "gpu":
            raise InputError(
                "exclusive_host=True counts the host, and scope 'gpu' counts boards only; use scope='host' or scope='facility'"
            )
        if self.scope == "facility" and self.pue is None:
            raise InputError("scope='facility' needs pue, the power usage effectiveness of the site (for instance pue=1.2)")
        if self.pue is not None:
            object.__setattr__(self, "pue", as_float("pue", self.pue, least=1.0, most=10.0))
            if self.scope != "facility":
                raise InputError(f"pue = {self.pue:g} counts only in scope='facility'; the scope asked for is {self.scope!r}")

    def breakdown(self, parts: tuple[float, float, float], *, seconds: float, deployment: Deployment) -> EnergyBreakdown:
        """Energy by kind, with host and facility as far as the scope goes.

        Args:
            parts: compute, communication and wait energy of the GPU boards [J].
            seconds: time the request answers for [s].
            deployment: for the host's figures.
        """
        compute_j, communication_j, wait_j = parts
        host_j = facility_j = None
        if self.scope != "gpu":
            host_j = self._host_w(deployment) * seconds + deployment.cluster.host_load_fraction * sum(parts)
        if self.scope == "facility":
            facility_j = (cast(float, self.pue) - 1.0) * (sum(parts) + cast(float, host_j))
        return EnergyBreakdown(compute_j=compute_j, communication_j=communication_j, wait_j=wait_j, host_j=host_j, facility_j=facility_j)

    def _host_w(self, deployment: Deployment) -> float:
        cluster, gpus = deployment.cluster, deployment.plan.gpus
        if not self.exclusive_host:
            return cluster.host_idle_w * gpus / cluster.gpus_per_host
        hosts = ceil(gpus / cluster.gpus_per_host)
        idle_boards = hosts * cluster.gpus_per_host - gpus
        return hosts * cluster.host_idle_w + idle_boards * cluster.gpu.idle_w * (1.0 + cluster.host_load_fraction)
