"""Least squares for a few unknowns, robust against odd rows, with nothing but numpy: calibration runs where no solver is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from pie_p.physics import Floats

ROBUST_SCALE: Final = 0.2  # errors beyond this count linearly, not squared
MOST_PASSES: Final = 60
SMALL_STEP: Final = 1e-4  # of the numerical derivative
TOLERANCE: Final = 1e-8  # relative fall of the cost that ends the search


def least_squares(errors: Callable[[Floats], Floats], unknowns: int) -> Floats:
    """Unknowns, started at zero, that make the soft absolute sum of errors least (Levenberg-Marquardt with reweighting).

    The cost is `sum 2 s^2 (sqrt(1 + (e / s)^2) - 1)` with `s = ROBUST_SCALE`: squared for small errors, linear for large ones.

    >>> least_squares(lambda x: np.array([x[0] - 1.0, 2.0 * (x[1] + 3.0)]), 2).round(6).tolist()
    [1.0, -3.0]
    """
    place, damping = np.zeros(unknowns), 1e-3
    if not unknowns:
        return place
    error = errors(place)
    for _ in range(MOST_PASSES):
        slopes = np.stack([(errors(place + SMALL_STEP * axis) - error) / SMALL_STEP for axis in np.eye(unknowns)], axis=1)
        weights = 1.0 / np.sqrt(1.0 + (error / ROBUST_SCALE) ** 2)
        normal, gradient = slopes.T @ (weights[:, None] * slopes), slopes.T @ (weights * error)
        fallen = 0.0
        while not fallen and damping < 1e9:
            step = -np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-12), gradient)
            further = errors(place + step)
            fallen = max(0.0, _cost(error) - _cost(further)) if np.isfinite(further).all() else 0.0
            damping = damping / 10.0 if fallen else damping * 10.0
        if not fallen:
            break
        small = fallen < TOLERANCE * _cost(error)
        place, error, damping = place + step, further, max(damping, 1e-9)
        if small:
            break
    return place


def _cost(error: Floats) -> float:
    return float(np.sum(2.0 * ROBUST_SCALE**2 * (np.sqrt(1.0 + (error / ROBUST_SCALE) ** 2) - 1.0)))
