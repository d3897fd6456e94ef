"""Kernels on the CPU: every kind runs, and what runs is the operator that was counted."""

from collections.abc import Iterator

import numpy as np
import pytest

from pie_p import operators
from pie_p.errors import DeviceError
from pie_p.operators import COLLECTIVES, KINDS, Operator
from pie_p.profiling.clocks import MonotonicClock
from pie_p.profiling.design import Budget, choose
from pie_p.profiling.kernels import KernelWorkload, cold_copies
from pie_p.profiling.measurement import Bench, Procedure, measure
from pie_p.profiling.meters import AbsentMeter
from pie_p.profiling.sampling import NoSampler
from pie_p.profiling.torch_kernels import KERNELS, UnsupportedKernelError, make_call

torch = pytest.importorskip("torch", reason="torch is not installed")
SMALL = Budget(most_flops=2e8, most_bytes=2e7)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine make seconds of microseconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def counted_flops(operator: Operator) -> int:
    """What torch itself counts for the operator's call [FLOP]."""
    from torch.utils.flop_counter import FlopCounterMode

    call = make_call(operator, "cpu")
    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


def test_every_kind_of_one_rank_has_a_kernel() -> None:
    assert set(KERNELS) == set(KINDS) - COLLECTIVES


@pytest.mark.parametrize("kind", sorted(KERNELS))
def test_every_kind_runs_and_takes_time(kind: str) -> None:
    slow = {
        "embedding": Budget(most_flops=2e8, most_bytes=1e8),
        "scan": Budget(most_flops=2e7, most_bytes=4e6),
    }  # 32768 rows; 16-bit on a CPU
    for operator in choose(kind, 3, budget=slow.get(kind, SMALL)):  # type: ignore[arg-type]
        workload = KernelWorkload(operator, "cpu")
        assert workload.run(2) > 0
        assert np.all(workload.time_each(2) > 0)


@pytest.mark.parametrize("kind", ["linear", "router", "lm_head"])
def test_dense_products_do_the_flop_that_are_counted(kind: str) -> None:
    for operator in choose(kind, 4, budget=SMALL):  # type: ignore[arg-type]
        assert counted_flops(operator) == operator.flops


def test_experts_do_the_flop_that_are_counted() -> None:
    operator = operators.experts("e", tokens=64, width=128, intermediate=96, total_experts=8, local_experts=8, top_k=2, gated=True)
    assert counted_flops(operator) == operator.flops


def test_attention_attends_to_what_is_counted() -> None:
    decode = operators.attention_decode("a", sequences=2, context_tokens=100, heads=8, kv_heads=2, head_dim=64)
    out = make_call(decode, "cpu")()
    assert out.shape == (2, 8, 1, 64)  # type: ignore[attr-defined]
    prefill = operators.attention_prefill("a", sequences=2, new_tokens=16, cached_tokens=48, heads=8, kv_heads=2, head_dim=64)
    assert make_call(prefill, "cpu")().shape == (2, 8, 16, 64)  # type: ignore[attr-defined]
    assert make_call(prefill._replace(context_tokens=8.5), "cpu")().shape == (2, 8, 16, 64)  # type: ignore[attr-defined]


def test_a_scan_in_chunks_is_the_recurrence() -> None:
    """Decay 1: the chunked form must equal a running sum of outer products, read out token by token."""
    generator = torch.Generator().manual_seed(0)
    inputs, write, read = (torch.randn(1, 1, 8, width, generator=generator) for width in (4, 6, 6))
    chunked = ((read @ write.transpose(-1, -2)) * torch.ones(8, 8).tril()) @ inputs
    state, steps = torch.zeros(4, 6), []
    for token in range(8):
        state = state + torch.outer(inputs[0, 0, token], write[0, 0, token])
        steps.append(state @ read[0, 0, token])
    assert torch.allclose(chunked[0, 0], torch.stack(steps), atol=1e-5)


def test_a_product_with_sixteen_times_the_rows_takes_longer() -> None:
    few, many = (KernelWorkload(operators.linear("l", tokens=tokens, in_features=512, out_features=512)) for tokens in (32, 2048))
    for workload in (few, many):
        workload.run(3)
    assert np.median(many.time_each(5)) > np.median(few.time_each(5))


def test_cold_copies_fill_the_cache_twice() -> None:
    small = operators.linear("l", tokens=1, in_features=1024, out_features=1024)
    copies = cold_copies(small, cache_bytes=50e6, most=1000)
    assert (copies - 1) * small.hbm_bytes < 100e6 <= copies * small.hbm_bytes
    assert cold_copies(small._replace(hbm_bytes=1e9), cache_bytes=50e6) == 1


def test_copies_of_experts_that_are_stored_and_hardly_read_stay_within_memory() -> None:
    many = operators.experts("e", tokens=1, width=4096, intermediate=2048, total_experts=256, local_experts=256, top_k=1, gated=True)
    assert cold_copies(many, cache_bytes=50e6) == 1  # 12.9 GB are stored, 50 MB are read


def test_what_torch_cannot_do_is_an_error_that_says_what_it_can() -> None:
    with pytest.raises(UnsupportedKernelError, match="torch has no int4 matrix product on cpu; allowed: bf16, fp16, int8"):
        KernelWorkload(operators.linear("l", tokens=1, in_features=64, out_features=64, dtype="int4"))
    with pytest.raises(DeviceError, match="no kernel of kind 'all_reduce' runs on one rank"):
        make_call(operators.all_reduce("r", tokens=1, width=64, group_size=2), "cpu")


def test_a_kernel_is_measured_on_the_real_clock_without_a_meter() -> None:
    bench = Bench(clock=MonotonicClock(), meter=AbsentMeter(), sampler=NoSampler(), timing=None)
    quick = Procedure(cool_down_s=0.0, warm_up_s=0.02, enough_s=0.05, longest_pause_s=0.0, most_spread=100.0)
    measured = measure(KernelWorkload(operators.norm("n", tokens=64, width=1024)), bench, quick)
    assert measured.rejected_because == ""
    assert 1e-6 < measured.time_s < 5.0
    assert measured.power_w is None
    assert measured.environment.torch == torch.__version__


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that torch can use")
@pytest.mark.parametrize("kind", sorted(KERNELS))
def test_every_kind_runs_on_cuda_by_graph_replay(kind: str) -> None:
    for operator in choose(kind, 3, budget=Budget(most_flops=1e12, most_bytes=1e9)):  # type: ignore[arg-type]
        workload = KernelWorkload(operator, "cuda:0")
        assert workload.run(35) > 0
        assert np.all(workload.time_each(2) > 0)
