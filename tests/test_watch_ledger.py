"""Ledger: sums that outlive the exporter, and state files that cannot be gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pie_p.energy import EnergyBreakdown
from pie_p.errors import InputError
from pie_p.watch.estimates import Estimate
from pie_p.watch.ledger import Ledger, Place

PLACE = Place("http://a:8000", "llama", "0")
DEPLOYMENT = {"llm": "llama-3.1-8b", "tp": 1}


def estimate(joules: float = 10.0) -> Estimate:
    busy = EnergyBreakdown(compute_j=joules, communication_j=0.0, wait_j=1.0)
    return Estimate(seconds=5, busy_s=2, busy=busy, idle_j=3, batch=4, time_ratio=1, prompt_tokens=7, output_tokens=5)


def test_a_saved_ledger_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    ledger = Ledger(DEPLOYMENT)
    for number in range(100):
        ledger.of(PLACE).add(estimate(0.1 * number), bridged=number == 3)
    ledger.save(tmp_path / "state.json", wall_s=12.5)
    again = Ledger.load(tmp_path / "state.json", DEPLOYMENT)
    assert again == ledger
    assert again.of(PLACE).total_j == ledger.of(PLACE).total_j
    assert (again.of(PLACE).bridged_s, again.saved_s) == (5.0, 12.5)


def test_busy_energy_leaves_idle_out() -> None:
    ledger = Ledger(DEPLOYMENT)
    ledger.of(PLACE).add(estimate())
    assert (ledger.of(PLACE).busy_j, ledger.of(PLACE).total_j) == (11.0, 14.0)


def test_without_a_file_sums_begin_at_nothing(tmp_path: Path) -> None:
    assert Ledger.load(tmp_path / "none.json", DEPLOYMENT).totals == {}


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"schema": 1}', "null", "\xff"])
def test_a_damaged_state_file_is_one_clear_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(damage.encode("latin-1"))
    with pytest.raises(InputError, match=r"is no state file of pie-p watch, or a damaged one; move it away to begin anew$"):
        Ledger.load(path, DEPLOYMENT)


@pytest.mark.parametrize("value", ["NaN", "-1.0", "Infinity", '"many"'])
def test_a_sum_that_cannot_be_is_damage(tmp_path: Path, value: str) -> None:
    path = tmp_path / "state.json"
    ledger = Ledger(DEPLOYMENT)
    ledger.of(PLACE).add(estimate())
    ledger.save(path, wall_s=0)
    path.write_text(path.read_text().replace('"output_tokens": 5.0', f'"output_tokens": {value}'))
    with pytest.raises(InputError, match="damaged one"):
        Ledger.load(path, DEPLOYMENT)


def test_another_deployment_does_not_go_on_with_the_sums(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    Ledger(DEPLOYMENT).save(path, wall_s=0)
    with pytest.raises(InputError, match=r"holds the sums of another deployment \(tp = 1, not 2\); give another --state$"):
        Ledger.load(path, {**DEPLOYMENT, "tp": 2})


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    Ledger(DEPLOYMENT).save(path, wall_s=0)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 9}))
    with pytest.raises(InputError, match="has schema 9; this version reads 1"):
        Ledger.load(path, DEPLOYMENT)


def test_a_disk_that_refuses_leaves_what_was_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        Ledger(DEPLOYMENT).save(tmp_path / "missing" / "state.json", wall_s=0)
