"""The page of operators and the modules' section: every figure of the report or the manifest, nothing else."""

from __future__ import annotations

from pie_p.evaluation import OperatorReport
from pie_p.model_files import ErrorRow, load_predictor_manifest, shipped
from pie_p.operators_page import MODULES, modules_section, operators_page


def row(**changes: object) -> ErrorRow:
    plain = {"family": "linear", "target": "time", "regressor": "learned", "split": "random fifth", "rows": 1234}
    return ErrorRow.model_validate({**plain, "mape": 0.0461, "median": 0.03, "p90": 0.1, "bias": -0.012, **changes})


def test_the_page_has_every_row_with_its_figures_in_percent() -> None:
    errors = (row(), row(target="energy", regressor="physics", mape=0.5))
    noise = (row(regressor="one release for the other"),)
    page = operators_page(OperatorReport(profiles=("mine",), seed=0, errors=errors, noise=noise))
    lines = [line for line in page.splitlines() if line.startswith("| linear")]
    assert lines[0] == "| linear | random fifth | learned | 1,234 | 4.6 | 3.0 | 10.0 | -1.2 |"
    assert len(lines) == len(errors) + len(noise)


def test_the_modules_show_the_errors_that_the_predictor_was_saved_with() -> None:
    manifest = load_predictor_manifest(shipped()["operators"])
    section = modules_section(manifest)
    for family, (module, _) in MODULES.items():
        saved = next(one for one in manifest.errors if (one.family, one.target, one.regressor) == (family, "time", "learned"))
        assert f"| {module}: time | {saved.rows:,} | {100 * saved.mape:.1f} |" in section


def test_a_family_that_nothing_was_learned_for_has_no_line() -> None:
    manifest = load_predictor_manifest(shipped()["operators"]).model_copy(update={"errors": ()})
    assert "time |" not in modules_section(manifest)
