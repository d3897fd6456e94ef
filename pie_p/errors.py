"""Errors: each tells what came, what is allowed and what to do, in one line.

Everything raised on purpose is a `PiePError`; the command line prints its text without a traceback and exits with 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PiePError(Exception):
    """Anything a user can mend: the text says how."""


class InputError(PiePError, ValueError):
    """A value that cannot be: negative, not finite, of the wrong type, contradictory."""


class UnknownNameError(PiePError, KeyError):
    """A name that is in no catalogue; the text suggests near ones."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnknownGpuError(UnknownNameError):
    """No GPU, host or link of that name in the catalogue."""


class UnknownLLMError(UnknownNameError):
    """No LLM of that name in the catalogue and no config file at that path."""


class UnsupportedLLMError(PiePError):
    """A config whose architecture cannot be counted; never a guess."""


class LLMConfigError(InputError):
    """A config with missing, contradictory or absurd fields."""


class PlanError(InputError):
    """A parallel plan that does not divide the LLM or the cluster."""


class MemoryFitError(PlanError):
    """Weights that do not fit the GPUs of the plan; the text names what would."""


class MissingExtraError(PiePError, ImportError):
    """An optional package is not installed; the text names the extra."""


class ProfileError(PiePError):
    """A profile file or table that cannot be trusted: foreign, torn, of a newer schema."""


class PredictorError(PiePError):
    """A saved predictor that cannot be trusted: wrong hash, missing feature, newer schema."""


class DeviceError(PiePError):
    """A GPU or a meter that did not answer as it must."""


def did_you_mean(name: str, known: Iterable[str], *, most: int = 3) -> str:
    """A sentence with near names, or the empty string.

    >>> did_you_mean("h10-sxm", ["h100-sxm-80gb", "l4-24gb"])
    ' Did you mean: h100-sxm-80gb?'
    """
    names = list(known)
    lowered = name.lower()
    near = difflib.get_close_matches(lowered, names, n=most, cutoff=0.5)
    near += [other for other in names if lowered and lowered in other.lower() and other not in near]
    return f" Did you mean: {', '.join(near[:most])}?" if near else ""
