"""Every operator kind of one rank as a torch call: the tensors it needs, and the function to be timed.

Sizes come from the `Operator` that the predictor counts, so a measured row and a predicted row speak of the same thing. Values are random
normal: zeros would draw less power than any LLM does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pie_p.errors import DeviceError
from pie_p.extras import require
from pie_p.operators import ACTIVATION_BYTES, Kind, Operator
from pie_p.profiling.design import EMBEDDING_ROWS
from pie_p.units import Dtype

Call = Callable[[], object]
TORCH_DTYPES: Final[dict[Dtype, str]] = {"bf16": "bfloat16", "fp16": "float16"}


class UnsupportedKernelError(DeviceError):
    """This torch on this device has no such kernel; the point is left out with this reason."""


def make_call(operator: Operator, device: str) -> Call:
    """Tensors on `device` ("cpu", "cuda:0") and the call on them; every call of `make_call` has tensors of its own.

    Raises:
        UnsupportedKernelError: the kind or dtype does not run there.
    """
    if operator.kind not in KERNELS:
        raise UnsupportedKernelError(f"no kernel of kind {operator.kind!r} runs on one rank; kinds: {', '.join(KERNELS)}")
    torch = require("torch", extra="profile")
    return KERNELS[operator.kind](torch, operator, device)


def _normal(torch: Any, device: str, *shape: float, dtype: str = "bfloat16") -> Any:
    return torch.randn(*(max(1, round(side)) for side in shape), device=device, dtype=getattr(torch, dtype))


def _dense(torch: Any, operator: Operator, device: str) -> Call:
    """(tokens, in) @ (in, out) in the operator's dtype."""
    tokens, width, out = round(operator.tokens), round(operator.in_features), round(operator.out_features)
    if operator.dtype in TORCH_DTYPES:
        dtype = TORCH_DTYPES[operator.dtype]
        rows, weights = _normal(torch, device, tokens, width, dtype=dtype), _normal(torch, device, out, width, dtype=dtype)
        return lambda: torch.nn.functional.linear(rows, weights)
    if operator.dtype == "fp8" and device.startswith("cuda"):
        eighth = torch.float8_e4m3fn
        rows, weights = _normal(torch, device, tokens, width).to(eighth), _normal(torch, device, out, width).to(eighth)
        one = torch.ones((), device=device, dtype=torch.float32)
        return lambda: torch._scaled_mm(rows, weights.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    if operator.dtype == "int8":
        rows = torch.randint(-127, 128, (max(tokens, 32), width), device=device, dtype=torch.int8)  # cuBLAS wants over 16 rows
        weights = torch.randint(-127, 128, (out, width), device=device, dtype=torch.int8)
        return lambda: torch._int_mm(rows, weights.t())
    raise UnsupportedKernelError(f"torch has no {operator.dtype} matrix product on {device}; allowed: bf16, fp16, int8, and fp8 on CUDA")


def _attention_prefill(torch: Any, operator: Operator, device: str) -> Call:
    sequences, new, heads, kv_heads, width = _attention_sizes(operator)
    cached = round(operator.context_tokens - (operator.tokens + 1) / 2)
    if cached < 0:
        raise UnsupportedKernelError(f"mean context {operator.context_tokens:g} of {new} new tokens means a sliding window: not measured")
    queries = _normal(torch, device, sequences, heads, new, width)
    keys, values = (_normal(torch, device, sequences, kv_heads, cached + new, width) for _ in range(2))
    attend = torch.nn.functional.scaled_dot_product_attention
    if cached == 0:
        return lambda: attend(queries, keys, values, is_causal=True, enable_gqa=heads != kv_heads)
    mask = require("torch.nn.attention.bias", extra="profile").causal_lower_right(new, cached + new)
    if heads != kv_heads:  # the masked path takes no grouped heads; expanding them is a view of the same bytes
        keys, values = (_expand_heads(part, heads // kv_heads) for part in (keys, values))
    return lambda: attend(queries, keys, values, attn_mask=mask)


def _expand_heads(part: Any, ratio: int) -> Any:
    sequences, kv_heads, length, width = part.shape
    return part[:, :, None].expand(sequences, kv_heads, ratio, length, width).reshape(sequences, kv_heads * ratio, length, width)


def _attention_decode(torch: Any, operator: Operator, device: str) -> Call:
    sequences, new, heads, kv_heads, width = _attention_sizes(operator)
    queries = _normal(torch, device, sequences, heads, new, width)
    keys, values = (_normal(torch, device, sequences, kv_heads, operator.context_tokens, width) for _ in range(2))
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(queries, keys, values, enable_gqa=heads != kv_heads)


def _attention_sizes(operator: Operator) -> tuple[int, int, int, int, int]:
    """Sequences, new tokens, query heads, KV heads, head width."""
    sizes = (operator.sequences, operator.tokens, operator.heads, operator.kv_heads, operator.head_dim)
    sequences, new, heads, kv_heads, width = (max(1, round(size)) for size in sizes)
    if heads % kv_heads:
        raise UnsupportedKernelError(f"{heads} query heads do not divide into {kv_heads} KV heads")
    return sequences, new, heads, kv_heads, width


def _norm(torch: Any, operator: Operator, device: str) -> Call:
    width = round(operator.in_features)
    rows, stream = (_normal(torch, device, operator.tokens, width) for _ in range(2))
    scale = torch.ones(width, device=device, dtype=rows.dtype)

    def call() -> object:
        return torch.nn.functional.rms_norm(stream.add_(rows), (width,), scale)

    return call


def _activation(torch: Any, operator: Operator, device: str) -> Call:
    gate, up = (_normal(torch, device, operator.tokens, operator.in_features) for _ in range(2))
    streams = operator.hbm_bytes / (operator.tokens * operator.in_features * ACTIVATION_BYTES)
    silu = torch.nn.functional.silu
    if round(streams) == 3:
        return lambda: silu(gate) * up
    return lambda: silu(gate)


def _embedding(torch: Any, operator: Operator, device: str) -> Call:
    table = _normal(torch, device, EMBEDDING_ROWS, operator.out_features)
    tokens = torch.randint(0, EMBEDDING_ROWS, (round(operator.tokens),), device=device)
    return lambda: torch.nn.functional.embedding(tokens, table)


def _experts(torch: Any, operator: Operator, device: str) -> Call:
    """Gate and up in one product, the activation, and down; tokens spread over the experts by chance, evenly on average."""
    if operator.dtype not in TORCH_DTYPES:
        raise UnsupportedKernelError(f"torch has no grouped product in {operator.dtype}; allowed: bf16, fp16")
    dtype, count = TORCH_DTYPES[operator.dtype], round(operator.experts)
    width, inner = round(operator.in_features), round(operator.out_features)
    assignments = max(1, round(operator.tokens * operator.top_k))
    chosen = torch.randint(0, count, (assignments,), generator=torch.Generator().manual_seed(0))
    sizes = torch.bincount(chosen, minlength=count)
    rows = _normal(torch, device, assignments, width, dtype=dtype)
    gate_up, down = _normal(torch, device, count, width, 2 * inner, dtype=dtype), _normal(torch, device, count, inner, width, dtype=dtype)
    product = _grouped_product(torch, sizes, device)

    def call() -> object:
        gate, up = product(rows, gate_up).chunk(2, dim=-1)
        return product(torch.nn.functional.silu(gate) * up, down)

    return call


def _grouped_product(torch: Any, sizes: Any, device: str) -> Callable[[Any, Any], Any]:
    """(assignments, in) x (experts, in, out): one grouped kernel where torch has it, expert by expert elsewhere."""
    if device.startswith("cuda") and hasattr(torch, "_grouped_mm"):
        ends = torch.cumsum(sizes, 0).to(device=device, dtype=torch.int32)
        return lambda rows, weights: torch._grouped_mm(rows.contiguous(), weights, offs=ends)
    parts = sizes.tolist()

    def product(rows: Any, weights: Any) -> Any:
        return torch.cat([part @ weights[expert] for expert, part in enumerate(rows.split(parts)) if len(part)])

    return product


def _scan(torch: Any, operator: Operator, device: str) -> Call:
    """Mamba-2: state := decay * state + x B^T, y := state C; in prefill by chunks of 256 tokens (state-space duality)."""
    sequences, tokens, heads = (max(1, round(size)) for size in (operator.sequences, operator.tokens, operator.heads))
    width, state_width = round(operator.head_dim), round(operator.out_features)
    state = _normal(torch, device, sequences, heads, width, state_width, dtype="float32")
    chunk = min(256, tokens)
    inputs = _normal(torch, device, sequences, heads, chunk, width)
    write, read = (_normal(torch, device, sequences, 1, chunk, state_width) for _ in range(2))
    decay = torch.rand(sequences, heads, 1, 1, device=device)
    if tokens == 1:
        return lambda: _scan_step(state, inputs, write, read, decay)
    causal = torch.ones(chunk, chunk, device=device, dtype=inputs.dtype).tril()

    def call() -> object:
        out = None
        for _ in range(-(-tokens // chunk)):
            inside = ((read @ write.transpose(-1, -2)) * causal) @ inputs
            out = inside + read @ state.to(read.dtype).transpose(-1, -2)
            state.mul_(decay).add_(inputs.transpose(-1, -2) @ write)
        return out

    return call


def _scan_step(state: Any, inputs: Any, write: Any, read: Any, decay: Any) -> Any:
    state.mul_(decay).addcmul_(inputs.transpose(-1, -2), write)
    return (state * read).sum(-1)


KERNELS: Final[dict[Kind, Callable[[Any, Operator, str], Call]]] = {
    "embedding": _embedding,
    "linear": _dense,
    "attention_prefill": _attention_prefill,
    "attention_decode": _attention_decode,
    "norm": _norm,
    "activation": _activation,
    "router": _dense,
    "experts": _experts,
    "lm_head": _dense,
    "scan": _scan,
}
