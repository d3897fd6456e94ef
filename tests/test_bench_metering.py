"""Meters of a benchmark: boards added up, counters beside, other hosts over HTTP, recordings, and numbers that must agree."""

from __future__ import annotations

import importlib.util
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scripted_server import GOOD, Scripted, scripted

from pie_p.bench.metering import Metering, Reading, counter_j, metering_of
from pie_p.bench.remote import RemoteMeter, remote_boards
from pie_p.errors import DeviceError, InputError
from pie_p.profiling.clocks import MonotonicClock
from pie_p.profiling.laws import SquareWave, Timeline
from pie_p.profiling.meters import MissingFieldError
from pie_p.profiling.samples import Samples
from pie_p.profiling.sampling import ProcessSampler
from pie_p.profiling.simulated_meter import Artefacts, SimulatedMeter

CLOCK = MonotonicClock()
WAVE = SquareWave(low_w=100.0, high_w=300.0, period_s=0.2)
make_steady = partial(SimulatedMeter, Timeline(idle_w=250.0), CLOCK)
make_wave = partial(SimulatedMeter, WAVE, CLOCK, artefacts=Artefacts(period_s=0.01, window_s=0.01, counter_period_s=0.01))

EXPORTED = """# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="h"} 412.5
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-b",device="nvidia1",modelName="NVIDIA H100 80GB HBM3",Hostname="h"} 87.5
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="h"} 2500
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a"} 93
"""


def exporter(server: Scripted, text: str = EXPORTED) -> str:
    server.pages["/metrics"] = (text, "text/plain")
    return f"{server.url}/metrics"


def test_boards_add_up_over_the_window_asked_for() -> None:
    makers = [partial(ProcessSampler, make, period_s=0.01) for make in (make_steady, make_wave)]
    identities = tuple(make().identity for make in (make_steady, make_wave))
    metering = Metering(make_samplers=lambda: [make() for make in makers], boards=identities, limits_w=(700.0, 700.0))
    reading = Reading.start(metering)
    start_s = time.monotonic()
    time.sleep(1.3)
    end_s = time.monotonic()
    energy = reading.stop(start_s, end_s)
    truth_j = 250.0 * (end_s - start_s) + WAVE.energy_j(start_s, end_s)
    assert energy.joules == pytest.approx(truth_j, rel=0.06)
    assert energy.counter_j == pytest.approx(truth_j, rel=0.1)
    assert energy.error == ""
    assert metering.limit_w == 700.0


def test_a_counter_is_interpolated_to_the_edges_and_short_windows_have_none() -> None:
    readings = Samples(
        at_s=np.array([0.0, 4.0]), power_w=np.array([100.0, 100.0]), counter_at_s=np.arange(5.0), energy_j=1000.0 + 100.0 * np.arange(5.0)
    )
    assert counter_j(readings, 0.5, 3.0) == pytest.approx(250.0)
    assert counter_j(readings, 0.5, 1.0) is None


def test_a_recording_is_played_in_each_window(tmp_path: Path) -> None:
    recording = Samples(at_s=np.arange(0.0, 5.0, 0.05), power_w=np.full(100, 120.0), wanted_period_s=0.05)
    recording.save(tmp_path / "board.parquet")
    metering = metering_of(f"replay:{tmp_path / 'board.parquet'}")
    assert metering is not None
    assert metering.origin == "replayed"
    for _ in range(2):
        reading, start_s = Reading.start(metering), time.monotonic()
        time.sleep(0.2)
        energy = reading.stop(start_s, end_s := time.monotonic())
        assert energy.joules == pytest.approx(120.0 * (end_s - start_s), rel=0.01)


def test_boards_of_another_host_are_read_from_its_exporter_in_si_units() -> None:
    with scripted(GOOD) as server:
        url = exporter(server)
        assert remote_boards(url) == ["GPU-a", "GPU-b"]
        for name in ("GPU-a", "0"):
            with RemoteMeter(url, name) as meter:
                assert (meter.identity.uuid, meter.identity.name) == ("GPU-a", "NVIDIA H100 80GB HBM3")
                assert (meter.read_power_w("average"), meter.read_energy_j()) == (412.5, 2.5)
        with RemoteMeter(url, "GPU-b") as meter:
            assert meter.fields == {"average"}
            with pytest.raises(MissingFieldError, match="has no 'counter' power field; it answers: average"):
                meter.read_energy_j()
            with pytest.raises(MissingFieldError, match="has no 'instant' power field"):
                meter.read_power_w("instant")
        metering = metering_of(url, gpus=2)
        assert metering is not None
        assert [board.uuid for board in metering.boards] == ["GPU-a", "GPU-b"]
        assert metering.origin == "measured"
        reading, start_s = Reading.start(metering), time.monotonic()
        time.sleep(0.3)
        energy = reading.stop(start_s, end_s := time.monotonic())
        assert energy.joules == pytest.approx(500.0 * (end_s - start_s), rel=0.01)


def test_an_exporter_that_is_none_is_one_line() -> None:
    with scripted(GOOD) as server:
        with pytest.raises(DeviceError, match=r"publishes no DCGM_FI_DEV_POWER_USAGE; give the /metrics address of a DCGM exporter$"):
            remote_boards(exporter(server, "up 1\n"))
        with pytest.raises(DeviceError, match=r"has no board 'GPU-z'; it has 0, 1$"):
            RemoteMeter(exporter(server), "GPU-z")
        with pytest.raises(DeviceError, match="DCGM_FI_DEV_POWER_USAGE is 'many', which is no number"):
            remote_boards(exporter(server, EXPORTED.replace("412.5", "many")))
        url = server.url
    with pytest.raises(DeviceError, match=r"^no power from http://127.0.0.1:\d+/metrics: "):
        remote_boards(f"{url}/metrics")


def test_as_many_boards_are_read_as_the_deployment_has() -> None:
    with scripted(GOOD) as server:
        url = exporter(server)
        message = r"^the deployment has 1 GPUs \(tp \* pp \* dp\), but 2 boards are visible; name its boards with --boards 0,1,\.\.\.$"
        with pytest.raises(InputError, match=message):
            metering_of(url, gpus=1)
        one = metering_of(url, boards=["1"], gpus=1)
        assert one is not None
        assert one.boards[0].uuid == "GPU-b"


def test_boards_of_this_host_are_named_with_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the stand-in of NVML that tests of the meter use."""
    spec = importlib.util.spec_from_file_location("pynvml", Path(__file__).with_name("fake_pynvml.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    spec.loader.exec_module(module)
    metering = metering_of("nvml", boards=["0"], gpus=1)
    assert metering is not None
    assert (metering.origin, len(metering.make_samplers())) == ("measured", 1)
    assert metering.limits_w[0] is not None
    assert metering.limits_w[0] > 0
    with pytest.raises(DeviceError, match="no GPU 99 on this host"):
        metering_of("nvml", boards=["99"], gpus=1)


def test_another_word_is_no_meter() -> None:
    assert metering_of("none") is None
    with pytest.raises(
        InputError, match=r"^meter = 'watts' is not known; allowed: none, nvml, the http address of a DCGM exporter, replay:FILE$"
    ):
        metering_of("watts")
