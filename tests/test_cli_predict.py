"""`pie-p predict` with what-ifs, carbon and cost: what the library answers, in tables and in JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from pie_p import grid_names, predict_energy
from pie_p.cli_options import complete_grid
from pie_p.cli_predict import changes_of
from pie_p.errors import InputError
from pie_p.wording import quantity

ASK = ["predict", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--batch", "8", "--prompt-tokens", "200", "--output-tokens", "100"]
P = {"gpu": "h100-sxm-80gb", "batch": 8, "prompt_tokens": 200, "output_tokens": 100}


def test_json_carries_every_what_if_in_the_order_asked(run: Any) -> None:
    ran = run(*ASK, "--what-if", "power_limit_w=500", "--what-if", "dtype=fp8,batch=16", "--json")
    answer = json.loads(ran.out)
    p = predict_energy("llama-3.1-8b", **P)
    assert (ran.code, ran.err) == (0, "")
    assert answer["what_if"] == json.loads(json.dumps([p.what_if(power_limit_w=500).to_dict(), p.what_if(dtype="fp8", batch=16).to_dict()]))
    assert {name: answer[name] for name in p.to_dict()} == json.loads(json.dumps(p.to_dict()))


def test_the_tables_show_before_after_and_change(run: Any) -> None:
    out = run(*ASK, "--what-if", "batch=16").out
    what = predict_energy("llama-3.1-8b", **P).what_if(batch=16)
    assert "What if batch 8 -> 16" in out
    after = quantity(what.after.energy_j, "J")
    assert re.search(rf"^energy per request +{quantity(what.before.energy_j, 'J')} +{after} +-[\d.]+ %$", out, flags=re.MULTILINE)


def test_warnings_that_come_with_a_change_say_so(run: Any) -> None:
    out = " ".join(run(*ASK, "--what-if", "gpu=a100-sxm-80gb,dtype=fp8").out.split())
    assert "warning, if gpu h100-sxm-80gb -> a100-sxm-80gb, dtype bf16 -> fp8" in out
    assert "a100-sxm-80gb has no fp8 arithmetic" in out


def test_carbon_and_cost_are_the_library_s_with_their_factors(run: Any) -> None:
    words = ["--grid", "de-2024", "--price-per-kwh", "0.2", "--currency", "EUR"]
    found = predict_energy("llama-3.1-8b", **P).footprint(grid="DE-2024", price_per_kwh=0.2, currency="EUR")
    assert json.loads(run(*ASK, *words, "--json").out)["footprint"] == found.to_dict()
    out = run(*ASK, *words).out
    assert re.search(rf"^carbon \(CO2e\) +{quantity(found.carbon_g, 'g')} .*344 g/kWh, Germany 2024, Ember", out, flags=re.MULTILINE)
    assert re.search(r"^electricity cost +[\d.]+ EUR +per million requests; 0\.2 EUR per kWh", out, flags=re.MULTILINE)


def test_what_was_not_asked_for_is_not_there(run: Any) -> None:
    answer = json.loads(run(*ASK, "--json").out)
    assert not {"what_if", "footprint", "tree"} & set(answer)
    assert not re.search("carbon|cost|What if", run(*ASK).out)


def test_an_intensity_of_your_own_is_named_as_such(run: Any) -> None:
    assert "20 g/kWh, given by the user" in run(*ASK, "--grid-g-per-kwh", "20").out


def test_the_tree_is_in_the_json_too(run: Any) -> None:
    assert json.loads(run(*ASK, "--tree", "2", "--json").out)["tree"] == predict_energy("llama-3.1-8b", **P).tree(2)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("power_limit_w=500", {"power_limit_w": 500.0}),
        ("power-limit-w = 5e2 , dtype = fp8", {"power_limit_w": 500.0, "dtype": "fp8"}),
        ("engine=vllm==0.5.4", {"engine": "vllm==0.5.4"}),
        ("power_limit_w=none,scope=host,exclusive_host=true", {"power_limit_w": None, "scope": "host", "exclusive_host": True}),
    ],
)
def test_changes_are_read_as_people_write_them(text: str, changes: dict[str, Any]) -> None:
    assert changes_of(text) == changes


@pytest.mark.parametrize("text", ["", "500", "power_limit_w", "=500", "tp=", "tp=2,,"])
def test_what_is_no_change_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"is no change; give NAME=VALUE like power_limit_w=500"):
        changes_of(text)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--what-if", "cap"], r"InputError: --what-if 'cap' is no change; give NAME=VALUE"),
        (["--what-if", "power_limit=3"], r"InputError: no argument 'power_limit' to change\. Did you mean: power_limit_w\?"),
        (["--what-if", "gpu=h10"], r"UnknownGpuError: no GPU 'h10' in the catalogue\. Did you mean"),
        (["--what-if", "batch=many"], r"InputError: batch = 'many' is not a number"),
        (["--grid", "DE"], r"UnknownNameError: no grid 'DE' in the catalogue\. Did you mean: DE-2024\?"),
        (["--grid", "DE-2024", "--grid-g-per-kwh", "3"], r"InputError: both grid = 'DE-2024' and grid_g_per_kwh = 3 given; give one"),
        (["--price-per-kwh", "free"], r"UsageError: Invalid value for '--price-per-kwh': 'free' is not a number"),
        (["--currency", "EUR"], r"InputError: a footprint needs a factor"),
        (["--exclusive-host"], r"InputError: exclusive_host=True counts the host, and scope 'gpu' counts boards only; use scope='host'"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["table", "json"])
def test_a_mistake_is_one_line_and_exit_code_2(run: Any, words: list[str], text: str, more: list[str]) -> None:
    ran = run(*ASK, *words, *more)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert re.match(text, ran.err)


def test_every_grid_is_listed_with_its_source(run: Any) -> None:
    listed = json.loads(run("grids", "--json").out)
    assert [grid["name"] for grid in listed] == list(grid_names())
    assert all(grid["source"]["cite"].startswith("Ember") for grid in listed)
    out = run("grids").out
    assert re.search(r"^DE-2024 +Germany +344 g CO2e/kWh$", out, flags=re.MULTILINE)
    assert "source: Ember, Yearly Electricity Data" in out


def test_a_shell_completes_grids() -> None:
    assert complete_grid("de") == ["DE-2024"]
    assert complete_grid("") == list(grid_names())
