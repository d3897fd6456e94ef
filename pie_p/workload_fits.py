"""Workload fits: joules or seconds of a request from its prompt and output tokens alone, for one LLM on one system.

    e(tin, tout) = c0 + c1 tin + c2 tout + c3 tin tout [+ c4 tin^2 + c5 tout^2]

`relative` makes least the sum of squared relative errors with no coefficient below zero, so that no request is answered with negative
joules. `ordinary` is ordinary least squares, which with the form `wilkins` (no intercept) is the fit of Wilkins et al. (arXiv 2407.04014).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np

from pie_p.errors import InputError
from pie_p.extras import require
from pie_p.physics import Floats
from pie_p.quantities import shown

Form = Literal["wilkins", "bilinear", "quadratic"]
Method = Literal["relative", "ordinary"]
FORMS: Final[tuple[Form, ...]] = get_args(Form)
METHODS: Final[tuple[Method, ...]] = get_args(Method)
MOST_TOKENS: Final = 1e9

TERMS: Final[Mapping[str, tuple[int, int]]] = {  # powers of prompt and output tokens
    "1": (0, 0),  # what a request costs before any token
    "prompt": (1, 0),  # weights times prompt tokens
    "output": (0, 1),  # a step per token
    "prompt*output": (1, 1),  # every step reads the prompt's KV cache
    "prompt^2": (2, 0),  # attention within the prompt
    "output^2": (0, 2),  # every step reads what was written before
}
FORM_TERMS: Final[Mapping[Form, tuple[str, ...]]] = {
    "wilkins": ("prompt", "output", "prompt*output"),
    "bilinear": ("1", "prompt", "output", "prompt*output"),
    "quadratic": tuple(TERMS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FitScore:
    """How well a fit meets rows."""

    rows: int
    r2: float  # centred: 1 - squared errors over squared distances from the mean; below 0 is worse than the mean [-]
    mape: float  # mean absolute relative error [-]
    negative: int  # rows answered with less than zero

    def to_dict(self) -> dict[str, float]:
        """Plain data."""
        return {"rows": self.rows, "r2": self.r2, "mape": self.mape, "negative": self.negative}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFit:
    """A fitted polynomial of prompt and output tokens.

    Args:
        form: which terms it has.
        method: how it was fitted.
        coefficients: one per term of the form, in joules or seconds per unit of the term.
        least_tokens: fewest prompt and output tokens it was fitted on [-].
        most_tokens: most of them [-].
        score: on the rows it was fitted on: a training error.

    >>> fit = WorkloadFit(form="bilinear", method="relative", coefficients=(1.0, 0.01, 0.1, 0.0001))
    >>> float(fit(100, 20))  # 1 + 1 + 2 + 0.2
    4.2
    """

    form: Form
    method: Method
    coefficients: tuple[float, ...]
    least_tokens: tuple[float, float] = (0.0, 0.0)
    most_tokens: tuple[float, float] = (MOST_TOKENS, MOST_TOKENS)
    score: FitScore | None = None

    def __post_init__(self) -> None:
        _check_word("form", self.form, FORMS)
        _check_word("method", self.method, METHODS)
        if len(self.coefficients) != len(FORM_TERMS[self.form]) or not np.isfinite(self.coefficients).all():
            raise InputError(
                f"coefficients = {shown(self.coefficients)} do not fit; form {self.form!r} has {len(FORM_TERMS[self.form])} finite ones: "
                f"{', '.join(FORM_TERMS[self.form])}"
            )

    def __call__(self, prompt_tokens: Any, output_tokens: Any) -> Floats:
        """Joules or seconds of requests; arrays or numbers."""
        columns = _columns(self.form, np.asarray(prompt_tokens, dtype=np.float64), np.asarray(output_tokens, dtype=np.float64))
        return np.asarray(sum(number * column for number, column in zip(self.coefficients, columns, strict=True)))

    def outside(self, prompt_tokens: Any, output_tokens: Any) -> int:
        """How many of these requests lie outside the tokens it was fitted on."""
        tokens = np.stack([np.asarray(prompt_tokens, dtype=np.float64), np.asarray(output_tokens, dtype=np.float64)])
        least, most = (np.array(each).reshape(2, *[1] * (tokens.ndim - 1)) for each in (self.least_tokens, self.most_tokens))
        return int(((tokens < least) | (tokens > most)).any(axis=0).sum())

    def scored(self, prompt_tokens: Any, output_tokens: Any, measured: Any) -> FitScore:
        """The error on rows that may not have taught it."""
        prompt, output, truth = _rows(prompt_tokens, output_tokens, measured)
        return _score(self(prompt, output), truth)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, by term."""
        return {
            "form": self.form,
            "method": self.method,
            "coefficients": dict(zip(FORM_TERMS[self.form], self.coefficients, strict=True)),
            "least_tokens": list(self.least_tokens),
            "most_tokens": list(self.most_tokens),
            "score": None if self.score is None else self.score.to_dict(),
        }


def fit_workload(
    prompt_tokens: Any, output_tokens: Any, measured: Any, *, form: Form = "quadratic", method: Method = "relative"
) -> WorkloadFit:
    """Fit joules or seconds of requests to their tokens.

    Args:
        prompt_tokens: one per row [-].
        output_tokens: one per row [-].
        measured: joules or seconds of a request, above zero, measured or predicted.
        form: "wilkins" (no intercept), "bilinear" or "quadratic" (the terms that prefill and KV cache have).
        method: "relative" (relative errors, no coefficient below zero) or "ordinary" least squares.

    Raises:
        InputError: rows that cannot be, or fewer of them than terms.
        MissingExtraError: "relative" without scipy (extra `place`).

    >>> fit = fit_workload([10, 10, 1000, 1000], [10, 100, 10, 100], [2.11, 11.2, 13.0, 31.0], form="bilinear")
    >>> [round(number, 6) for number in fit.coefficients]  # 1 + tin / 100 + tout / 10 + tin tout / 10000
    [1.0, 0.01, 0.1, 0.0001]
    """
    _check_word("form", form, FORMS)
    _check_word("method", method, METHODS)
    prompt, output, truth = _rows(prompt_tokens, output_tokens, measured)
    terms = FORM_TERMS[form]
    if len(truth) < len(terms):
        raise InputError(f"{len(truth)} rows cannot fit the {len(terms)} terms of form {form!r}; give more rows, or a smaller form")
    columns = np.stack(_columns(form, prompt, output), axis=1)
    coefficients = _relative(columns, truth) if method == "relative" else np.linalg.lstsq(columns, truth, rcond=None)[0]
    return WorkloadFit(
        form=form,
        method=method,
        coefficients=tuple(coefficients.tolist()),
        least_tokens=(float(prompt.min()), float(output.min())),
        most_tokens=(float(prompt.max()), float(output.max())),
        score=_score(columns @ coefficients, truth),
    )


def compare_fits(prompt_tokens: Any, output_tokens: Any, measured: Any) -> dict[tuple[Form, Method], WorkloadFit]:
    """Every form by both methods on the same rows, those that have rows enough: ours beside Wilkins' ("wilkins", "ordinary").

    Raises:
        InputError: rows that cannot be, or too few for any form.
    """
    rows = len(_rows(prompt_tokens, output_tokens, measured)[2])
    forms = [form for form in FORMS if len(FORM_TERMS[form]) <= rows]
    if not forms:
        raise InputError(f"{rows} rows are too few for any form; give at least {len(FORM_TERMS['wilkins'])}")
    return {
        (form, method): fit_workload(prompt_tokens, output_tokens, measured, form=form, method=method)
        for form in forms
        for method in METHODS
    }


def _relative(columns: Floats, truth: Floats) -> Floats:
    """Non-negative coefficients that make the squared relative errors least; columns are scaled so that none drowns another."""
    optimize = require("scipy.optimize", extra="place")
    relative = columns / truth[:, None]
    scale = np.linalg.norm(relative, axis=0)
    scale[scale == 0.0] = 1.0
    return np.asarray(optimize.nnls(relative / scale, np.ones(len(truth)))[0] / scale)


def _columns(form: Form, prompt: Floats, output: Floats) -> list[Floats]:
    return [prompt ** TERMS[term][0] * output ** TERMS[term][1] for term in FORM_TERMS[form]]


def _score(answers: Floats, truth: Floats) -> FitScore:
    errors, spread = answers - truth, truth - truth.mean()
    apart = float(spread @ spread)
    return FitScore(
        rows=len(truth),
        r2=1.0 - float(errors @ errors) / apart if apart else float(not errors.any()),
        mape=float(np.abs(errors / truth).mean()),
        negative=int((answers < 0).sum()),
    )


def _rows(prompt_tokens: Any, output_tokens: Any, measured: Any) -> tuple[Floats, Floats, Floats]:
    named = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens, "measured": measured}
    prompt, output, truth = (_numbers(name, values) for name, values in named.items())
    if not len(prompt) == len(output) == len(truth):
        raise InputError(f"{len(prompt)} prompt_tokens, {len(output)} output_tokens and {len(truth)} measured; give one of each per row")
    zero = np.flatnonzero(truth == 0)
    if not len(truth) or len(zero):
        came = f"measured[{zero[0]}] = 0" if len(zero) else "no rows"
        raise InputError(f"{came}: a relative error needs joules or seconds above zero; leave out what was not measured")
    return prompt, output, truth


def _numbers(name: str, values: Any) -> Floats:
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} = {shown(values)} is not a list of numbers; give one per row") from None
    if numbers.ndim != 1:
        raise InputError(f"{name} has {numbers.ndim} dimensions; give one number per row")
    wrong = np.flatnonzero(~np.isfinite(numbers) | (numbers < 0) | (numbers > 1e18))
    if len(wrong):
        raise InputError(f"{name}[{wrong[0]}] = {numbers[wrong[0]]:g} is not allowed; give finite numbers of at least 0")
    return numbers


def _check_word(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise InputError(f"{name} = {shown(value)} is not known; allowed: {', '.join(allowed)}")
