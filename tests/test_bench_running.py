"""Runs: whole responses only, energy of exactly their time, and a second start that goes on where the first one stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_server import GOOD, PROMPT_TOKENS, TOKENS, Behaviour, Good, Scripted, scripted, slow, status, stream, text_event

from pie_p.bench.folders import load_run_manifest
from pie_p.bench.metering import Metering
from pie_p.bench.plans import BenchPlan, Load, ServerTarget, plan_hash, work_hash
from pie_p.bench.prompts import load_prompts
from pie_p.bench.results import BenchResult, load_run
from pie_p.bench.running import bench, items_left
from pie_p.errors import DeviceError, InputError, ProfileError
from pie_p.profiling.clocks import MonotonicClock
from pie_p.profiling.laws import Timeline
from pie_p.profiling.meters import LostGpuError
from pie_p.profiling.samples import Samples
from pie_p.profiling.sampling import Sampler, SimulatedSampler
from pie_p.profiling.simulated_meter import SimulatedMeter

BOARD_W = 300.0
CLOCK = MonotonicClock()


def plan_for(server: Scripted, load: Load | None = None, **settings: Any) -> BenchPlan:
    quick = {"served": "tiny", "backoff_s": 0.01, "most_backoff_s": 0.02, "retries": 1, **settings}
    return BenchPlan(target=ServerTarget(url=server.url, **quick), load=load or Load(concurrency=2, warmup=0))


def steady_boards(count: int = 2) -> Metering:
    """Boards that draw 300 W all the time."""
    meters = [SimulatedMeter(Timeline(idle_w=BOARD_W), CLOCK, uuid=f"SIM-{number}") for number in range(count)]
    return Metering(
        make_samplers=lambda: [SimulatedSampler(meter, CLOCK, period_s=0.02) for meter in meters],
        boards=tuple(meter.identity for meter in meters),
        limits_w=tuple(meter.read_state().limit_w for meter in meters),
    )


def run(folder: Path, *script: Behaviour, prompts: int = 6, load: Load | None = None, **more: Any) -> BenchResult:
    with scripted(*script) as server:
        return bench(plan_for(server, load), load_prompts([f"prompt {n}" for n in range(prompts)]), folder, **more)


def check_sums(result: BenchResult) -> None:
    """The totals, added up again from the rows."""
    whole = result.whole
    assert result.totals.responses == len(whole["words"])
    assert result.totals.words == whole["words"].sum()
    assert result.totals.tokens == whole["output_tokens"].sum()
    assert result.totals.seconds == pytest.approx(sum(window.seconds for window in result.manifest.windows))


@pytest.mark.parametrize("load", [Load(concurrency=3, repetitions=2, warmup=2), Load(batch=4, repetitions=2, warmup=1)])
def test_a_run_adds_up_to_its_responses_seconds_and_joules(tmp_path: Path, load: Load) -> None:
    result = run(tmp_path / "run", Good(pause_s=0.02), load=load, metering=steady_boards())
    totals = result.totals
    assert (totals.words, totals.tokens, totals.responses) == (12 * 3, 12 * TOKENS, 12)
    assert result.manifest.state == "complete"
    assert result.energy_source == "simulated"
    assert totals.joules == pytest.approx(2 * BOARD_W * totals.seconds)
    assert totals.power_w == pytest.approx(600.0)
    assert [window.repetition for window in result.manifest.windows] == [0, 1]
    assert 1.0 < result.concurrency <= load.together
    assert (result.faults, result.failed, result.cut_off) == ({}, {}, 0)
    check_sums(result)
    # the last whole response ends the clock: no window is longer than its rows say
    for number, window in enumerate(result.manifest.windows):
        assert window.seconds == pytest.approx(result.rows["end_s"][result.rows["window"] == number].max(), abs=0.02)


def test_the_warm_up_counts_nowhere(tmp_path: Path) -> None:
    with scripted(GOOD) as server:
        result = bench(plan_for(server, Load(concurrency=2, warmup=5)), load_prompts(["a", "b"]), tmp_path)
        assert len(server.asked) == 7
    assert result.totals.responses == 2


def test_faults_are_counted_and_a_prompt_without_an_answer_is_asked_again_by_the_next_start(tmp_path: Path) -> None:
    load = Load(concurrency=1, warmup=0)
    with scripted(GOOD, status(500), GOOD, status(500), status(429), GOOD) as server:
        plan, prompts = plan_for(server, load), load_prompts(["a", "b", "c", "d"])
        first = bench(plan, prompts, tmp_path)  # a; b after a retry; c fails twice; d
        assert first.manifest.state == "incomplete"
        assert (first.totals.responses, first.failed, first.faults) == (3, {"busy": 1}, {"server error": 2, "busy": 1})
        assert first.rows["outcome"].tolist() == ["ok", "ok", "busy", "ok"]
        assert first.rows["attempts"].tolist() == [1, 2, 2, 1]
        assert first.rows["faults"].tolist() == ["", "server error", "server error,busy", ""]
        second = bench(plan, prompts, tmp_path)
        assert [request["prompt"] for request in server.asked[6:]] == ["c"]
    assert (second.totals.responses, second.failed) == (4, {})
    assert second.faults == {"server error": 2, "busy": 1}  # what happened is not forgotten
    check_sums(second)


def test_a_complete_run_asks_nothing_again(tmp_path: Path) -> None:
    with scripted(GOOD) as server:
        plan, prompts = plan_for(server), load_prompts(["a", "b"])
        first = bench(plan, prompts, tmp_path)
        again = bench(plan, prompts, tmp_path)
        assert len(server.asked) == 2
    assert again.manifest == first.manifest


def test_a_server_that_goes_away_ends_the_run_and_what_was_whole_is_kept(tmp_path: Path) -> None:
    """The fifth request kills the server while four others are half way."""

    def dying(handler: Any) -> None:
        if len(handler.server.asked) < 5:
            GOOD(handler)
            return
        stream(text_event("half "), then="hang up")(handler)
        handler.server.socket.close()

    prompts = load_prompts([f"prompt {n}" for n in range(40)])
    with scripted(dying) as server:
        plan = plan_for(server, Load(concurrency=2, warmup=0))
        result = bench(plan, prompts, tmp_path, metering=steady_boards())
    assert result.manifest.state == "interrupted"
    assert "prompts in a row had no answer" in result.manifest.stopped_by
    assert 4 <= result.totals.responses < 40
    assert result.totals.words == 3 * result.totals.responses
    assert result.totals.joules == pytest.approx(600.0 * result.totals.seconds)
    assert sum(result.failed.values()) + result.totals.responses < 40  # the rest was not even tried
    check_sums(result)


def test_a_server_that_refuses_everything_is_not_asked_forty_times(tmp_path: Path) -> None:
    with scripted(status(401, "no key")) as server:
        result = bench(plan_for(server, Load(concurrency=1, warmup=0)), load_prompts([str(n) for n in range(40)]), tmp_path)
        assert len(server.asked) == 3
    assert result.manifest.stopped_by == "3 prompts in a row had no answer (refused): HTTP 401: no key"
    assert result.totals.responses == 0
    assert result.totals.tokens_per_s is None


SLEEPY = """
import sys
from pie_p.bench.plans import BenchPlan, Load, ServerTarget
from pie_p.bench.prompts import load_prompts
from pie_p.bench.running import bench
plan = BenchPlan(target=ServerTarget(url=sys.argv[1], served="tiny"), load=Load(concurrency=2, warmup=0))
bench(plan, load_prompts([f"prompt {n}" for n in range(8)]), sys.argv[2], cut_every_s=float(sys.argv[3]))
"""


def stopped_after(asked: int, server: Scripted, folder: Path, how: signal.Signals, cut_every_s: float = 60.0) -> int:
    """The exit code of a run that is stopped once so many requests have come."""
    process = subprocess.Popen([sys.executable, "-c", SLEEPY, server.url, str(folder), str(cut_every_s)], stderr=subprocess.DEVNULL)
    while len(server.asked) < asked and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.3)
    os.kill(process.pid, how)
    return process.wait()


def hanging_from(number: int) -> Behaviour:
    """Half a response, and nothing more, from a request on."""

    def behave(handler: Any) -> None:
        (GOOD if len(handler.server.asked) < number else stream(text_event("half "), then="stall", delay_s=3.0))(handler)

    return behave


def test_control_c_keeps_what_was_whole_and_never_half_a_response(tmp_path: Path) -> None:
    with scripted(hanging_from(4)) as server:
        assert stopped_after(5, server, tmp_path / "run", signal.SIGINT) != 0
        result = load_run(tmp_path / "run")
        assert (result.manifest.state, result.manifest.stopped_by) == ("interrupted", "stopped by hand")
        assert (result.totals.responses, result.totals.words, result.cut_off) == (3, 9, 2)
        check_sums(result)
        asked_before = len(server.asked)
        server.script[:] = [GOOD]
        plan = BenchPlan(target=ServerTarget(url=server.url, served="tiny"), load=Load(concurrency=2, warmup=0))
        whole = bench(plan, load_prompts([f"prompt {n}" for n in range(8)]), tmp_path / "run")
        assert len(server.asked) - asked_before == 5
    assert (whole.manifest.state, whole.totals.responses, whole.totals.words) == ("complete", 8, 24)
    pairs = list(zip(whole.rows["repetition"], whole.rows["prompt"], strict=True))
    assert len(set(pairs)) == len(pairs) == 8  # nothing twice, nothing lost
    check_sums(whole)


def test_a_kill_costs_the_open_window_and_nothing_else(tmp_path: Path) -> None:
    def slowing(handler: Any) -> None:
        (slow(0.15) if len(handler.server.asked) <= 6 else stream(text_event("half "), then="stall", delay_s=3.0))(handler)

    with scripted(slowing) as server:
        assert stopped_after(8, server, tmp_path / "run", signal.SIGKILL, cut_every_s=0.2) == -signal.SIGKILL
    result = load_run(tmp_path / "run")
    assert result.manifest.state == "running"
    assert 1 <= result.totals.responses <= 6
    check_sums(result)
    assert not list((tmp_path / "run").glob(".*.part"))


def test_cuts_leave_no_gap_in_time_and_energy(tmp_path: Path) -> None:
    with scripted(Good(pause_s=0.03)) as server:
        plan, prompts = plan_for(server, Load(concurrency=2, warmup=0)), load_prompts([str(n) for n in range(16)])
        start_s = time.monotonic()
        result = bench(plan, prompts, tmp_path, metering=steady_boards(), cut_every_s=0.15)
        elapsed_s = time.monotonic() - start_s
    windows = result.manifest.windows
    assert len(windows) >= 3
    assert sum(window.responses for window in windows) == 16
    assert result.totals.seconds <= elapsed_s
    assert result.totals.joules == pytest.approx(600.0 * result.totals.seconds)
    assert result.concurrency == pytest.approx(2.0, abs=0.3)
    check_sums(result)
    # a window starts where the one before it ends, so the seconds are those from the first request to the last response
    starts = np.cumsum([0.0, *(window.seconds for window in windows[:-1])])
    ends = starts[result.rows["window"].astype(int)] + result.rows["end_s"]
    assert result.totals.seconds == pytest.approx(ends.max(), abs=0.02)


class DyingSampler(Sampler):
    """A board that falls off the bus while it is read."""

    def start(self) -> None:
        pass

    def stop(self) -> Samples:
        raise LostGpuError("GPU 0 is lost; reset it")


def test_a_meter_that_fails_costs_no_response_and_its_energy_is_unknown(tmp_path: Path) -> None:
    boards = steady_boards(1)
    broken = Metering(make_samplers=lambda: [DyingSampler()], boards=boards.boards, limits_w=boards.limits_w)
    result = run(tmp_path / "run", GOOD, metering=broken)
    assert result.totals.responses == 6
    assert (result.totals.joules, result.energy_source) == (None, "unknown")
    assert any("GPU 0 is lost; reset it" in note for note in result.manifest.notes)


def test_a_meter_that_does_not_start_is_an_error_before_anything_is_asked(tmp_path: Path) -> None:
    class NoSampler(DyingSampler):
        def start(self) -> None:
            raise DeviceError("no board here")

    boards = steady_boards(1)
    metering = Metering(make_samplers=lambda: [NoSampler()], boards=boards.boards, limits_w=boards.limits_w)
    with scripted(GOOD) as server, pytest.raises(DeviceError, match="no board here"):
        bench(plan_for(server), load_prompts(["a"]), tmp_path / "run", metering=metering)
    assert not server.asked
    assert load_run_manifest(tmp_path / "run").windows == ()


def test_a_folder_holds_one_run_only_and_the_difference_is_named(tmp_path: Path) -> None:
    with scripted(GOOD) as server:
        bench(plan_for(server), load_prompts(["a"]), tmp_path)
        other = plan_for(server, Load(concurrency=2, warmup=0, max_tokens=7))
        with pytest.raises(InputError, match=r"differs in load\.max_tokens \(256 there, 7 here\); choose another folder for this one$"):
            bench(other, load_prompts(["a"]), tmp_path)
        with pytest.raises(InputError, match=r"differs in prompts \(1 of texts there, 2 of texts here\)"):
            bench(plan_for(server), load_prompts(["a", "b"]), tmp_path)
        patient = plan_for(server, retries=5, total_s=9.0)
        assert bench(patient, load_prompts(["a"]), tmp_path).totals.responses == 1  # patience is no part of a run


def test_a_run_goes_on_with_the_meter_it_began_with(tmp_path: Path) -> None:
    with scripted(GOOD, status(500), status(500), GOOD) as server:
        plan, prompts = plan_for(server, Load(concurrency=1, warmup=0)), load_prompts(["a", "b"])
        assert bench(plan, prompts, tmp_path, metering=steady_boards()).failed == {"server error": 1}
        with pytest.raises(InputError, match="the run was measured by other boards or at another power limit"):
            bench(plan, prompts, tmp_path)
        assert bench(plan, prompts, tmp_path, metering=steady_boards()).totals.responses == 2


def test_only_one_process_writes_into_a_folder(tmp_path: Path) -> None:
    with scripted(slow(0.6)) as server:
        plan, prompts = plan_for(server), load_prompts(["a"])
        thread = threading.Thread(target=bench, args=(plan, prompts, tmp_path))
        thread.start()
        while not server.asked:
            time.sleep(0.01)
        with pytest.raises(InputError, match="another process is writing into"):
            bench(plan, prompts, tmp_path)
        thread.join()


def test_damage_is_noticed(tmp_path: Path) -> None:
    run(tmp_path, GOOD)
    [part] = tmp_path.glob("responses-*.parquet")
    content = part.read_bytes()
    part.write_bytes(content[:-1] + b"x")
    with pytest.raises(ProfileError, match=r"is not the file its manifest names: SHA-256"):
        load_run(tmp_path)
    part.write_bytes(content)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "schema_version": 9}))
    with pytest.raises(ProfileError, match="has schema version 9; this pie_p reads up to 1"):
        load_run(tmp_path)
    manifest["windows"][0]["part"] = "../elsewhere.parquet"
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ProfileError, match=r"names the file '../elsewhere.parquet'"):
        load_run(tmp_path)


def test_a_loop_that_runs_already_is_no_hindrance(tmp_path: Path) -> None:
    """As in a notebook."""

    async def cell() -> BenchResult:
        return run(tmp_path, GOOD)

    assert asyncio.run(cell()).totals.responses == 6


def test_progress_is_told_after_every_outcome(tmp_path: Path) -> None:
    seen: list[tuple[int, int, int]] = []
    load = Load(concurrency=1, warmup=1, repetitions=2)
    with scripted(GOOD, GOOD, status(400), GOOD) as server:
        plan, prompts = plan_for(server, load), load_prompts(["a", "b"])
        bench(plan, prompts, tmp_path, on_progress=lambda now: seen.append((now.done, now.failed, now.total)))
    assert seen == [(1, 0, 4), (1, 1, 4), (2, 1, 4), (3, 1, 4)]


def test_shuffling_is_by_seed_and_repetition_and_loses_nothing() -> None:
    load = Load(batch=1, repetitions=3, shuffled=True, seed=5)
    first, second, third = items_left(load, 20, set())
    assert [first, second, third] == items_left(load, 20, set())
    orders = [[prompt for _, prompt in items] for items in (first, second, third)]
    assert orders[0] != orders[1] != orders[2]
    assert all(sorted(order) == list(range(20)) for order in orders)


def test_hashes_tell_what_was_asked_from_who_answered() -> None:
    prompts, load = load_prompts(["a"]), Load(concurrency=1)
    here = BenchPlan(target=ServerTarget(url="http://a:1"), load=load)
    there = BenchPlan(target=ServerTarget(url="http://b:2"), load=load)
    assert work_hash(here, prompts) == work_hash(there, prompts)
    assert plan_hash(here, prompts) != plan_hash(there, prompts)
    longer = BenchPlan(target=ServerTarget(url="http://a:1"), load=Load(concurrency=1, max_tokens=1))
    assert work_hash(longer, prompts) != work_hash(here, prompts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Load(), r"^Load: neither batch nor concurrency given; give one"),
        (lambda: Load(batch=1, concurrency=1), r"^Load: both batch and concurrency given"),
        (lambda: Load(batch=0), r"batch = 0 is not allowed"),
        (lambda: ServerTarget(url="localhost:8000"), r"url = 'localhost:8000' is no address of a server"),
        (lambda: ServerTarget(url="http://user:pw@host"), r"is no address of a server; .*--api-key-env"),
        (lambda: ServerTarget(url="http://a", extra="[1]"), r"extra = '\[1\]' is no JSON object"),
        (lambda: ServerTarget(url="http://a", extra='{"stream": false}'), r"extra must not set stream; the plan does"),
        (lambda: ServerTarget(url="http://a", api="chats"), r"api = 'chats' is not allowed"),
    ],
)
def test_plans_that_cannot_be_are_one_line(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_prompt_tokens_and_times_stand_in_the_rows(tmp_path: Path) -> None:
    result = run(tmp_path, Good(pause_s=0.03), prompts=3)
    whole = result.whole
    assert whole["prompt_tokens"].tolist() == [PROMPT_TOKENS] * 3
    assert np.isnan(whole["cached_prompt_tokens"]).all()
    assert (whole["ttft_s"] >= 0.03).all()
    assert whole["tpot_s"] == pytest.approx((whole["latency_s"] - whole["ttft_s"]) / (TOKENS - 1))
