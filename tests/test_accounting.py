"""Accounting: which watts count, and nothing that was asked for is dropped in silence."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from pie_p import Accounting, Prediction, predict_energy
from pie_p.errors import InputError


def predicted(**more: Any) -> Prediction:
    return predict_energy("llama-3.1-8b", **{"gpu": "h100-sxm-80gb", "prompt_tokens": 200, "output_tokens": 100, **more})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"exclusive_host": True}, r"^exclusive_host=True counts the host, and scope 'gpu' counts boards only; use scope='host' or"),
        ({"exclusive_host": 1}, r"^exclusive_host = 1 is not a truth value; allowed: True, False$"),
        ({"scope": "rack"}, r"^scope = 'rack' is not known; allowed: 'gpu', 'host', 'facility'$"),
        ({"scope": "facility"}, r"^scope='facility' needs pue"),
        ({"pue": 1.2}, r"^pue = 1\.2 counts only in scope='facility'"),
        ({"scope": "facility", "pue": 0.99}, r"^pue = 0\.99 is not allowed; give a finite number of at least 1 and at most 10$"),
    ],
    ids=str,
)
def test_what_the_scope_cannot_count_is_refused_in_one_line(given: dict[str, Any], text: str) -> None:
    for ask in (lambda: Accounting(**given), lambda: predicted(**given)):
        with pytest.raises(InputError, match=text) as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_numbers_and_truth_values_of_other_libraries_are_as_good() -> None:
    one = Accounting(scope="facility", pue=np.float32(1.5), exclusive_host=np.True_)  # type: ignore[arg-type]
    assert one == Accounting(scope="facility", pue=1.5, exclusive_host=True)
    assert hash(one) == hash(pickle.loads(pickle.dumps(one)))
    assert type(one.pue) is float
    assert type(one.exclusive_host) is bool


def test_a_hand_worked_facility() -> None:
    """1 kW of boards for 1 s on a full 8-GPU host of 2 kW idle at 10 % load: (1000 + 2000 + 100) x 1.5."""
    deployment = predicted(tp=8, scope="host").deployment
    parts = Accounting(scope="facility", pue=1.5).breakdown((600.0, 300.0, 100.0), seconds=1.0, deployment=deployment)
    host_j = deployment.cluster.host_idle_w + deployment.cluster.host_load_fraction * 1000.0
    assert parts.host_j == pytest.approx(host_j)
    assert parts.facility_j == pytest.approx(0.5 * (1000.0 + host_j))
    assert parts.total_j == pytest.approx(1.5 * (1000.0 + host_j))
