"""What a person reads: three significant figures with unit and scope, and nothing that was not computed."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console, RenderableType

from pie_p import Prediction, load_gpu, predict_energy
from pie_p.report import names_table, prediction_footer, prediction_lines, prediction_table, tree_table, what_if_footer, what_if_table
from pie_p.wording import change, quantity

PREFIX = {"G": 1e9, "M": 1e6, "k": 1e3, "": 1.0, "m": 1e-3, "µ": 1e-6, "n": 1e-9}


def predicted(**more: Any) -> Prediction:
    return predict_energy("llama-3.1-8b", **{"gpu": "h100-sxm-80gb", "prompt_tokens": 200, "output_tokens": 100, **more})


def printed(table: RenderableType, *, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def read(text: str, unit: str) -> float:
    """A printed quantity as a number again."""
    found = re.fullmatch(rf"(-?[\d.]+) ([GMkmµn]?){unit}", text)
    assert found, text
    return float(found[1]) * PREFIX[found[2]]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "GPU boards only"),
        ({"scope": "host"}, "GPU boards and their share of the host"),
        ({"scope": "facility", "pue": 1.2}, "the site's overhead (PUE)"),
    ],
)
def test_the_total_is_printed_with_its_unit_and_its_scope(more: dict[str, Any], words: str) -> None:
    p = predicted(**more)
    name, figure, remark = prediction_lines(p)[0]
    assert name == "energy per request"
    assert read(figure, "J") == pytest.approx(p.energy_j, rel=0.006)
    assert words in remark


@pytest.mark.parametrize("more", [{}, {"scope": "host"}, {"scope": "facility", "pue": 1.2}])
def test_every_part_of_the_total_has_a_line_and_their_shares_add_up(more: dict[str, Any]) -> None:
    p = predicted(**more, tp=2)
    parts = [line for line in prediction_lines(p) if line[0].startswith("  ") and "interval" not in line[0]]
    assert len(parts) == len(p.breakdown.to_dict())
    assert sum(float(remark.split(" %")[0]) for _, _, remark in parts) == pytest.approx(100, abs=0.3)
    for (_, figure, _), value in zip(parts, p.breakdown.to_dict().values(), strict=True):
        assert read(figure, "J") == pytest.approx(value, rel=0.006)


def test_every_figure_carries_a_unit() -> None:
    for name, figure, _ in prediction_lines(predicted()):
        assert re.search(r" [GMkmµn]?[JsW]$", figure), name


def test_figures_a_request_does_not_have_are_dashes_not_zeros() -> None:
    figures = {name: figure for name, figure, _ in prediction_lines(predicted(output_tokens=0))}
    assert {figures[name] for name in ("energy per output token", "time per output token", "decode step")} == {"–"}


def test_the_table_says_what_was_asked() -> None:
    text = printed(prediction_table(predicted(tp=2, batch=8)))
    for word in ("llama-3.1-8b", "bf16", "2 x h100-sxm-80gb", "TP2", "200 prompt + 100 output tokens", "batch 8", "steady"):
        assert word in text


def test_the_footer_names_cluster_engine_predictor_and_every_warning() -> None:
    p = predicted(batch=2000, prompt_tokens=2000)
    lines = prediction_footer(p)
    assert p.cluster in lines[0]
    assert p.engine in lines[0]
    assert p.predictor["name"] in lines[0]
    assert p.predictor["sha256"][:8] in lines[0]
    assert p.warnings
    assert lines[1:] == [f"warning: {text}" for text in p.warnings]


def test_the_tree_is_printed_largest_first_with_shares_that_add_up() -> None:
    p = predicted(tp=2)
    rows = re.findall(r"^\s*(\S+/\S+)\s+([\d.]+ \S*J)\s+([\d.]+) %", printed(tree_table(p, depth=3)), flags=re.MULTILINE)
    energies = [read(figure, "J") for _, figure, _ in rows]
    assert len(rows) == len(p.tree(3))
    assert energies == sorted(energies, reverse=True)
    assert sum(float(part) for _, _, part in rows) == pytest.approx(100, abs=0.05 * len(rows))
    assert sum(energies) == pytest.approx(p.breakdown.gpu_j, rel=0.01)


def test_names_from_outside_are_printed_as_they_are() -> None:
    assert "[red]own[/x]" in printed(names_table("Title [bold]", ("name",), [["[red]own[/x]"]]))
    own = load_gpu("h100-sxm-80gb").model_copy(update={"name": "own[/x]"})
    assert printed(prediction_table(predicted(gpu=own))).count("own[/x]") == 2


def test_a_what_if_is_a_line_per_figure_with_before_after_and_change() -> None:
    what = predicted(batch=8).what_if(batch=16)
    lines = printed(what_if_table(what)).splitlines()
    assert lines[1].strip() == "What if batch 8 -> 16"
    energy = next(line for line in lines if line.startswith("energy per request"))
    cells = (quantity(what.before.energy_j, "J"), quantity(what.after.energy_j, "J"), change(what.ratio("energy_j")))
    assert energy.split("request")[1].split() == " ".join(cells).split()
    assert len(lines) == 3 + len(list(what.rows()))


def test_only_new_warnings_come_with_a_what_if() -> None:
    what = predicted(gpu="a100-sxm-80gb").what_if(dtype="fp8")
    [line] = what_if_footer(what)
    assert line.startswith("warning, if dtype bf16 -> fp8: a100-sxm-80gb has no fp8 arithmetic")
    assert what_if_footer(predicted(batch=8).what_if(batch=16)) == []


def test_carbon_and_cost_are_at_the_end_of_the_table_where_they_are_asked_for() -> None:
    p = predicted()
    text = printed(prediction_table(p, footprint=p.footprint(grid="SE-2024", price_per_kwh=0.5, currency="SEK")))
    assert re.search(r"carbon \(CO2e\) +[\d.]+ [mµ]?g +.*36 g/kWh, Sweden 2024, Ember", text)
    assert re.search(r"electricity cost +[\d.]+ SEK +per million requests; 0\.5 SEK per kWh", text)
    assert "carbon" not in printed(prediction_table(p))
