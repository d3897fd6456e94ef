"""The parts an LLM's layer is built from: frozen shapes without weights, each of which counts its own parameters.

A layer is a mixer (attention of some kind, a state-space scan, linear attention) and a feed-forward part (dense, mixture of experts),
either of which may be absent: hybrids such as Nemotron-H have layers that are only one of the two.

Counting rules: `matrix_parameters` are the weights of matrix products, the ones a quantised checkpoint stores in its `dtype`;
`vector_parameters` are biases, norms, convolutions and routers, which stay in 16 bits. A parameter is counted once.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, Final

from pie_p.errors import LLMConfigError

LARGEST: Final = 1 << 31  # no size of any LLM comes near; keeps products finite and errors early


def check_sizes(shape: Any) -> None:
    """Refuse sizes that cannot be: every whole-number field is an int >= 1, or >= 0 where its default is 0.

    >>> DenseFfn(intermediate_size=-1)
    Traceback (most recent call last):
    pie_p.errors.LLMConfigError: DenseFfn.intermediate_size is -1; allowed: a whole number from 1 to 2147483648
    """
    for entry in fields(shape):
        value, declared = getattr(shape, entry.name), str(entry.type)
        where = f"{type(shape).__name__}.{entry.name} is {value!r:.60}"
        if declared == "bool" and not isinstance(value, bool):
            raise LLMConfigError(f"{where}; allowed: True or False")
        if declared not in ("int", "int | None") or (declared == "int | None" and value is None):
            continue
        least = 1 if entry.default is MISSING or entry.default is None else min(1, entry.default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LARGEST:
            raise LLMConfigError(f"{where}; allowed: a whole number from {least} to {LARGEST}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Multi-head, grouped-query or multi-query attention."""

    heads: int  # query heads [-]
    kv_heads: int  # key/value heads [-]
    head_dim: int  # per head, queries and keys [-]
    window: int | None = None  # tokens a query can see (sliding window or chunk); None: all of them
    query_bias: bool = False  # biases on q, k and v projections
    output_bias: bool = False  # bias on the output projection
    qk_norm_width: int = 0  # weights of q and k norms per layer together [-]
    gated_output: bool = False  # a sigmoid gate as wide as the output, projected with q (Qwen3-Next, Qwen3.5)
    sinks: bool = False  # one learned sink logit per head (gpt-oss)

    def __post_init__(self) -> None:
        check_sizes(self)
        if self.heads % self.kv_heads:
            raise LLMConfigError(f"kv_heads is {self.kv_heads}; allowed: a divisor of heads, which is {self.heads}")

    def matrix_parameters(self, hidden_size: int) -> int:
        """Weights of the q, k, v and output projections [-].

        >>> Attention(heads=32, kv_heads=8, head_dim=128).matrix_parameters(4096)  # Llama-3.1-8B: 2 * 4096 * 4096 + 2 * 4096 * 1024
        41943040
        """
        queries = self.heads * self.head_dim
        return hidden_size * (queries * (3 if self.gated_output else 2) + 2 * self.kv_heads * self.head_dim)

    def vector_parameters(self, hidden_size: int) -> int:
        """Biases, q and k norms and sinks [-]."""
        projected = (self.heads * (2 if self.gated_output else 1) + 2 * self.kv_heads) * self.head_dim
        biases = projected * self.query_bias + hidden_size * self.output_bias
        return biases + self.qk_norm_width + self.heads * self.sinks

    @property
    def cached_values(self) -> int:
        """Keys and values kept per token [-]."""
        return 2 * self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (MLA, DeepSeek-V2 arXiv 2405.04434): one latent and one rope key per token in the cache.

    With `index_heads` an indexer picks `index_top_k` earlier tokens for each query (DeepSeek sparse attention, DeepSeek-V3.2, GLM-5).
    """

    heads: int
    query_rank: int | None = None  # width of the query latent; None: queries projected directly
    kv_rank: int  # width of the cached latent
    nope_dim: int  # per head, without position
    rope_dim: int  # per head, with position; one shared rope key per token in the cache
    value_dim: int  # per head
    index_heads: int = 0  # heads of the sparse-attention indexer; 0: no indexer, dense attention
    index_dim: int = 0  # per indexer head; one index key per token in the cache
    index_top_k: int | None = None  # tokens a query attends to; None: all of them

    def __post_init__(self) -> None:
        check_sizes(self)
        if self.index_heads and not (self.index_dim and self.index_top_k and self.query_rank):
            raise LLMConfigError("an indexer needs index_dim, index_top_k and query_rank")

    def matrix_parameters(self, hidden_size: int) -> int:
        """Weights of the down- and up-projections of queries and of the latent, the output projection and the indexer [-]."""
        queries = self.heads * (self.nope_dim + self.rope_dim)
        query = hidden_size * queries if self.query_rank is None else self.query_rank * (hidden_size + queries)
        latent = hidden_size * (self.kv_rank + self.rope_dim) + self.kv_rank * self.heads * (self.nope_dim + self.value_dim)
        index = self.index_heads * self.index_dim * (self.query_rank or 0) + hidden_size * (self.index_dim + self.index_heads)
        return query + latent + self.heads * self.value_dim * hidden_size + index * bool(self.index_heads)

    def vector_parameters(self, hidden_size: int) -> int:  # noqa: ARG002
        """Norms of both latents, and the index key's layer norm [-]."""
        return (self.query_rank or 0) + self.kv_rank + 2 * self.index_dim

    @property
    def cached_values(self) -> int:
        """Latent, rope key and index key kept per token [-].

        >>> mla = LatentAttention(heads=128, query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
        >>> mla.cached_values  # DeepSeek-V3: 512 + 64
        576
        """
        return self.kv_rank + self.rope_dim + self.index_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace:
    """Mamba-2 mixer (arXiv 2405.21060)."""

    heads: int
    head_dim: int
    state_dim: int
    groups: int
    conv_kernel: int
    projection_bias: bool = False
    conv_bias: bool = True

    def __post_init__(self) -> None:
        check_sizes(self)

    @property
    def conv_width(self) -> int:
        """Channels of the short convolution: inner width, and B and C of every group [-]."""
        return self.heads * self.head_dim + 2 * self.groups * self.state_dim

    def matrix_parameters(self, hidden_size: int) -> int:
        """Input projection (gate, x, B, C, step per head) and output projection [-]."""
        inner = self.heads * self.head_dim
        return hidden_size * (inner + self.conv_width + self.heads) + inner * hidden_size

    def vector_parameters(self, hidden_size: int) -> int:
        """Convolution, A, D and step bias per head, gated norm, biases [-]."""
        inner = self.heads * self.head_dim
        biases = (inner + self.conv_width + self.heads + hidden_size) * self.projection_bias + self.conv_width * self.conv_bias
        return self.conv_width * self.conv_kernel + 3 * self.heads + inner + biases

    @property
    def state_values(self) -> int:
        """Recurrent state per sequence, without the convolution's [-]."""
        return self.heads * self.head_dim * self.state_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """Gated delta-rule linear attention (arXiv 2412.06464), as in Qwen3-Next and Qwen3.5."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int

    def __post_init__(self) -> None:
        check_sizes(self)

    @property
    def conv_width(self) -> int:
        """Channels of the short convolution: queries, keys and values [-]."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def matrix_parameters(self, hidden_size: int) -> int:
        """Projections to q, k, v, output gate, decay and step, and the output projection [-]."""
        values = self.value_heads * self.value_dim
        return hidden_size * (self.conv_width + values + 2 * self.value_heads) + values * hidden_size

    def vector_parameters(self, hidden_size: int) -> int:  # noqa: ARG002
        """Convolution, A and step bias per head, gated norm [-]."""
        return self.conv_width * self.conv_kernel + 2 * self.value_heads + self.value_dim

    @property
    def state_values(self) -> int:
        """Recurrent state per sequence, without the convolution's [-]."""
        return self.value_heads * self.key_dim * self.value_dim


Mixer = Attention | LatentAttention | StateSpace | DeltaNet


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFfn:
    """Feed-forward part: up (and gate) projection, activation, down projection."""

    intermediate_size: int
    gated: bool = True  # gate and up (SwiGLU, GeGLU): three matrices; otherwise two
    bias: bool = False

    def __post_init__(self) -> None:
        check_sizes(self)

    def matrix_parameters(self, hidden_size: int) -> int:
        """Weights of two or three matrices [-]."""
        return (3 if self.gated else 2) * hidden_size * self.intermediate_size

    def vector_parameters(self, hidden_size: int) -> int:
        """Biases [-]."""
        return ((2 if self.gated else 1) * self.intermediate_size + hidden_size) * self.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeFfn:
    """Mixture of experts: a router, `experts` routed ones of which `top_k` run per token, and an optional shared expert."""

    experts: int
    top_k: int
    intermediate_size: int  # per routed expert
    shared_intermediate_size: int = 0  # all shared experts together; 0: none
    gated: bool = True
    bias: bool = False  # biases in experts
    router_bias: bool = False  # bias or score correction per expert
    shared_gate: bool = False  # a learned scalar gate on the shared expert (Qwen2-MoE, Qwen3-Next)

    def __post_init__(self) -> None:
        check_sizes(self)
        if self.top_k > self.experts:
            raise LLMConfigError(f"top_k is {self.top_k}; allowed: at most experts, which is {self.experts}")

    @property
    def expert(self) -> DenseFfn:
        """One routed expert as a feed-forward part of its own."""
        return DenseFfn(intermediate_size=self.intermediate_size, gated=self.gated, bias=self.bias)

    def shared_parameters(self, hidden_size: int) -> int:
        """Weights of the shared experts' matrices [-]."""
        return (3 if self.gated else 2) * hidden_size * self.shared_intermediate_size

    def matrix_parameters(self, hidden_size: int) -> int:
        """Weights of every expert's matrices, routed and shared; the router is not among them [-]."""
        return self.experts * self.expert.matrix_parameters(hidden_size) + self.shared_parameters(hidden_size)

    def vector_parameters(self, hidden_size: int) -> int:
        """Router, its bias, the shared expert's gate and every routed expert's biases [-]."""
        router = self.experts * (hidden_size + self.router_bias) + hidden_size * self.shared_gate
        return router + self.experts * self.expert.vector_parameters(hidden_size)

    def idle_parameters(self, hidden_size: int) -> int:
        """Parameters of the routed experts that one token does not reach [-]."""
        expert = self.expert
        each = expert.matrix_parameters(hidden_size) + expert.vector_parameters(hidden_size)
        return (self.experts - self.top_k) * each


Ffn = DenseFfn | MoeFfn


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of the stack."""

    mixer: Mixer | None
    ffn: Ffn | None
    norm_width: int = 0  # weights of this layer's norms together (biases included) [-]
    parallel: bool = False  # mixer and feed-forward part read the same input and share one all-reduce (GPT-J, Falcon, Command-R)

    def __post_init__(self) -> None:
        check_sizes(self)
        if self.mixer is None and self.ffn is None:
            raise LLMConfigError("a layer has neither mixer nor ffn; allowed: at least one of the two")

    def parameters(self, hidden_size: int) -> int:
        """All weights of the layer [-].

        >>> attention = Attention(heads=32, kv_heads=8, head_dim=128)
        >>> block = Layer(mixer=attention, ffn=DenseFfn(intermediate_size=14336), norm_width=2 * 4096)
        >>> block.parameters(4096)  # Llama-3.1-8B: 41943040 + 3 * 4096 * 14336 + 8192
        218112000
        """
        parts = [part for part in (self.mixer, self.ffn) if part is not None]
        return self.norm_width + sum(part.matrix_parameters(hidden_size) + part.vector_parameters(hidden_size) for part in parts)

    def active_parameters(self, hidden_size: int) -> int:
        """Weights of the layer that act on one token [-]."""
        idle = self.ffn.idle_parameters(hidden_size) if isinstance(self.ffn, MoeFfn) else 0
        return self.parameters(hidden_size) - idle
