"""Power readings in fewer bytes: an error-bounded code (SZ3), and the proof that the energy stays within the bound.

Every reading that comes back is within `bound_w` of the one that went in. Energy is a sum of readings times the seconds each of them stands
for, held until the next or joined by straight lines, so its error cannot exceed `bound_w` times those seconds:

    |sum (q_i - p_i) dt_i|  <=  sum |q_i - p_i| dt_i  <=  bound_w * sum dt_i

That the code keeps the bound is not taken on trust: `encode` decodes what it made, and says which readings must be kept as they are. A
reading that is no finite number (missing: NaN) does not enter the code.

SZ3: X. Liang et al., IEEE Transactions on Big Data 9 (2023), doi:10.1109/TBDATA.2022.3201176; X. Zhao et al., ICDE 2021,
doi:10.1109/ICDE51399.2021.00145.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pie_p.extras import require


def check_codec() -> None:
    """Ask for the package before minutes go into measuring.

    Raises:
        MissingExtraError: it is not installed.
    """
    require("pysz", extra="lossy")


def encode(values_w: NDArray[np.float64], bound_w: float) -> tuple[bytes, NDArray[np.bool_]]:
    """A code of the finite readings [W], and which of all readings it gives back within `bound_w` [W].

    The others are to be kept beside it. No finite reading: no code.

    Raises:
        MissingExtraError: the package is not installed.
    """
    pysz = require("pysz", extra="lossy")
    good = np.isfinite(values_w)
    if not good.any():
        return b"", good
    finite_w = np.ascontiguousarray(values_w[good], dtype=np.float64)
    settings = pysz.szConfig()
    settings.errorBoundMode = pysz.szErrorBoundMode.ABS
    settings.absErrorBound = bound_w
    code = pysz.sz.compress(finite_w, settings)[0].tobytes()
    with np.errstate(over="ignore", invalid="ignore"):
        good[good] = np.abs(decode(code, len(finite_w)) - finite_w) <= bound_w
    return code, good


def decode(code: bytes, count: int) -> NDArray[np.float64]:
    """The `count` readings [W] of a code, in their order. The code must be whole: SZ3 does not survive a damaged one.

    Raises:
        MissingExtraError: the package is not installed.
        ValueError: the code holds another number of readings.
    """
    if not code and not count:
        return np.empty(0)
    pysz = require("pysz", extra="lossy")
    values: NDArray[np.float64] = pysz.sz.decompress(np.frombuffer(code, dtype=np.uint8), np.float64, (count,))[0]
    return values
