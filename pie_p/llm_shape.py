"""The noun LLM: the shape of one decoder-only language model, frozen and cheap to hash, with the sums every floor above needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final, get_args

from pie_p.errors import LLMConfigError
from pie_p.shapes import Attention, DeltaNet, DenseFfn, LatentAttention, Layer, Mixer, MoeFfn, StateSpace, check_sizes
from pie_p.units import BYTES_PER_VALUE, DTYPES, Dtype

HIGH_PRECISION_PARTS: Final = frozenset({"attention", "ffn", "lm_head", "shared_expert", "dense_layers"})
MOST_LAYERS: Final = 4096
STATE_BYTES_PER_VALUE: Final = 4.0  # recurrent state in fp32: `mamba_ssm_cache_dtype` of Nemotron-H, `mamba_ssm_dtype` of Qwen3.5


@dataclass(frozen=True, kw_only=True, eq=False)
class LLM:
    """Shape of one decoder-only language model.

    Args:
        name: catalogue id or the config's own name.
        hidden_size: width of the residual stream [-].
        vocab_size: rows of the embedding [-].
        layers: every layer in order.
        tied_embeddings: LM head reads the embedding's weights.
        extra_parameters: weights outside layers, embedding and head: final norm, learned positions, head bias [-].
        dtype: storage of the quantised matrices, as the checkpoint is.
        high_precision: parts that stay bf16 whatever `dtype` says, out of {"attention", "ffn", "lm_head", "shared_expert", "dense_layers"};
            the embedding, the norms and the router always do. "ffn" is every feed-forward part, "dense_layers" the dense ones among
            mixtures of experts. gpt-oss quantises experts only, so it has all but the experts here.
        kv_dtype: storage of the KV cache by default.
        max_context: longest sequence the LLM was built for [tokens].
        notes: what a reader should know, e.g. "text part of a vision-language config".
        source: where the shape is published.
    """

    name: str
    hidden_size: int
    vocab_size: int
    layers: tuple[Layer, ...]
    tied_embeddings: bool = False
    extra_parameters: int = 0
    dtype: Dtype = "bf16"
    high_precision: frozenset[str] = frozenset({"lm_head"})
    kv_dtype: Dtype = "bf16"
    max_context: int | None = None
    notes: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        check_sizes(self)
        built = isinstance(self.layers, tuple) and all(isinstance(layer, Layer) for layer in self.layers)
        if not built or not 1 <= len(self.layers) <= MOST_LAYERS:
            raise LLMConfigError(f"layers of {self.name!r:.80}: allowed: a tuple of 1 to {MOST_LAYERS} Layer")
        for dtype in (self.dtype, self.kv_dtype):
            check_dtype(dtype)
        if not frozenset(self.high_precision) <= HIGH_PRECISION_PARTS:
            raise LLMConfigError(f"high_precision is {sorted(self.high_precision)}; allowed: parts of {sorted(HIGH_PRECISION_PARTS)}")

    def _key(self) -> tuple[object, ...]:
        return tuple(getattr(self, entry.name) for entry in fields(self))

    @cached_property
    def _hash(self) -> int:
        return hash(self._key())

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, LLM):
            return NotImplemented
        return self._hash == other._hash and self._key() == other._key()

    def __getstate__(self) -> dict[str, Any]:
        # Cached sums and the hash stay behind: string hashes differ from process to process.
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @cached_property
    def layer_counts(self) -> Mapping[Layer, int]:
        """Distinct layers in order of first appearance, and how many of each [-]."""
        return Counter(self.layers)

    @cached_property
    def embedding_parameters(self) -> int:
        """Weights of the token embedding [-]; an untied LM head has as many again."""
        return self.vocab_size * self.hidden_size

    @cached_property
    def parameters(self) -> int:
        """All weights, each counted once (a tied LM head adds none) [-]."""
        return self._outside_layers + sum(n * layer.parameters(self.hidden_size) for layer, n in self.layer_counts.items())

    @cached_property
    def active_parameters(self) -> int:
        """Weights that act on one token: all but the routed experts it is not sent to [-].

        Embedding and LM head count whole, once if tied. Published figures that leave them out say so in the catalogue.
        """
        return self._outside_layers + sum(n * layer.active_parameters(self.hidden_size) for layer, n in self.layer_counts.items())

    @property
    def _outside_layers(self) -> int:
        return self.embedding_parameters * (1 if self.tied_embeddings else 2) + self.extra_parameters

    @cached_property
    def is_moe(self) -> bool:
        """Whether any layer is a mixture of experts."""
        return any(isinstance(layer.ffn, MoeFfn) for layer in self.layer_counts)

    @cached_property
    def low_precision_parameters(self) -> int:
        """Weights stored in `dtype` in a quantised checkpoint; all others are stored in 16 bits [-]."""
        head = 0 if self.tied_embeddings or "lm_head" in self.high_precision else self.embedding_parameters
        return head + sum(n * self._low_precision_of(layer) for layer, n in self.layer_counts.items())

    def _low_precision_of(self, layer: Layer) -> int:
        kept, hidden_size = self.high_precision, self.hidden_size
        mixer = layer.mixer.matrix_parameters(hidden_size) if layer.mixer is not None and "attention" not in kept else 0
        if layer.ffn is None or "ffn" in kept or (isinstance(layer.ffn, DenseFfn) and self.is_moe and "dense_layers" in kept):
            return mixer
        shared = layer.ffn.shared_parameters(hidden_size) if isinstance(layer.ffn, MoeFfn) and "shared_expert" in kept else 0
        return mixer + layer.ffn.matrix_parameters(hidden_size) - shared

    def weight_bytes(self, dtype: Dtype | None = None) -> float:
        """Stored bytes of all weights: matrices in `dtype` (default: the checkpoint's), the high-precision parts in bf16 [B]."""
        low = self.low_precision_parameters
        stored = BYTES_PER_VALUE[check_dtype(self.dtype if dtype is None else dtype)]
        return low * stored + (self.parameters - low) * BYTES_PER_VALUE["bf16"]

    def kv_bytes_per_token(self, kv_dtype: Dtype | None = None) -> float:
        """Stored KV-cache bytes of one token over all layers, windowed ones included [B]."""
        return self._cached_values * BYTES_PER_VALUE[check_dtype(self.kv_dtype if kv_dtype is None else kv_dtype)]

    @cached_property
    def _cached_values(self) -> int:
        return sum(n * _cached_values_of(layer.mixer) for layer, n in self.layer_counts.items())

    def kv_cache_bytes(self, tokens: float, kv_dtype: Dtype | None = None) -> float:
        """Stored KV-cache bytes of one sequence of `tokens` tokens; a windowed layer keeps its window at most [B]."""
        stored = BYTES_PER_VALUE[check_dtype(self.kv_dtype if kv_dtype is None else kv_dtype)]
        kept = 0.0
        for layer, n in self.layer_counts.items():
            window = layer.mixer.window if isinstance(layer.mixer, Attention) else None
            kept += n * _cached_values_of(layer.mixer) * (tokens if window is None else min(tokens, window))
        return kept * stored

    @cached_property
    def state_bytes(self) -> float:
        """Recurrent state of one sequence, whatever its length: state-space and linear-attention layers, convolutions included [B]."""
        total = 0.0
        for layer, n in self.layer_counts.items():
            if isinstance(layer.mixer, StateSpace | DeltaNet):
                convolution = layer.mixer.conv_width * (layer.mixer.conv_kernel - 1) * BYTES_PER_VALUE["bf16"]
                total += n * (layer.mixer.state_values * STATE_BYTES_PER_VALUE + convolution)
        return total


def check_dtype(dtype: object) -> Dtype:
    """The dtype itself, or an error that lists the known ones.

    >>> check_dtype("fp8")
    'fp8'
    """
    if not isinstance(dtype, str) or dtype not in get_args(Dtype):
        raise LLMConfigError(f"dtype is {dtype!r:.60}; allowed: {', '.join(DTYPES)}")
    return dtype  # type: ignore[return-value]


def _cached_values_of(mixer: Mixer | None) -> int:
    return mixer.cached_values if isinstance(mixer, Attention | LatentAttention) else 0
