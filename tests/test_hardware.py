"""The catalogue against data sheets and public tables; own hardware; hostile input."""

from __future__ import annotations

import copy
import csv
import os
import pickle
import re
import time
from pathlib import Path

import pytest

from pie_p import catalogue, checks, hardware
from pie_p.errors import InputError, PiePError, UnknownGpuError
from pie_p.hardware import Cluster, Gpu, Host, Link, gpu_names, host_names, link_names, load_cluster, load_gpu, load_host, load_link
from pie_p.units import DTYPES

SHARED = Path(os.environ.get("PIE_P_SHARED", Path(__file__).parents[2] / "shared")) / "data"
HOW_TO = Path(__file__).parents[1] / "docs" / "how-to" / "add-a-gpu.md"
CONTRACT = [
    *("a100-sxm-40gb", "a100-sxm-80gb", "a100-pcie-80gb", "h100-sxm-80gb", "h100-pcie-80gb", "h100-nvl-94gb", "h200-sxm-141gb"),
    *("b200-sxm-180gb", "gb200-186gb", "l40s-48gb", "l4-24gb", "a40-48gb", "rtx-a6000-48gb", "v100-sxm-32gb", "rtx-4090-24gb"),
]
MINE = {"name": "mine", "memory_bytes": 96e9, "hbm_bytes_per_s": 4e12, "peak_flops_per_s": {"bf16": 500e12}, "limit_w": 500}
EVERYTHING = [
    *((load_gpu, name) for name in hardware.gpu_names()),
    *((load_link, name) for name in hardware.link_names()),
    *((load_host, name) for name in hardware.host_names()),
]


# Sources


@pytest.mark.parametrize(("load", "name"), EVERYTHING)
def test_every_number_has_a_source_after_loading(load, name):
    noun = load(name)
    missing = set(noun.NUMBERS) - {number.split(".")[0] for number in noun.numbers()} - {"pair_gpus", "domain_hosts"}
    assert not missing
    for number in noun.numbers():
        source = noun.source_of(number)
        assert source.kind in ("datasheet", "measured", "published", "inferred"), number
        assert len(source.cite) > 15, number
        assert source.date[:3] in ("201", "202"), number


def test_the_number_of_sourced_numbers_is_what_the_files_hold():
    gpus = sum(len(load_gpu(name).numbers()) for name in gpu_names())
    peaks = sum(len(load_gpu(name).peak_flops_per_s) for name in gpu_names())
    assert gpus == 6 * len(gpu_names()) + peaks
    assert sum(len(load_link(name).numbers()) for name in link_names()) == 2 * len(link_names())
    assert all(load_host(name).source_of("host_idle_w") for name in host_names())


def test_the_contract_names_are_there():
    assert set(CONTRACT) <= set(gpu_names())


def test_the_source_of_a_limit_is_a_data_sheet():
    assert load_gpu("h100-sxm-80gb").source_of("limit_w").kind == "datasheet"
    assert load_gpu("h100-sxm-80gb").source_of("peak_flops_per_s.fp8").kind == "datasheet"


def test_an_inferred_idle_power_states_its_rule():
    for name in gpu_names():
        for number in ("idle_w", "active_idle_w"):
            source = load_gpu(name).source_of(number)
            if source.kind == "inferred":
                assert re.search(r"share|figure|typical|0\.70|times|80 W", source.cite), (name, source.cite)


@pytest.mark.parametrize("name", hardware.gpu_names())
def test_a_stated_share_of_the_limit_is_the_number_in_the_file(name):
    gpu = load_gpu(name)
    like = {"A100 SXM 80 GB": "a100-sxm-80gb", "the A40": "a40-48gb", "the L40S": "l40s-48gb", "the L4": "l4-24gb"}
    like |= {"the H100 NVL": "h100-nvl-94gb", "the B200": "b200-sxm-180gb", "the GB200": "gb200-186gb"}
    for number in ("idle_w", "active_idle_w"):
        cite = gpu.source_of(number).cite
        other = next((board for text, board in like.items() if re.search(f"as .*{text}(?!0)", cite)), None)
        if cite.startswith("the same share of the power limit") and other:
            assert getattr(gpu, number) == pytest.approx(getattr(load_gpu(other), number) / load_gpu(other).limit_w * gpu.limit_w, rel=0.01)


# Against outside truth


def test_data_sheet_figures():
    # NVIDIA data sheets: H100 SXM 1,979 TFLOPS sparse bf16, 3.35 TB/s, 700 W; A100 312 dense; L40S 362.05 dense; V100 125 fp16;
    # HGX B200 18 PFLOPS sparse fp4; RTX 4090 (Ada whitepaper, appendix A) 165.2 with fp32 accumulate; GB200 NVL72 180 PFLOPS dense / 72.
    assert load_gpu("h100-sxm-80gb").peak("bf16") == pytest.approx(1979e12 / 2, rel=1e-3)
    assert load_gpu("h100-sxm-80gb").hbm_bytes_per_s == 3.35e12
    assert load_gpu("a100-sxm-80gb").peak("bf16") == 312e12
    assert load_gpu("l40s-48gb").peak("bf16") == 362.05e12
    assert load_gpu("v100-sxm-32gb").peak("fp16") == 125e12
    assert load_gpu("b200-sxm-180gb").peak("nvfp4") == pytest.approx(18e15 / 2)
    assert load_gpu("b200-sxm-180gb").limit_w == 1000
    assert load_gpu("rtx-4090-24gb").peak("bf16") == 165.2e12
    assert load_gpu("gb200-186gb").peak("bf16") == pytest.approx(180e15 / 72)


def test_tensor_peaks_are_multiples_of_each_other_as_the_cores_are():
    # Dense fp8 and int8 rates are twice the 16-bit rate on every tensor core that has both, Blackwell Ultra's int8 excepted.
    for name in gpu_names():
        peaks = load_gpu(name).peak_flops_per_s
        if "fp8" in peaks:
            assert peaks["fp8"] == pytest.approx(2 * peaks["bf16"], rel=0.02), name


def test_nvlink_rates_are_half_of_the_advertised_both_directions():
    rates = {name: load_link(name).bytes_per_s for name in link_names()}
    assert rates["nvlink2-nvswitch"] == 300e9 / 2
    assert rates["nvlink3-nvswitch"] == 600e9 / 2
    assert rates["nvlink4-nvswitch"] == 900e9 / 2
    assert rates["nvlink5-nvswitch"] == 1800e9 / 2
    assert rates["ib-ndr-400"] == 400e9 / 8


def test_only_hopper_and_later_switches_reduce_in_the_network():
    assert [name for name in link_names() if load_link(name).in_network_reduction] == ["nvlink4-nvswitch", "nvlink5-nvswitch"]


def test_the_h200_host_gives_the_watts_of_mlperf_v41():
    # MLPerf Inference v4.1, NVIDIA 8 x H200 MaxQ, wall meter: idle 2372-2406 W; boards capped at 350 W (gptj) 4723-4775 W,
    # at 500 W (llama2-70b, mixtral) 6153-6280 W. https://github.com/mlcommons/inference_results_v4.1
    host, gpu = load_host("hgx-h200-8"), load_gpu("h200-sxm-141gb")

    def wall_w(board_w: float) -> float:
        return host.host_idle_w + (1 + host.host_load_fraction) * 8 * board_w

    assert wall_w(gpu.idle_w) == pytest.approx(2385, rel=0.02)
    assert wall_w(350) == pytest.approx(4750, rel=0.03)
    assert wall_w(500) == pytest.approx(6215, rel=0.02)


def test_figures_agree_with_the_wattgpu_table():
    table = SHARED / "reference" / "wattgpu_gpu_features.csv"
    if not table.is_file():
        pytest.skip(f"public data not here: {table}")
    seen = 0
    for row in csv.DictReader(table.read_text(encoding="utf-8").splitlines(), delimiter=";"):
        try:
            gpu = load_gpu("h200-nvl-141gb" if row["gpu_db_name"] == "H200 NVL" else row["gpu_type"])
        except UnknownGpuError:
            continue
        seen += 1
        assert gpu.hbm_bytes_per_s == pytest.approx(float(row["memory_bandwidth_gb_s"]) * 1e9, rel=0.03), gpu.name
        assert gpu.peak("bf16") == pytest.approx(float(row["tensor_tflops"]) * 1e12, rel=0.01), gpu.name
        assert gpu.memory_bytes == pytest.approx(float(row["memory_size_gb"]) * 2**30, rel=0.07), gpu.name
        if gpu.name != "h200-nvl-141gb":  # the table has 700 W, the SXM's; NVIDIA's data sheet has 600 W
            assert gpu.limit_w == float(row["thermal_design_power_w"]), gpu.name
        if gpu.name != "l4-24gb":  # the table has 60; 7,424 cores are 58 multiprocessors of 128
            assert gpu.sm_count == float(row["streaming_multiprocessors"]), gpu.name
    assert seen >= 10


@pytest.mark.parametrize(
    ("name", "file"),
    [
        *(("a100-sxm-80gb", "a100_sxm"), ("a100-pcie-80gb", "a100_pcie"), ("a30-24gb", "a30"), ("h100-sxm-80gb", "h100_sxm")),
        *(("h100-pcie-80gb", "h100_pcie"), ("h200-sxm-141gb", "h200_sxm"), ("b200-sxm-180gb", "b200_sxm"), ("gb200-186gb", "gb200")),
        *(("b300-sxm-288gb", "b300_sxm"), ("gb300-288gb", "gb300"), ("l4-24gb", "l4"), ("l40s-48gb", "l40s")),
        ("rtx-pro-6000-96gb", "rtx_pro_6000_server"),
    ],
)
def test_figures_agree_with_the_aiconfigurator_files(name, file):
    path = SHARED / "aiconfigurator" / "time" / f"{file}.yaml"
    if not path.is_file():
        pytest.skip(f"public data not here: {path}")
    theirs = {key: float(value) for key, value in re.findall(r"^  (\w+): ([\d.]+)", path.read_text(encoding="utf-8"), re.MULTILINE)}
    gpu = load_gpu(name)
    assert gpu.hbm_bytes_per_s == pytest.approx(theirs["mem_bw"], rel=0.01)
    assert gpu.memory_bytes == pytest.approx(theirs["mem_capacity"], rel=0.07)  # some are the name on the box
    assert gpu.limit_w == theirs["power"]
    for dtype, key in (("bf16", "bfloat16"), ("fp8", "fp8"), ("int8", "int8"), ("nvfp4", "fp4")):
        if f"{key}_tc_flops" in theirs:
            assert gpu.peak(dtype) == pytest.approx(theirs[f"{key}_tc_flops"], rel=0.005), dtype
    if gpu.architecture != "ada":  # their L40S file has a 400 Gb/s NIC and PCIe 4 like ours; L4 too, but rounded
        assert load_link(gpu.link).bytes_per_s == pytest.approx(theirs["intra_node_bw"], rel=0.02)


def test_idle_watts_are_the_collected_ones():
    table = SHARED / "reference" / "idle_power.csv"
    if not table.is_file():
        pytest.skip(f"public data not here: {table}")
    watts = {row["what"]: float(row["value"]) for row in csv.DictReader(table.read_text(encoding="utf-8").splitlines())}
    assert load_gpu("h100-sxm-80gb").active_idle_w == pytest.approx(watts["H100 (vLLM loaded, idle, P0)"], rel=0.001)
    assert load_gpu("a100-sxm-80gb").active_idle_w == pytest.approx(watts["A100 (vLLM loaded, idle, P0)"], rel=0.001)
    assert load_gpu("a100-sxm-80gb").idle_w == watts["A100-80GB idle"]
    assert load_gpu("b200-sxm-180gb").active_idle_w == watts["B200 active-idle upper bound"]
    assert load_gpu("gb200-186gb").active_idle_w == watts["GB200 active-idle upper bound"]
    assert load_gpu("rtx-3090-24gb").idle_w == watts["RTX 3090 idle"]
    air = watts["8xB200 SR680a V3 air idle"]
    host = load_host("hgx-b200-8")
    assert host.host_idle_w + 1.14 * 8 * load_gpu("b200-sxm-180gb").idle_w == pytest.approx(air, rel=0.01)


# What a board computes in


def test_every_dtype_has_a_peak_on_every_board():
    for name in gpu_names():
        for dtype in DTYPES:
            assert load_gpu(name).peak(dtype) >= load_gpu(name).peak("fp16") / 20


def test_weights_without_cores_of_their_own_are_computed_in_16_bits():
    assert load_gpu("a100-sxm-80gb").compute_dtype("fp8") == "bf16"
    assert load_gpu("h100-sxm-80gb").compute_dtype("mxfp4") == "bf16"
    assert load_gpu("b200-sxm-180gb").compute_dtype("int4") == "bf16"
    assert load_gpu("v100-sxm-32gb").compute_dtype("bf16") == "fp16"
    assert load_gpu("l4-24gb").compute_dtype("int8") == "int8"
    with pytest.raises(InputError, match=r"no dtype 'fp7'.*Allowed: bf16"):
        load_gpu("l4-24gb").peak("fp7")


# Names


@pytest.mark.parametrize(
    ("nvml", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA H200", "h200-sxm-141gb"),
        ("NVIDIA B200", "b200-sxm-180gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm-32gb"),
        (" H100-SXM-80GB ", "h100-sxm-80gb"),
    ],
)
def test_names_of_nvml_and_other_spellings_resolve(nvml, name):
    assert load_gpu(nvml) is load_gpu(name)


def test_no_two_boards_share_an_nvml_name():
    names = [nvml for name in gpu_names() for nvml in load_gpu(name).nvml_names]
    assert len(names) == len(set(names)) >= len(gpu_names())


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("h100", "h100-sxm-80gb, h100-pcie-80gb"),
        ("H100-80GB", "h100-sxm-80gb"),
        ("a100", "a100-sxm-40gb"),
        ("NVIDIA H100 80GB", "h100-sxm-80gb"),
    ],
)
def test_an_unknown_gpu_suggests_near_ones(typed, suggested):
    with pytest.raises(UnknownGpuError) as caught:
        load_gpu(typed)
    assert str(caught.value).startswith(f"no GPU {typed!r} in the catalogue. Did you mean: {suggested}")
    assert str(caught.value).endswith("Add one: docs/how-to/add-a-gpu.md")


# Values


@pytest.mark.parametrize("name", hardware.gpu_names())
def test_a_cluster_is_a_value(name):
    cluster = load_cluster(name, gpus=16)
    twin = pickle.loads(pickle.dumps(cluster))
    assert twin == cluster
    assert hash(twin) == hash(cluster)
    assert copy.deepcopy(cluster) == copy.copy(cluster) == cluster.model_copy() == cluster
    assert load_cluster(name, gpus=16) is cluster
    assert load_cluster(name, gpus=64) != cluster


def test_nothing_can_be_changed_in_place():
    gpu = load_gpu("l4-24gb")
    with pytest.raises(InputError, match="cannot be changed"):
        gpu.limit_w = 3
    with pytest.raises(InputError, match="cannot be changed"):
        gpu.peak_flops_per_s["bf16"] = 3
    with pytest.raises(InputError, match="limit_w = -1 is not allowed"):
        gpu.model_copy(update={"limit_w": -1})


def test_a_power_limit_is_the_users():
    capped = load_gpu("h100-sxm-80gb").with_power_limit(500)
    assert (capped.limit_w, capped.source_of("limit_w").cite) == (500, "given by the user")
    assert capped.source_of("idle_w") == load_gpu("h100-sxm-80gb").source_of("idle_w")
    for watts in (100, 900, float("nan"), -1):
        with pytest.raises(InputError, match=r"power limit = .* not allowed"):
            load_gpu("h100-sxm-80gb").with_power_limit(watts)


# Clusters


def test_a_default_cluster_has_as_many_hosts_as_needed_and_400_gbit_between_them():
    cluster = load_cluster("h100-sxm-80gb", gpus=17)
    assert (cluster.hosts, cluster.gpus, cluster.inter.bytes_per_s) == (3, 24, 400e9 / 8)
    assert load_cluster("h100-sxm-80gb").hosts == 1
    assert load_cluster(cluster) is cluster


def test_an_nvl72_is_trays_of_four_in_one_nvlink_domain_up_to_72_gpus():
    assert load_cluster("gb200-186gb", gpus=72).link_for(72).name == "nvlink5-nvswitch"
    assert load_cluster("gb200-186gb", gpus=76).link_for(76).name == "ib-ndr-400"


def test_a_bridge_joins_pairs_and_pcie_the_rest():
    cluster = load_cluster("h100-nvl-94gb", gpus=8)
    assert [cluster.link_for(size).name for size in (2, 4, 8)] == ["nvlink4-bridge", "pcie5-x16", "pcie5-x16"]


def test_consumer_boards_stage_through_host_memory():
    assert not load_cluster("rtx-4090-24gb").intra.peer_to_peer


def test_a_user_link_replaces_the_hosts_link_and_its_bridges():
    cluster = Cluster(gpu="h100-nvl-94gb", intra=Link(name="own", bytes_per_s=1e9, latency_s=1e-5))
    assert (cluster.pair, cluster.link_for(2).name, cluster.intra.source_of("bytes_per_s").kind) == (None, "own", "given")


# A user's own


def test_a_board_of_few_fields_is_completed_by_the_stated_rule():
    gpu = Gpu(**MINE)
    like = load_gpu("h100-sxm-80gb")
    assert gpu.idle_w == pytest.approx(500 * like.idle_w / like.limit_w)
    assert gpu.source_of("idle_w").kind == "inferred"
    assert "h100-sxm-80gb" in gpu.source_of("idle_w").cite
    assert gpu.source_of("limit_w").cite == "given by the user"
    assert load_cluster(gpu, gpus=8).host_idle_w > 0
    assert Gpu(**MINE) == gpu


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", HOW_TO.read_text(encoding="utf-8"), re.DOTALL)


def test_the_how_to_loads(tmp_path):
    new, based, cluster = (tmp_path / f"{number}.toml" for number in range(3))
    for path, text in zip((new, based, cluster), blocks("toml"), strict=True):
        path.write_text(text, encoding="utf-8")
    gpu = load_gpu(new)
    assert (gpu.name, gpu.source_of("limit_w").kind, gpu.source_of("hbm_bytes_per_s").kind) == ("my-board-96gb", "datasheet", "measured")
    assert gpu.source_of("memory_bytes").cite == f"given by the user in {new}"
    assert load_gpu(str(based)).limit_w == 600
    assert load_gpu(based).source_of("limit_w").kind == "given"
    assert load_gpu(based).source_of("hbm_bytes_per_s") == load_gpu("h100-sxm-80gb").source_of("hbm_bytes_per_s")
    ours = load_cluster(cluster)
    assert (ours.gpus, ours.host_idle_w, ours.inter.name, ours.inter.bytes_per_s, ours.intra.name) == (
        8,
        420,
        "our-ethernet",
        25e9,
        "pcie4-x16",
    )
    assert load_cluster(new, gpus=20).hosts == 3
    assert load_cluster(new, gpus=20).gpu == gpu


def test_the_how_to_runs(capsys):
    for block in blocks("python"):
        exec(compile(block, str(HOW_TO), "exec"), {})
    assert "16 the same share of the power limit" in capsys.readouterr().out


def test_peaks_of_some_formats_go_over_the_base_ones(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('[gpu]\nbase = "h100-sxm-80gb"\npeak_flops_per_s.fp8 = 1500e12\n', encoding="utf-8")
    gpu = load_gpu(path)
    assert (gpu.peak("fp8"), gpu.peak("bf16"), gpu.name) == (1500e12, 989.4e12, "h100-sxm-80gb-modified")
    assert gpu.source_of("peak_flops_per_s.fp8").kind == "given"
    assert gpu.source_of("peak_flops_per_s.bf16").kind == "datasheet"


# Bad input


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"limit_w": float("nan")}, "limit_w = nan is not allowed"),
        ({"limit_w": float("inf")}, "limit_w = inf is not allowed"),
        ({"limit_w": 0}, "limit_w = 0 is not allowed"),
        ({"limit_w": -3}, "limit_w = -3 is not allowed"),
        ({"limit_w": "700"}, "limit_w = '700' is not a number"),
        ({"limit_w": True}, "limit_w = True is not a number"),
        ({"limit_w": None}, "limit_w = None is not a number"),
        ({"memory_bytes": 10**400}, "memory_bytes = 1000"),
        ({"memory_bytes": 1.5}, "memory_bytes = 1.5 is not a whole number"),
        ({"hbm_bytes": 3}, "no field 'hbm_bytes'. Did you mean: hbm_bytes_per_s"),
        ({"zzz": 3}, "no field 'zzz'. It has: sources, name"),
        ({"architecture": "rdna"}, "architecture = 'rdna' is not allowed"),
        ({"architecture": []}, "architecture = \\[\\] is not allowed"),
        ({"peak_flops_per_s": {"fp32": 1e12}}, "peak_flops_per_s.fp32"),
        ({"peak_flops_per_s": {"fp8": 1e12}}, "peak_flops_per_s has fp8; it needs bf16 or fp16"),
        ({"peak_flops_per_s": {"bf16": float("nan")}}, "peak_flops_per_s = nan is not allowed"),
        ({"peak_flops_per_s": 3}, "peak_flops_per_s = 3 is not allowed"),
        ({"idle_w": 400}, "idle_w = 400, active_idle_w = 86, limit_w = 500 do not rise"),
        ({"sources": {"colour": {}}}, "a source for 'colour', which is no number"),
        ({"sources": {"limit_w": {"kind": "guess", "cite": "x", "date": "2025"}}}, "kind = 'guess' is not allowed"),
        ({"sources": {"limit_w": {"kind": "measured", "cite": "x", "date": "May"}}}, "date = 'May' is not allowed"),
        ({"sources": 3}, "sources = 3 is not allowed"),
        ({"name": 7}, "name = 7 is not allowed"),
    ],
)
def test_a_bad_board_is_one_clear_line(fields, text):
    with pytest.raises(InputError, match=text) as caught:
        Gpu(**{**MINE, **fields})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_board_without_its_figures_is_told_all_of_them():
    with pytest.raises(InputError, match=r"missing: memory_bytes, hbm_bytes_per_s, peak_flops_per_s, limit_w$"):
        Gpu(name="x")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"gpu": "h100"}, "no GPU 'h100'"),
        ({}, "no GPU ''"),
        ({"gpu": 5}, "5 is no GPU"),
        ({"gpu": "l4-24gb", "hosts": 0}, "hosts = 0 is not allowed"),
        ({"gpu": "l4-24gb", "hosts": 2, "inter": None}, "2 hosts need an inter link"),
        ({"gpu": "l4-24gb", "intra": "nvlink9"}, "no link 'nvlink9' in the catalogue"),
        ({"gpu": "l4-24gb", "intra": 3}, "intra = 3 is not allowed"),
        ({"gpu": "l4-24gb", "host": "dgx"}, "no host 'dgx' in the catalogue. Did you mean: dgx-a100-8"),
        ({"gpu": "l4-24gb", "host_load_fraction": -1}, "host_load_fraction = -1"),
        ({"gpu": "l4-24gb", "cooling": "air"}, "no field 'cooling'"),
    ],
)
def test_a_bad_cluster_is_one_clear_line(fields, text):
    with pytest.raises(PiePError, match=text) as caught:
        Cluster(**fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("gpus", [0, -1, 1.5, float("nan"), "8", 10**9])
def test_a_bad_number_of_gpus_is_one_clear_line(gpus):
    with pytest.raises(InputError, match="gpus = "):
        load_cluster("l4-24gb", gpus=gpus)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xff\xfe\x00garbage", "cannot be read as TOML: not UTF-8 text"),
        (b"[gpu\n", "cannot be read as TOML: "),
        (b"x = " + b"[" * 50_000, "cannot be read as TOML: "),
        (b"# " + b"x" * (1 << 21), "bytes; a hardware file has at most"),
        (b"", "describes 0 GPUs"),
        (b"gpu = 3\n", "gpu must be a table, not '3'"),
        (b"gpu = [1, 2]\n", "gpu must be a table, not '1'"),
        (b"[[gpu]]\nname = 'a'\n[[gpu]]\nname = 'b'\n", "describes 2 GPUs"),
        (b"[gpu]\nlimit_w = 3\n", "gpu needs a name"),
        (b"[gpu]\nname = 'x'\nbase = 'h100'\n", "no GPU 'h100' in the catalogue. Did you mean"),
        (b"[gpu]\nname = 'x'\nbase = 7\n", "base = 7 is not a name"),
        (b"[gpu]\nbase = 'l4-24gb'\nlimit_w = nan\n", "limit_w = nan is not allowed"),
        (b"[gpu]\nbase = 'l4-24gb'\nlimit_w = 'much'\n", "limit_w = 'much' is not a number"),
        (b"[gpu]\nbase = 'l4-24gb'\ncolour = 'red'\n", "no field 'colour'"),
        (b"[gpu]\nbase = 'l4-24gb'\ncolour = 5\n", "no field 'colour'"),
        (b"[gpu]\nbase = 'l4-24gb'\nsources = 3\n", "sources must be a table"),
        (b"[gpu]\nbase = 'l4-24gb'\nsources.limit_w = 'nowhere'\n", "no source 'nowhere' in [sources] for limit_w"),
        (b"[gpus]\nname = 'x'\n", "no table 'gpus'; allowed: gpu, link, host, cluster, sources"),
    ],
)
def test_a_hostile_file_is_one_clear_line(tmp_path, text, message):
    path = tmp_path / "own.toml"
    path.write_bytes(text)
    with pytest.raises(PiePError, match=re.escape(message)) as caught:
        load_gpu(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cluster]\nhosts = 2\n", "a cluster needs gpu = a name, or one [gpu]"),
        ("[cluster]\ngpu = ['l4']\n", "a cluster needs gpu = a name, or one [gpu]"),
        ("[cluster]\ngpu = 'l4'\n", "no GPU 'l4' in the catalogue"),
        ("[cluster]\ngpu = 'l4-24gb'\nhosts = -2\n", "hosts = -2 is not allowed"),
        ("cluster = 'x'\n", "cluster must be a table"),
        ("[cluster]\ngpu = 'l4-24gb'\n[link]\nname = 'x'\nbase = 'eth-100'\n", "nothing uses link 'x'"),
        ("[cluster]\ngpu = 'l4-24gb'\n[host]\nname = 'x'\nbase = 'pcie4-8'\nintra = 5\n", "intra = 5 is not allowed"),
        ("[cluster]\ngpu = 'l4-24gb'\n[host]\nname = 'x'\n", "missing: gpus_per_host, intra, host_idle_w, host_load_fraction"),
    ],
)
def test_a_bad_cluster_file_is_one_clear_line(tmp_path, text, message):
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PiePError, match=re.escape(message)) as caught:
        load_cluster(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_directory_are_told_apart(tmp_path):
    with pytest.raises(InputError, match=r"^no file "):
        load_gpu(tmp_path / "none.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(InputError, match=r"is not a file$"):
        load_gpu(tmp_path / "folder.toml")
    with pytest.raises(InputError, match=r"cannot be read as TOML|no file"):
        checks.read_toml("a\0b.toml")


# Speed


def test_loading_a_board_takes_milliseconds():
    catalogue.bundled("gpu")  # one parse of the file per process
    load_gpu("h100-sxm-80gb")
    start = time.perf_counter()
    for name in gpu_names():
        Gpu(**catalogue.find("gpu", name))
    assert (time.perf_counter() - start) / len(gpu_names()) < 0.005


def test_a_host_needs_its_figures():
    with pytest.raises(InputError, match="missing: gpus_per_host"):
        Host(name="x")
