"""Optional packages, imported at the moment of use: a missing one is a one-line error that names the extra."""

from __future__ import annotations

import importlib
from types import ModuleType

from pie_p.errors import MissingExtraError


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional module, or say which extra brings it.

    >>> require("json", extra="train").loads("[1]")
    [1]
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise  # the package is there, but something it needs is not
        other = ", or 'pie_p[train-cpu]' without NVIDIA's NCCL" if extra == "train" else ""
        raise MissingExtraError(f"'{module}' is not installed. It comes with the extra: pip install 'pie_p[{extra}]'{other}") from None
