"""Learned times and powers: a known law comes back, the base answers where nothing was learned, and outside is said to be outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from known_operators import RATIOS, decodes, linears, reduces, share_of, table

from pie_p import operators as ops
from pie_p.errors import PredictorError
from pie_p.features import FEATURES, featurize, inputs
from pie_p.hardware import load_cluster, load_gpu
from pie_p.kernels import KernelBook, Use, Wanted
from pie_p.operators import Operator
from pie_p.physics import Roofline, soft_cap
from pie_p.power import PowerLaw
from pie_p.regressors import Booster, FamilyRegressor, OperatorRegressors, Places, check_features, pack, unbent

pytest.importorskip("xgboost", reason="xgboost comes with the extra 'train'")
pytest.importorskip("sklearn", reason="scikit-learn comes with the extra 'train'")

from pie_p.examples import family_examples
from pie_p.learning import SETTINGS, Settings, learn_family, profiled_power_w, profiled_time_s

QUICK: Mapping[str, Settings] = {key: replace(one, trees=60, leaves=32, rate=0.2, least_rows=3) for key, one in SETTINGS.items()}
LAW = PowerLaw()


@pytest.fixture(scope="module")
def learned() -> OperatorRegressors:
    tables = {
        "linear": table(linears(3000)),
        "attention_decode": table(decodes(1500)),
        "collective": table(reduces(1500), name="collectives", kernels=["vllm 0.24.0 graph", "nccl 2.29.2 NCCL"]),
    }
    families: dict[Any, FamilyRegressor] = {
        name: learn_family(family_examples(rows, name), Roofline(), settings=QUICK)  # type: ignore[arg-type]
        for name, rows in tables.items()
    }
    return OperatorRegressors(families=families)


def places(count: int, *, engine: str = "vllm", version: str = "0.24.0", gpu: str = "h200-sxm-141gb") -> Places:
    cluster = load_cluster(gpu)
    return Places(wanted=[Wanted("", engine, version, cluster.gpu, "", "")], which=np.zeros(count, dtype=np.int64))


def columns_of(operators: list[Operator], gpu: str = "h200-sxm-141gb") -> Any:
    return featurize(operators, [load_cluster(gpu)], np.zeros(len(operators), dtype=np.int64))


def ratio(learned: OperatorRegressors, operators: list[Operator], **where: Any) -> Any:
    columns = columns_of(operators, where.get("gpu", "h200-sxm-141gb"))
    return learned.answer(columns, places(len(operators), **where), LAW).time_s / Roofline().time_s(columns)


@pytest.mark.parametrize(
    ("engine", "version", "kernel"), [("vllm", "0.24.0", "fast"), ("vllm", "0.22.0", "slow"), ("trtllm", "1.3.0", "other")]
)
def test_each_kernels_ratio_to_the_base_comes_back(learned: OperatorRegressors, engine: str, version: str, kernel: str) -> None:
    found = ratio(learned, linears(200, seed=5), engine=engine, version=version)
    assert found == pytest.approx(RATIOS[f"{engine} {version} {kernel}"], rel=0.05)


def test_an_engine_that_was_not_profiled_gets_what_holds_over_all(learned: OperatorRegressors) -> None:
    found = ratio(learned, linears(200, seed=5), engine="sglang")
    assert 1.2 < np.median(found) < 1.8


def test_heads_and_routers_are_linear_layers(learned: OperatorRegressors) -> None:
    shape = {"tokens": 64.0, "in_features": 4096.0, "out_features": 8192.0}
    same = [ops.linear("", **shape), ops.linear("", **shape, kind="lm_head"), ops.linear("", **shape, kind="router")]
    found = ratio(learned, same)
    assert found[0] == found[1] == found[2]


def test_kinds_without_measurements_stay_on_the_base(learned: OperatorRegressors) -> None:
    plain = [
        ops.norm("", tokens=8, width=4096),
        ops.embedding("", tokens=8, width=4096),
        ops.activation("", tokens=8, width=99, gated=True),
    ]
    columns = columns_of(plain)
    answer = learned.answer(columns, places(3), LAW)
    assert np.array_equal(answer.time_s, Roofline().time_s(columns))
    assert np.allclose(answer.demand, LAW.demand(columns, answer.time_s))
    assert not answer.outside.any()


def test_a_format_that_was_not_profiled_falls_back_to_the_base_and_is_outside(learned: OperatorRegressors) -> None:
    columns = columns_of([ops.linear("", tokens=8, in_features=4096, out_features=4096, dtype="int4")])
    answer = learned.answer(columns, places(1), LAW)
    assert np.array_equal(answer.time_s, Roofline().time_s(columns))
    assert np.allclose(answer.demand, LAW.demand(columns, answer.time_s))
    assert answer.outside.all()


def test_a_board_far_from_all_profiled_ones_falls_back_to_the_base(learned: OperatorRegressors) -> None:
    columns = columns_of(linears(50, seed=9), "l4-24gb")
    answer = learned.answer(columns, places(50, gpu="l4-24gb"), LAW)
    assert np.allclose(answer.time_s, Roofline().time_s(columns))
    assert answer.outside.all()


def test_a_board_among_profiled_ones_is_outside_all_the_same(learned: OperatorRegressors) -> None:
    """Peaks and bandwidth within the profiled range do not make another board a measured one."""
    columns = columns_of(linears(20, seed=9), "h100-pcie-80gb")
    assert learned.answer(columns, places(20, gpu="h100-pcie-80gb"), LAW).outside.all()


def test_a_format_measured_on_another_board_alone_is_outside_here() -> None:
    book = KernelBook(
        ("a", "b"),
        (Use("a", "linear", "b200-sxm-180gb", "nvfp4", "bf16", 9, 1e-6), Use("b", "linear", "a100-sxm-80gb", "bf16", "bf16", 9, 1e-6)),
    )
    wanted = Wanted("linear", "vllm", "", load_gpu("a100-sxm-80gb"), "fp16", "bf16")
    assert book.profiled(wanted)
    assert not book.profiled(wanted._replace(dtype="nvfp4"))
    assert book.profiled(wanted._replace(dtype="nvfp4", gpu=load_gpu("b200-sxm-180gb")))


def test_a_larger_shape_keeps_the_correction_of_the_edge_and_is_outside(learned: OperatorRegressors) -> None:
    larger = [ops.linear("", tokens=float(2**k), in_features=2.0**15, out_features=2.0**15) for k in (4, 8, 14)]
    columns = columns_of(larger)
    answer = learned.answer(columns, places(3), LAW)
    assert answer.outside.all()
    assert answer.time_s / Roofline().time_s(columns) == pytest.approx(RATIOS["vllm 0.24.0 fast"], rel=0.1)


def test_profiled_shapes_are_inside(learned: OperatorRegressors) -> None:
    shapes = [(t, k, n) for t in (2.0, 16.4, 300.0) for k in (1024.0, 4096.0) for n in (768.0, 8192.0)]
    columns = columns_of([ops.linear("", tokens=t, in_features=k, out_features=n) for t, k, n in shapes])
    assert not learned.answer(columns, places(len(shapes)), LAW).outside.any()


def test_an_engine_takes_the_faster_of_its_own_collective_and_the_librarys(learned: OperatorRegressors) -> None:
    columns = columns_of(reduces(60, seed=3))
    both = learned.answer(columns, places(60), LAW).time_s
    library = learned.answer(columns, places(60, engine="sglang"), LAW).time_s  # no kernel of its own in the book
    assert np.all(both <= library * (1 + 1e-9))


def test_a_group_of_one_does_not_communicate(learned: OperatorRegressors) -> None:
    columns = columns_of([ops.all_reduce("", tokens=8, width=4096, group_size=1)])
    answer = learned.answer(columns, places(1), LAW)
    assert answer.time_s.tolist() == [0.0]
    assert not answer.outside.any()


def test_one_row_is_answered_as_among_many(learned: OperatorRegressors) -> None:
    operators = [*linears(20, seed=1), *decodes(20, seed=1), *reduces(20, seed=1)]
    many = learned.answer(columns_of(operators), places(60), LAW)
    for number in (0, 25, 59):
        one = learned.answer(columns_of([operators[number]]), places(1), LAW)
        assert one.time_s[0] == pytest.approx(many.time_s[number], rel=1e-12)
        assert one.demand[0] == pytest.approx(many.demand[number], rel=1e-12)


def test_power_follows_the_law_it_was_measured_with(learned: OperatorRegressors) -> None:
    rows = table(linears(800, seed=7), seed=7)
    examples = family_examples(rows, "linear")
    regressor = learned.families["linear"]
    time_s = profiled_time_s(regressor, examples, Roofline())
    power_w = profiled_power_w(regressor, examples, time_s)
    long = examples.time_s >= 1e-4
    assert np.median(np.abs(power_w[long] / examples.power_w[long] - 1)) < 0.03


def test_a_board_that_does_more_draws_no_less(learned: OperatorRegressors) -> None:
    regressor = learned.families["linear"]
    columns = columns_of([ops.linear("", tokens=4096, in_features=8192, out_features=8192)] * 50)
    columns |= {"kernel_code": np.zeros(50), "skew": np.zeros(50), "windowed": np.zeros(50)}
    slower = Roofline().time_s(columns) * np.linspace(1.0, 8.0, 50)
    assert np.all(np.diff(regressor.share(columns, slower)) <= 0)


def test_the_law_of_the_test_profile_rises_with_both_rates() -> None:
    columns = columns_of(linears(20))
    assert np.all(share_of(columns, Roofline().time_s(columns)) >= share_of(columns, 2 * Roofline().time_s(columns)))


@given(share=st.floats(0.01, 0.9), most=st.floats(0.92, 1.0), knee=st.floats(2.0, 6.0))
def test_demand_is_the_settled_share_read_backwards(share: float, most: float, knee: float) -> None:
    demand = unbent(np.array([share]), np.array([most]), knee=knee)
    assert soft_cap(demand, np.array([most]), knee=knee)[0] == pytest.approx(share, rel=1e-6)


@given(share=st.floats(0.0, 1.05))
def test_demand_is_finite_at_and_above_the_cap(share: float) -> None:
    assert 0 <= unbent(np.array([share]), np.array([0.95]), knee=3.76)[0] < 4


def test_other_inputs_than_ours_are_refused_by_name() -> None:
    stored = [name for name in FEATURES["linear/time"] if name != "waves"]
    with pytest.raises(PredictorError, match="missing 'waves'"):
        check_features("linear", "time", stored)
    with pytest.raises(PredictorError, match="another order"):
        check_features("linear", "time", FEATURES["linear/time"][::-1])
    with pytest.raises(PredictorError, match="regressor for softmax/time"):
        check_features("softmax", "time", stored)


@pytest.mark.parametrize("content", [b"", b"not gzip", pack({"learner": 1}).content[:-6]])
def test_a_torn_booster_is_one_clear_error(content: bytes) -> None:
    with pytest.raises(PredictorError, match=r"x\.json\.gz"):
        _ = Booster(content, "x.json.gz").forest


def test_a_booster_that_unpacks_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pie_p.regressors.MOST_BOOSTER_BYTES", 1000)
    with pytest.raises(PredictorError, match="unpacks to more than 1000 bytes"):
        pack({"learner": [0] * 10_000}).saved()


def test_packing_is_the_same_every_time() -> None:
    assert pack({"a": [1, 2]}).content == pack({"a": [1, 2]}).content


def test_fractional_batches_and_empty_ones_have_finite_inputs() -> None:
    columns = columns_of([ops.linear("", tokens=t, in_features=4096, out_features=4096) for t in (0.0, 0.3, 7.9, 16.4)])
    columns |= {"kernel_code": np.zeros(4)}
    assert np.isfinite(inputs(columns, FEATURES["linear/time"])).all()
