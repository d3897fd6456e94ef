"""Ranks: processes that meet in collectives, started here on one host or by `torchrun` on several. None of them can hang for ever.

`run_ranks(body, 4)` starts four processes, each of which joins a group and runs `body(rank)`; what the bodies return comes back in the
order of the ranks. A rank that dies, fails or outlasts its time ends all of them, and the error names the rank that was the cause, not
the ones that lost their partner. Under `torchrun` the same body runs inside `with joined() as rank`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pie_p.errors import DeviceError, InputError
from pie_p.extras import require
from pie_p.profiling.processes import fresh_context

Backend = Literal["gloo", "nccl"]
Result = TypeVar("Result")
GRACE_S: Final = 3.0  # after the first failure, for the others to tell what they saw
COLLECTIVE_TIMEOUT_S: Final = 60.0
MOST_RANKS: Final = 1024  # of a group; on one host they are processes, and a slip of the pen must not start a million


class RankError(DeviceError):
    """A rank died, failed or did not answer in time; all others were ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One of the processes that meet."""

    index: int
    size: int
    backend: Backend
    device: str  # "cpu", "cuda:0"

    def gather(self, value: Result) -> list[Result]:
        """Every rank's value, on every rank, in the order of the ranks."""
        gathered: list[Any] = [None] * self.size
        torch_distributed().all_gather_object(gathered, value)
        return gathered

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        torch_distributed().barrier()


def torch_distributed() -> Any:
    """`torch.distributed`."""
    return require("torch.distributed", extra="profile")


@contextlib.contextmanager
def joined(
    *,
    index: int | None = None,
    size: int | None = None,
    backend: Backend = "gloo",
    meet_at: str = "env://",
    timeout_s: float = COLLECTIVE_TIMEOUT_S,
) -> Iterator[Rank]:
    """Join a group, and leave it at the end. Without index and size they are `torchrun`'s (RANK, WORLD_SIZE, LOCAL_RANK).

    Raises:
        InputError: neither given nor set by a launcher.
    """
    index = _launched("RANK") if index is None else index
    size = _launched("WORLD_SIZE") if size is None else size
    torch, distributed = require("torch", extra="profile"), torch_distributed()
    device = "cpu"
    if backend == "nccl":
        device = f"cuda:{int(os.environ.get('LOCAL_RANK', index)) % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
    distributed.init_process_group(backend, init_method=meet_at, rank=index, world_size=size, timeout=timedelta(seconds=timeout_s))
    try:
        yield Rank(index=index, size=size, backend=backend, device=device)
    finally:
        distributed.destroy_process_group()


def _launched(name: str) -> int:
    try:
        return int(os.environ[name])
    except KeyError:
        raise InputError(f"{name} is not set: start this with torchrun, or on one host through run_ranks") from None


def run_ranks(
    body: Callable[[Rank], Result],
    count: int,
    *,
    backend: Backend = "gloo",
    timeout_s: float = 300.0,
    collective_timeout_s: float = COLLECTIVE_TIMEOUT_S,
) -> list[Result]:
    """Run `body` on `count` ranks of this host; their results in order.

    Args:
        body: picklable: a function of a module, or a `partial` of one.
        count: ranks.
        backend: gloo on the CPU, nccl on GPUs.
        timeout_s: for everything together [s].
        collective_timeout_s: for any single collective [s].

    Raises:
        RankError: naming the first rank that died, failed or did not answer.
    """
    if not 1 <= count <= MOST_RANKS:
        raise InputError(f"{count} ranks are not possible; give 1 to {MOST_RANKS}")
    context = fresh_context()
    with tempfile.TemporaryDirectory(prefix="pie_p_ranks_") as folder:
        meet_at = (Path(folder) / "meet").as_uri()
        processes: list[BaseProcess] = []
        pipes: list[Connection] = []
        for index in range(count):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (theirs, body, index, count, backend, meet_at, collective_timeout_s)
            processes.append(context.Process(target=_rank, args=arguments, daemon=True, name=f"rank-{index}"))
            pipes.append(ours)
            processes[-1].start()
            theirs.close()
        try:
            return _collect(pipes, processes, timeout_s)
        finally:
            _end(processes)


def _rank(
    pipe: Connection, body: Callable[[Rank], Any], index: int, size: int, backend: Backend, meet_at: str, collective_timeout_s: float
) -> None:
    """Body of a rank's process."""
    threading.Thread(target=_leave_with_parent, daemon=True, name="leave-with-parent").start()
    if backend == "gloo":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one host: no name service, no other network
    try:
        with joined(index=index, size=size, backend=backend, meet_at=meet_at, timeout_s=collective_timeout_s) as rank:
            pipe.send(("done", body(rank)))
    except Exception as error:  # noqa: BLE001 - whatever happened is raised in the process that asked
        pipe.send(("failed", f"{type(error).__name__}: {error}"))


def _leave_with_parent() -> None:
    """End this rank when the process that started it is gone: a killed campaign must not measure on, and write, beside the next one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _collect(pipes: Sequence[Connection], processes: Sequence[BaseProcess], timeout_s: float) -> list[Any]:
    """Results of all ranks; at the first failure the others get a moment, then the cause is named."""
    results: dict[int, Any] = {}
    faults: dict[int, str] = {}
    end_s = time.monotonic() + timeout_s
    open_pipes = {pipe: index for index, pipe in enumerate(pipes)}
    while open_pipes and time.monotonic() < end_s:
        for pipe in wait(list(open_pipes), timeout=max(0.0, end_s - time.monotonic())):
            assert isinstance(pipe, Connection)
            index = open_pipes.pop(pipe)
            try:
                outcome, value = pipe.recv()
            except EOFError:
                processes[index].join(timeout=GRACE_S)
                outcome, value = "died", f"died (exit code {processes[index].exitcode})"
            if outcome == "done":
                results[index] = value
            else:
                faults[index] = value
                end_s = min(end_s, time.monotonic() + GRACE_S)
    if faults:
        raise RankError(_cause(faults, len(pipes)))
    if open_pipes:
        missing = ", ".join(str(index) for index in sorted(open_pipes.values()))
        raise RankError(f"rank {missing} of {len(pipes)} did not answer in {timeout_s:.0f} s; all were ended. Look there, or allow more")
    return [results[index] for index in range(len(pipes))]


def _cause(faults: dict[int, str], count: int) -> str:
    """The rank to blame: one that died before one that failed by itself before one that lost its partner."""

    def innocence(item: tuple[int, str]) -> tuple[int, int]:
        lost_partner = any(word in item[1] for word in ("onnection", "imed out", "imeout", "peer"))
        return (0 if item[1].startswith("died") else 2 if lost_partner else 1, item[0])

    index, text = min(faults.items(), key=innocence)
    return f"rank {index} of {count} {text if text.startswith('died') else f'failed: {text}'}; all others were ended"


def _end(processes: Sequence[BaseProcess]) -> None:
    """Let finished processes go, end the others, wait for all."""
    for process in processes:
        process.join(timeout=0.5)
        if process.is_alive():
            process.kill()
    for process in processes:
        process.join()
