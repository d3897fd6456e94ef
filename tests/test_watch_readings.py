"""Readings: the pages of vLLM, SGLang and TensorRT-LLM, in their spellings by version."""

from __future__ import annotations

import re

import pytest
from simulated_server import Counts, sglang_page, trtllm_page, vllm_page

from pie_p.errors import InputError
from pie_p.watch.dialects import DIALECTS, LOSSES, ROLES
from pie_p.watch.readings import SeriesKey, read_metrics

COUNTS = Counts(
    prompt_tokens=1000, output_tokens=500, finished=7, finished_prompt_tokens=900, finished_output_tokens=420, steps=60, decode_steps=55,
    itl_sum_s=4.5, itl_count=490, ttft_count=10, running=3, waiting=2, tpot_sum_s=0.1, tpot_count=7,
)  # fmt: skip


@pytest.mark.parametrize("version", ["0.8.5", "0.12"])
def test_vllm_is_read_in_its_old_and_its_new_spelling(version: str) -> None:
    reading = read_metrics(vllm_page(COUNTS, version=version))
    assert reading.dialect.server == "vllm"
    assert dict(reading.series) == {
        SeriesKey("meta-llama/Llama-3.1-8B-Instruct", "0"): {
            "prompt_tokens": 1000, "output_tokens": 500, "finished": 7, "steps": 60, "itl_sum": 4.5, "itl_count": 490, "first_tokens": 10,
            "running": 3, "waiting": 2, "kv_usage": 3 / 512,
        }
    }  # fmt: skip
    assert reading.missing == {"cached_tokens": "vllm:prefix_cache_hits_total"}


def test_sglangs_live_counters_are_told_from_those_that_wait_for_the_end() -> None:
    [values] = read_metrics(sglang_page(COUNTS)).series.values()
    assert (values["prompt_tokens"], values["live_prompt_tokens"]) == (900, 1000)
    assert (values["output_tokens"], values["live_output_tokens"], values["steps"]) == (420, 490, 55)
    old = read_metrics(sglang_page(COUNTS, new=False))
    assert "steps" in old.missing
    assert "batch comes from gauges" in LOSSES["steps"]


def test_tensorrt_llm_is_read() -> None:
    reading = read_metrics(trtllm_page(COUNTS))
    assert reading.dialect.server == "trtllm"
    [values] = reading.series.values()
    assert (values["output_tokens"], values["finished"], values["running"]) == (420, 7, 3)
    behind_dynamo = read_metrics(trtllm_page(COUNTS).replace("trtllm_", "trtllm:"))
    assert behind_dynamo.series == reading.series


def test_engines_stay_apart_where_every_metric_names_them_and_are_summed_where_not() -> None:
    two = read_metrics(vllm_page(COUNTS, engine="0") + vllm_page(COUNTS, engine="1"))
    assert [key.engine for key in two.series] == ["0", "1"]
    mixed = read_metrics(vllm_page(COUNTS, engine="0") + vllm_page(COUNTS, engine="1") + 'vllm:prefix_cache_hits_total{engine="0"} 5\n')
    [(key, values)] = mixed.series.items()
    assert key.engine == ""
    assert (values["output_tokens"], values["running"], values["cached_tokens"]) == (1000, 6, 5)
    assert values["kv_usage"] == pytest.approx(3 / 512)  # a share: the mean, not the sum


def test_a_rank_that_speaks_once_per_shard_counts_once() -> None:
    page = sglang_page(COUNTS)
    shards = "".join(line.replace('tp_rank="0"', 'tp_rank="1"') + "\n" for line in page.splitlines() if 'tp_rank="0"' in line)
    by_priority = "".join(line.replace("{", '{priority="3",') + "\n" for line in page.splitlines() if "num_running_reqs{" in line)
    assert read_metrics(page + shards + by_priority).series == read_metrics(page).series


def test_of_several_llms_one_must_be_chosen() -> None:
    both = vllm_page(COUNTS, served="a") + vllm_page(Counts(output_tokens=1), served="b")
    with pytest.raises(InputError, match=r"^2 LLMs are served there \(a, b\); choose one with served_name"):
        read_metrics(both)
    [(key, values)] = read_metrics(both, served_name="b").series.items()
    assert key.served_name == "b"
    assert values["output_tokens"] == 1
    with pytest.raises(InputError, match=r"^no LLM is served as 'c' there; served: a, b$"):
        read_metrics(both, served_name="c")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "^no metric of vLLM, SGLang or TensorRT-LLM there"),
        ("<html>not here</html>", "^no metric of vLLM, SGLang or TensorRT-LLM there"),
        ("python_info 1\n", "^no metric of vLLM, SGLang or TensorRT-LLM there"),
        ('vllm:num_requests_running{engine="0" 3\n', "^what the server answers is no Prometheus text"),
        ("vllm:num_requests_running three\n", "^what the server answers is no Prometheus text"),
        ("vllm:cache_config_info 1\n", "^the server gives metrics, but none that is read"),
        ("vllm:num_requests_waiting 3\n", "^vllm gives neither output tokens nor running requests"),
    ],
)
def test_what_is_no_page_of_a_server_is_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_metrics(text)


def test_a_gauge_that_was_never_set_is_missing_not_zero() -> None:
    reading = read_metrics(vllm_page(COUNTS).replace(f"{COUNTS.running / 512}", "NaN"))
    assert reading.missing["kv_usage"] == "vllm:kv_cache_usage_perc"


def test_a_figure_below_zero_is_missing_not_energy_that_comes_back() -> None:
    reading = read_metrics(re.sub(r"(?m)^(vllm:generation_tokens_total.* )\S+$", r"\1-5", vllm_page(COUNTS)))
    assert "vllm:generation_tokens_total" in reading.missing.values()


def test_every_dialect_names_only_known_roles_and_every_loss_has_one() -> None:
    for dialect in DIALECTS:
        assert set(dialect.names) <= set(ROLES)
    assert set(LOSSES) <= set(ROLES)
