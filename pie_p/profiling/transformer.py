"""A small but whole transformer, built so that every module and every meeting of ranks can be timed by itself.

Attention and MLP end in a partial sum where their last matrix is split over ranks; the all-reduce that completes it is a module of its own
(`Meet`), so its waiting and its transfer are seen apart from the matrix product. One rank: `Meet` does nothing and is not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pie_p.errors import InputError
from pie_p.extras import require

# Kind by the last part of a module's name.
RECORDED: Final = {
    "embedding": "embedding",
    "attention_norm": "norm",
    "attention": "attention",
    "attention_meet": "all_reduce",
    "mlp_norm": "norm",
    "mlp": "mlp",
    "mlp_meet": "all_reduce",
    "final_norm": "norm",
    "lm_head": "lm_head",
}


MOST_SIZES: Final[dict[str, int]] = {"layers": 512, "width": 1 << 16, "heads": 1024, "intermediate": 1 << 18, "vocab": 1 << 21}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of the transformer."""

    layers: int = 4
    width: int = 256
    heads: int = 8
    intermediate: int = 512
    vocab: int = 1024

    def __post_init__(self) -> None:
        for name, most in MOST_SIZES.items():
            if not 1 <= (value := getattr(self, name)) <= most:
                raise InputError(f"{name} of the transformer is {value}; give 1 to {most}")
        if self.width % self.heads:
            raise InputError(f"width {self.width} does not divide into {self.heads} heads; choose a multiple")


def build(shape: Shape, *, seed: int = 0) -> Any:
    """The whole transformer, with the same weights for the same seed."""
    torch = require("torch", extra="profile")
    torch.manual_seed(seed)
    return _classes()["Transformer"](shape).eval()


@cache
def _classes() -> dict[str, Any]:
    """The module classes; made at first use, so that importing this file needs no torch."""
    torch = require("torch", extra="profile")
    nn = torch.nn

    class Meet(nn.Module):  # type: ignore[misc, name-defined]
        """All-reduce over the tensor-parallel group, when there is one."""

        group: Any = None

        def forward(self, partial: Any) -> Any:
            """The sum over the ranks of the group."""
            if self.group is not None:
                torch.distributed.all_reduce(partial, group=self.group)
            return partial

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        """Causal self-attention; as many heads as the local projections are wide."""

        def __init__(self, shape: Shape) -> None:
            super().__init__()
            self.head_dim = shape.width // shape.heads
            self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(shape.width, shape.width, bias=False) for _ in range(4))

        def forward(self, rows: Any) -> Any:
            """(sequences, tokens, width) to the same, a partial sum where heads are split."""
            query, key, value = (
                proj(rows).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj)
            )
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            return self.o_proj(mixed.transpose(1, 2).flatten(2))

    class Mlp(nn.Module):  # type: ignore[misc, name-defined]
        """Gated MLP."""

        def __init__(self, shape: Shape) -> None:
            super().__init__()
            self.gate_proj, self.up_proj = (nn.Linear(shape.width, shape.intermediate, bias=False) for _ in range(2))
            self.down_proj = nn.Linear(shape.intermediate, shape.width, bias=False)

        def forward(self, rows: Any) -> Any:
            """(..., width) to the same, a partial sum where the intermediate width is split."""
            return self.down_proj(nn.functional.silu(self.gate_proj(rows)) * self.up_proj(rows))

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        """Attention and MLP, each with its norm before and its meeting behind."""

        def __init__(self, shape: Shape) -> None:
            super().__init__()
            self.attention_norm, self.mlp_norm = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
            self.attention, self.mlp = Attention(shape), Mlp(shape)
            self.attention_meet, self.mlp_meet = Meet(), Meet()

        def forward(self, rows: Any) -> Any:
            """(sequences, tokens, width) to the same."""
            rows = rows + self.attention_meet(self.attention(self.attention_norm(rows)))
            return rows + self.mlp_meet(self.mlp(self.mlp_norm(rows)))

    class Transformer(nn.Module):  # type: ignore[misc, name-defined]
        """Embedding, layers, norm, head; a stage of a pipeline holds a part and has None for the rest."""

        def __init__(self, shape: Shape) -> None:
            super().__init__()
            self.embedding = nn.Embedding(shape.vocab, shape.width)
            self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
            self.final_norm = nn.RMSNorm(shape.width)
            self.lm_head = nn.Linear(shape.width, shape.vocab, bias=False)

        def forward(self, rows: Any) -> Any:
            """Token ids (first stage) or rows to rows, or logits (last stage)."""
            rows = rows if self.embedding is None else self.embedding(rows)
            for layer in self.layers:
                rows = layer(rows)
            return rows if self.lm_head is None else self.lm_head(self.final_norm(rows))

    return {"Transformer": Transformer}


def keep_stage(transformer: Any, stage: int, stages: int) -> Any:
    """Throw away what other stages of a pipeline hold; layers are dealt out as evenly as they can be.

    Raises:
        InputError: fewer layers than stages.
    """
    count = len(transformer.layers)
    if count < stages:
        raise InputError(f"{count} layers cannot fill {stages} pipeline stages; use at most {count}")
    first, last = (count * place // stages for place in (stage, stage + 1))
    transformer.layers = transformer.layers[first:last]
    if stage > 0:
        transformer.embedding = None
    if stage < stages - 1:
        transformer.final_norm = transformer.lm_head = None
    return transformer


def split_over(transformer: Any, mesh: Any) -> Any:
    """Tensor parallelism (`torch.distributed.tensor.parallel`) over a one-dimensional mesh; partial sums meet in `Meet`."""
    parallel = require("torch.distributed.tensor.parallel", extra="profile")
    partial = require("torch.distributed.tensor", extra="profile").Partial()
    columns = ("attention.q_proj", "attention.k_proj", "attention.v_proj", "mlp.gate_proj", "mlp.up_proj")
    plan = {name: parallel.ColwiseParallel() for name in columns}
    plan |= {name: parallel.RowwiseParallel(output_layouts=partial) for name in ("attention.o_proj", "mlp.down_proj")}
    for layer in transformer.layers:
        parallel.parallelize_module(layer, mesh, plan)
        layer.attention_meet.group = layer.mlp_meet.group = mesh.get_group()
    return transformer
