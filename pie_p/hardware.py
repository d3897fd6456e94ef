"""Gpu, Link, Host, Cluster: what the requests run on, every number with its source.

The figures live in `data/gpus.toml`, `links.toml` and `hosts.toml`; the last section of this file loads them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_args

from pydantic import BeforeValidator, Field, model_validator

from pie_p import catalogue
from pie_p.catalogue import Entry
from pie_p.checks import Bytes, Count, Flag, Fraction, Frozen, Positive, Text
from pie_p.errors import InputError, did_you_mean
from pie_p.quantities import as_float, as_int, shown
from pie_p.sources import GIVEN, Source, Sourced
from pie_p.units import DTYPES, Dtype

Architecture = Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell", "other"]
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)

# The format a board multiplies in when weights are stored in a dtype: the first of these it has tensor cores for. Volta has no bf16;
# Ampere no fp8; int4 weights (AWQ, GPTQ) are unpacked to 16 bits everywhere; mxfp4 and nvfp4 need Blackwell's fp4 cores.
COMPUTES_IN: dict[Dtype, tuple[Dtype, ...]] = {
    "bf16": ("bf16", "fp16"),
    "fp16": ("fp16", "bf16"),
    "fp8": ("fp8", "bf16", "fp16"),
    "int8": ("int8", "bf16", "fp16"),
    "int4": ("bf16", "fp16"),
    "mxfp4": ("mxfp4", "bf16", "fp16"),
    "nvfp4": ("nvfp4", "bf16", "fp16"),
}

# Boards whose measured idle figures stand for an architecture: a board without its own draws the same share of its power limit.
IDLES_LIKE: dict[Architecture, str] = {
    "volta": "a100-sxm-80gb",
    "turing": "l4-24gb",
    "ampere": "a100-sxm-80gb",
    "ada": "l40s-48gb",
    "hopper": "h100-sxm-80gb",
    "blackwell": "b200-sxm-180gb",
    "other": "h100-sxm-80gb",
}
USUAL_HOST: dict[Architecture, str] = dict.fromkeys(ARCHITECTURES, "pcie5-8") | {"ampere": "pcie4-8", "ada": "pcie4-8", "turing": "pcie3-8"}


S = TypeVar("S", "Gpu", "Link", "Host", "Cluster")
N = TypeVar("N", "Gpu", "Host")


class Gpu(Sourced):
    """One accelerator.

    A user's own needs `name`, `memory_bytes`, `hbm_bytes_per_s`, `peak_flops_per_s` and `limit_w`; the rest is inferred from the boards
    of the same `architecture`, and its source says so.

    >>> mine = Gpu(name="mine", memory_bytes=96e9, hbm_bytes_per_s=4e12, peak_flops_per_s={"bf16": 500e12}, limit_w=500)
    >>> round(mine.active_idle_w), mine.source_of("active_idle_w").kind
    (86, 'inferred')
    """

    NUMBERS = ("memory_bytes", "hbm_bytes_per_s", "peak_flops_per_s", "limit_w", "idle_w", "active_idle_w", "sm_count")

    name: Text
    architecture: Architecture = "other"
    memory_bytes: Bytes  # usable, as NVML reports it [B]
    hbm_bytes_per_s: Positive  # [B/s]
    peak_flops_per_s: Annotated[dict[Dtype, Positive], Frozen]  # dense tensor-core peaks the board has, by compute format [FLOP/s]
    limit_w: Positive  # board power limit [W]
    idle_w: Positive = Field(default=...)  # no context [W]; inferred when not given, like the next two
    active_idle_w: Positive = Field(default=...)  # context loaded, clocks up, no kernel running [W]
    sm_count: Count = Field(default=...)  # [-]
    link: Text = Field(default=...)  # intra-host link of the common host
    host: Text = Field(default=...)  # the common host for the board
    nvml_names: tuple[Text, ...] = Field(default=(), repr=False)  # what nvmlDeviceGetName calls it

    @classmethod
    def _derive(cls, data: Entry, sources: Entry) -> None:
        architecture = data.get("architecture", "other")
        if architecture not in ARCHITECTURES:  # reported with the field
            architecture = "other"
        hosts, usual = catalogue.bundled("host"), USUAL_HOST[architecture]
        host = data.setdefault("host", usual)
        data.setdefault("link", hosts[host if isinstance(host, str) and host in hosts else usual]["intra"])
        missing = {"idle_w", "active_idle_w", "sm_count"} - data.keys()
        if missing:
            _infer(missing, data, sources, like=load_gpu(IDLES_LIKE[architecture]))

    @model_validator(mode="after")
    def _plausible(self) -> Gpu:
        if not {"bf16", "fp16"} & self.peak_flops_per_s.keys():
            raise InputError(f"peak_flops_per_s has {', '.join(self.peak_flops_per_s) or 'nothing'}; it needs bf16 or fp16")
        if not self.idle_w <= self.active_idle_w < self.limit_w:
            watts = f"idle_w = {self.idle_w:g}, active_idle_w = {self.active_idle_w:g}, limit_w = {self.limit_w:g}"
            raise InputError(f"{watts} do not rise; idle_w <= active_idle_w < limit_w must hold")
        return self

    def compute_dtype(self, dtype: Dtype) -> Dtype:
        """The format the board multiplies in when weights are stored in `dtype`.

        >>> tuple(load_gpu("a100-sxm-80gb").compute_dtype(dtype) for dtype in ("bf16", "fp8", "int8", "int4", "nvfp4"))
        ('bf16', 'bf16', 'int8', 'bf16', 'bf16')
        >>> load_gpu("v100-sxm-32gb").compute_dtype("bf16"), load_gpu("b200-sxm-180gb").compute_dtype("nvfp4")
        ('fp16', 'nvfp4')
        """
        if dtype not in DTYPES:
            raise InputError(f"no dtype {str(dtype)[:80]!r}.{did_you_mean(str(dtype)[:80], DTYPES)} Allowed: {', '.join(DTYPES)}")
        return next(own for own in COMPUTES_IN[dtype] if own in self.peak_flops_per_s)

    def peak(self, dtype: Dtype) -> float:
        """Dense peak of the format the board computes in when weights are stored in `dtype` [FLOP/s].

        >>> load_gpu("h100-sxm-80gb").peak("fp8") / 1e12
        1978.9
        """
        return self.peak_flops_per_s[self.compute_dtype(dtype)]

    def with_power_limit(self, watts: float) -> Gpu:
        """The same board capped at `watts` [W].

        >>> load_gpu("h100-sxm-80gb").with_power_limit(500).limit_w
        500.0
        """
        limit_w, most = as_float("power limit", watts), 1.2 * self.limit_w
        if not self.active_idle_w < limit_w <= most:
            room = f"above its active idle of {self.active_idle_w:g} W and at most {most:g} W"
            raise InputError(f"power limit = {limit_w:g} W is not allowed for {self.name}; give one {room}")
        return self.model_copy(update={"limit_w": limit_w, "sources": {**self.sources, "limit_w": GIVEN}})


def _infer(missing: set[str], data: Entry, sources: Entry, *, like: Gpu) -> None:
    """Idle watts as a share of the limit, multiprocessors as a share of the 16-bit peak, both as a board of the same kind has them."""
    limit_w, peaks = as_float("limit_w", data.get("limit_w", like.limit_w), above=True), data.get("peak_flops_per_s")
    for name in sorted(missing):
        if name == "sm_count":
            peak = peaks.get("bf16", peaks.get("fp16", 0.0)) if isinstance(peaks, Mapping) else 0.0
            data[name] = max(1, round(like.sm_count * as_float("peak_flops_per_s", peak) / like.peak("bf16")))
            rule = f"16-bit peak over that of one multiprocessor of {like.name}"
        else:
            data[name] = getattr(like, name) / like.limit_w * limit_w
            rule = f"the same share of the power limit as {like.name}: {getattr(like, name):g} of {like.limit_w:g} W"
        sources[name] = Source(kind="inferred", cite=rule, date=like.source_of(name).date)


class Link(Sourced):
    """How GPUs are joined, inside a host or between hosts."""

    NUMBERS = ("bytes_per_s", "latency_s")

    name: Text
    bytes_per_s: Positive  # per GPU, one direction [B/s]
    latency_s: Positive  # one hop of a small message, launch excluded [s]
    switched: Flag = False  # every pair at full bandwidth (NVSwitch, IB fabric)
    in_network_reduction: Flag = False  # NVLink SHARP
    peer_to_peer: Flag = True  # PCIe without it stages through host memory


def _as_link(value: object) -> object:
    return load_link(value) if isinstance(value, str) else value


LinkOrName = Annotated[Link, BeforeValidator(_as_link)]
HOST_NUMBERS = ("gpus_per_host", "host_idle_w", "host_load_fraction", "pair_gpus", "domain_hosts")


class Host(Sourced):
    """One server without its GPU boards. `wall W = host_idle_w + (1 + host_load_fraction) * board W`."""

    NUMBERS = HOST_NUMBERS

    name: Text
    gpus_per_host: Count
    intra: LinkOrName
    inter: LinkOrName | None = None  # between hosts; 400 Gb/s per GPU when a cluster needs one and nothing is said
    pair: LinkOrName | None = None  # a faster bridge that joins only `pair_gpus` neighbours
    pair_gpus: Count = 1
    domain_hosts: Count = 1  # hosts whose GPUs share the intra link (NVL72: 18 trays)
    host_idle_w: Positive  # CPU, memory, fans, NICs without GPU boards, at the wall [W]
    host_load_fraction: Fraction  # further wall watts per GPU-board watt: fans, PSU and voltage conversion [-]


class Cluster(Sourced):
    """Equal hosts with equal GPUs. `gpu`, `intra`, `inter` may be names; `host` names the host that fills what is not given.

    >>> Cluster(gpu="h100-sxm-80gb", hosts=2).gpus
    16
    """

    NUMBERS = (*HOST_NUMBERS, "hosts")

    name: Text = Field(default=...)
    gpu: Gpu
    gpus_per_host: Count = Field(default=...)
    hosts: Count = 1
    intra: LinkOrName = Field(default=...)
    inter: LinkOrName | None = None  # required when hosts > 1
    pair: LinkOrName | None = None
    pair_gpus: Count = 1
    domain_hosts: Count = 1
    host_idle_w: Positive = Field(default=...)  # one host's CPU, memory, fans, NICs without GPU boards, at the wall [W]
    host_load_fraction: Fraction = Field(default=...)  # further wall watts per GPU-board watt (fans, PSU, voltage conversion) [-]

    @classmethod
    def _derive(cls, data: Entry, sources: Entry) -> None:
        named = data.pop("host", None)
        gpu = data["gpu"] = load_gpu(data.get("gpu", ""))
        needed = {"intra", "gpus_per_host", "host_idle_w", "host_load_fraction"} - data.keys()
        if needed or named is not None:
            _fill_from(load_host(named if named is not None else gpu.host), data, sources)
        hosts = as_int("hosts", data.get("hosts", 1))
        data.setdefault("name", _cluster_name("own host", gpu, hosts))
        if hosts > 1:
            data.setdefault("inter", DEFAULT_INTER)

    @model_validator(mode="after")
    def _joined(self) -> Cluster:
        if self.hosts > 1 and self.inter is None:
            raise InputError(f"{self.hosts} hosts need an inter link; known: {', '.join(link_names())}")
        return self

    @property
    def gpus(self) -> int:
        """GPUs of all hosts [-]."""
        return self.gpus_per_host * self.hosts

    def link_for(self, group_size: int) -> Link:
        """The slowest link inside a group of that many neighbouring ranks.

        >>> cluster = load_cluster("h100-nvl-94gb", gpus=16)
        >>> tuple(cluster.link_for(size).name for size in (2, 4, 16))
        ('nvlink4-bridge', 'pcie5-x16', 'ib-ndr-400')
        """
        if self.pair is not None and group_size <= self.pair_gpus:
            return self.pair
        return self.intra if group_size <= self.gpus_per_host or self.inter is None else self.inter


DEFAULT_INTER = "ib-ndr-400"


def _fill_from(host: Host, data: Entry, sources: Entry) -> None:
    """What a cluster does not say, its host does; an own intra link leaves the host's bridges and domain out."""
    own_intra = "intra" in data
    hosts = as_int("hosts", data.get("hosts", 1))
    data.setdefault("name", _cluster_name(host.name, data["gpu"], hosts))
    for field in ("intra", "gpus_per_host", "host_idle_w", "host_load_fraction", "pair", "pair_gpus", "domain_hosts"):
        unstated = field in HOST_NUMBERS and field not in host.sources
        if field in data or unstated or (own_intra and field in ("pair", "pair_gpus", "domain_hosts")):
            continue
        data[field] = getattr(host, field)
        if field in HOST_NUMBERS:
            sources[field] = host.source_of(field)
    if hosts > 1:
        data.setdefault("inter", data["intra"] if hosts <= data.get("domain_hosts", 1) else host.inter or DEFAULT_INTER)


def _cluster_name(host: str, gpu: Gpu, hosts: int) -> str:
    return f"{host} of {gpu.name}" if hosts == 1 else f"{hosts} x {host} of {gpu.name}"


# Loading


def load_gpu(gpu: str | Path | Gpu) -> Gpu:
    """A GPU by catalogue name, by the name NVML gives it, or from a TOML file with a `[gpu]` table.

    >>> load_gpu("NVIDIA H100 80GB HBM3").name
    'h100-sxm-80gb'
    """
    if isinstance(gpu, Gpu):
        return gpu
    if _is_file(gpu):
        boards = catalogue.from_file(gpu)["gpu"]
        if len(boards) != 1:
            raise InputError(f"{gpu} describes {len(boards)} GPUs; one [gpu] is needed")
        return _from_entry(Gpu, next(iter(boards.values())), gpu)
    return _bundled_gpu(catalogue.find("gpu", _name(gpu, "GPU"))["name"])


def load_link(link: str | Link) -> Link:
    """A link by catalogue name.

    >>> load_link("nvlink4-nvswitch").bytes_per_s
    450000000000.0
    """
    return link if isinstance(link, Link) else _bundled_link(catalogue.find("link", _name(link, "link"))["name"])


def load_host(host: str | Host) -> Host:
    """A host by catalogue name."""
    return host if isinstance(host, Host) else _bundled_host(catalogue.find("host", _name(host, "host"))["name"])


def load_cluster(cluster: str | Path | Gpu | Cluster, gpus: int | None = None) -> Cluster:
    """A cluster as it is, from a TOML file, or the common hosts of a GPU, as many as `gpus` need.

    >>> load_cluster("h100-sxm-80gb", gpus=16).hosts
    2
    """
    if isinstance(cluster, Cluster):
        return cluster
    if not isinstance(cluster, Gpu) and _is_file(cluster):
        return _cluster_from_file(cluster, gpus)
    return default_cluster(load_gpu(cluster), 1 if gpus is None else gpus)


def default_cluster(gpu: Gpu, gpus: int = 1) -> Cluster:
    """The board's common host, as many as `gpus` need, with 400 Gb/s per GPU between them.

    >>> default_cluster(load_gpu("gb200-186gb"), 8).inter.name  # trays of 4 inside one NVLink domain of 72
    'nvlink5-nvswitch'
    """
    return _default_cluster(gpu, math.ceil(as_int("gpus", gpus, most=10**6) / load_host(gpu.host).gpus_per_host))


def gpu_names() -> tuple[str, ...]:
    """Every GPU of the catalogue."""
    return tuple(catalogue.bundled("gpu"))


def link_names() -> tuple[str, ...]:
    """Every link of the catalogue."""
    return tuple(catalogue.bundled("link"))


def host_names() -> tuple[str, ...]:
    """Every host of the catalogue."""
    return tuple(catalogue.bundled("host"))


@cache
def _bundled_gpu(name: str) -> Gpu:
    return Gpu(**catalogue.find("gpu", name))


@cache
def _bundled_link(name: str) -> Link:
    return Link(**catalogue.find("link", name))


@cache
def _bundled_host(name: str) -> Host:
    return Host(**catalogue.find("host", name))


@lru_cache(maxsize=1024)
def _default_cluster(gpu: Gpu, hosts: int) -> Cluster:
    fields: Entry = {"gpu": gpu, "hosts": hosts}  # the host fills the rest
    return Cluster(**fields)


def _is_file(value: object) -> bool:
    return isinstance(value, Path) or (isinstance(value, str) and value.lower().endswith(".toml"))


def _name(value: object, kind: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{shown(value)} is no {kind}; give a name of the catalogue or a {kind.capitalize()}")
    return value


def _from_entry(noun: type[S], entry: Entry, path: str | Path) -> S:
    try:
        return noun(**entry)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _cluster_from_file(path: str | Path, gpus: int | None) -> Cluster:
    """Names in the file stand before names of the catalogue."""
    tables = catalogue.from_file(path)
    entry: Entry = tables["cluster"] or {}
    links = {name: _from_entry(Link, link, path) for name, link in tables["link"].items()}
    users = [*tables["host"].values(), entry]
    idle = links.keys() - {user.get(field) for user in users for field in ("intra", "inter", "pair") if isinstance(user.get(field), str)}
    if idle:
        raise InputError(f"{path}: nothing uses link {sorted(idle)[0]!r}; name it as intra or inter of [host] or [cluster]")
    for user in users:
        user.update({f: links[user[f]] for f in ("intra", "inter", "pair") if isinstance(user.get(f), str) and user[f] in links})
    hosts = {name: _from_entry(Host, host, path) for name, host in tables["host"].items()}
    boards = {name: _from_entry(Gpu, board, path) for name, board in tables["gpu"].items()}
    gpu = load_gpu(_pick(entry.get("gpu"), boards, f"{path}: a cluster needs gpu = a name, or one [gpu]"))
    host = load_host(_pick(entry.get("host", gpu.host if len(hosts) != 1 else None), hosts, f"{path}: a cluster needs host = a name"))
    per_host = as_int("gpus_per_host", entry.get("gpus_per_host", host.gpus_per_host))
    wanted = {"hosts": math.ceil(as_int("gpus", gpus, most=10**6) / per_host)} if gpus is not None else {}
    return _from_entry(Cluster, {**wanted, **entry, "gpu": gpu, "host": host}, path)


def _pick(wanted: object, own: Mapping[str, N], otherwise: str) -> str | N:
    if isinstance(wanted, str):
        return own.get(wanted, wanted)
    if wanted is not None or len(own) != 1:
        raise InputError(f"{otherwise}; got {str(wanted)[:60]!r} and {len(own)} of its own")
    return next(iter(own.values()))
