"""Public names keep Python's habits: typed, frozen, equal by value, hashable, copied and pickled."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import pytest

import pie_p
from pie_p.errors import InputError, PiePError

BUILT: dict[str, Callable[[], Any]] = {
    "Prediction": lambda: predicted(),
    "OperatorEnergy": lambda: predicted().operators[0],
    "EnergyBreakdown": lambda: predicted().breakdown,
    "WhatIf": lambda: predicted().what_if(batch=2),
    "Footprint": lambda: predicted().footprint(grid="DE-2024", price_per_kwh=0.2),
    "Grid": lambda: pie_p.load_grid("FR-2024"),
    "Predictor": lambda: pie_p.load_predictor("default"),
    "Case": lambda: pie_p.make_case("llama-3.1-8b", gpu="h100-sxm-80gb", prompt_tokens=9, output_tokens=9),
    "Accounting": lambda: pie_p.Accounting(scope="host"),
    "LLM": lambda: pie_p.load_llm("qwen3-30b-a3b"),
    "Gpu": lambda: pie_p.load_gpu("h100-sxm-80gb"),
    "Link": lambda: pie_p.load_cluster("h100-sxm-80gb").intra,
    "Host": lambda: pie_p.Host(name="own", gpus_per_host=4, intra="nvlink4-bridge", host_idle_w=900, host_load_fraction=0.1),
    "Cluster": lambda: pie_p.Cluster(gpu="h100-sxm-80gb", hosts=2),
    "Engine": lambda: predicted().deployment.engine,
    "ParallelPlan": lambda: pie_p.ParallelPlan(tp=2),
    "Request": lambda: pie_p.Request(prompt_tokens=9, output_tokens=9),
    "LengthDistribution": lambda: pie_p.LengthDistribution.from_lengths([1, 9]),
}
UNHASHED = {"Predictor"}  # holds tables of serving costs by engine


def predicted() -> pie_p.Prediction:
    return pie_p.predict_energy("llama-3.1-8b", gpu="h100-sxm-80gb", tp=2, batch=4, prompt_tokens=200, output_tokens=100)


@pytest.fixture(params=BUILT, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    """A public class."""
    return str(request.param)


def test_it_cannot_be_changed(name: str) -> None:
    value = BUILT[name]()
    field = next(iter(getattr(value, "_fields", None) or getattr(value, "__dataclass_fields__", None) or type(value).model_fields))
    field = field if isinstance(field, str) else "name"
    with pytest.raises((AttributeError, InputError)):  # dataclasses raise FrozenInstanceError, an AttributeError
        setattr(value, field, None)


def test_it_is_equal_by_value_and_hashable(name: str) -> None:
    one, other = BUILT[name](), BUILT[name]()
    assert one == other
    assert one != "something else"
    if name not in UNHASHED:
        assert hash(one) == hash(other)


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "deepcopy", "pickle"]
)
def test_a_copy_is_equal(name: str, again: Callable[[Any], Any]) -> None:
    one = BUILT[name]()
    other = again(one)
    assert other == one
    assert type(other) is type(one)
    if name not in UNHASHED:
        assert hash(other) == hash(one)


def test_its_text_is_short_enough_to_read(name: str) -> None:
    text = repr(BUILT[name]())
    assert type(BUILT[name]()).__name__ in text
    if is_dataclass(BUILT[name]()) and name in ("Prediction", "Footprint", "Accounting", "Request", "ParallelPlan", "EnergyBreakdown"):
        assert len(text) < 400


def callables() -> list[tuple[str, Any]]:
    """Public functions, and public methods of public classes."""
    found = []
    for public in pie_p.__all__:
        value = getattr(pie_p, public)
        if inspect.isfunction(value):
            found.append((public, value))
        elif inspect.isclass(value) and not issubclass(value, PiePError):
            own = [(key, getattr(value, key)) for key in vars(value) if not key.startswith("_") and "model_" not in key]
            found += [(f"{public}.{key}", method) for key, method in own if inspect.isfunction(method) or inspect.ismethod(method)]
    return found


@pytest.mark.parametrize(("where", "function"), callables(), ids=[where for where, _ in callables()])
def test_every_argument_and_every_result_is_typed(where: str, function: Any) -> None:
    shown = inspect.signature(function)
    bare = [each.name for each in shown.parameters.values() if each.annotation is each.empty and each.name not in ("self", "cls")]
    assert not bare
    assert shown.return_annotation is not shown.empty


@pytest.mark.parametrize(("where", "function"), callables(), ids=[where for where, _ in callables()])
def test_from_three_arguments_on_all_but_the_first_go_by_name(where: str, function: Any) -> None:
    positional = [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) and each.name not in ("self", "cls")
    ]
    assert len(positional) <= 2, positional
