"""Energy of one request, split so that the parts add up to the total exactly."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyBreakdown:
    """Joules by kind (definitions: docs/glossary.md).

    `host_j` and `facility_j` are None where the scope does not include them; nothing stands at 0.0 for "not counted".

    >>> EnergyBreakdown(compute_j=3.0, communication_j=1.0, wait_j=0.5).total_j
    4.5
    """

    compute_j: float  # a compute kernel runs [J]
    communication_j: float  # bytes move between ranks [J]
    wait_j: float  # powered ranks that do neither [J]
    host_j: float | None = None  # CPU, memory, fans, PSU loss [J]
    facility_j: float | None = None  # (PUE - 1) times all of the above [J]

    @property
    def gpu_j(self) -> float:
        """What the GPU boards took [J]."""
        return self.compute_j + self.communication_j + self.wait_j

    @property
    def total_j(self) -> float:
        """Sum of every part that the scope includes [J]."""
        return self.gpu_j + (self.host_j or 0.0) + (self.facility_j or 0.0)

    def to_dict(self) -> dict[str, float]:
        """Parts by name [J]; a part outside the scope is absent."""
        parts = {
            "compute_j": self.compute_j,
            "communication_j": self.communication_j,
            "wait_j": self.wait_j,
            "host_j": self.host_j,
            "facility_j": self.facility_j,
        }
        return {name: value for name, value in parts.items() if value is not None}
