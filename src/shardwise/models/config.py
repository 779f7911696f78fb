"""ModelConfig: the shape of a model, read from a Hugging Face config.json or from the zoo."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwise.models.numerics import Numerics
from shardwise.models.specs import Extra, Layer, Mixing, Moe


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerTensor:
    """One tensor of a vision or audio tower, `repeats` times."""

    name: str
    shape: tuple[int, ...]
    repeats: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """A vision or audio tower with its projector: counted, never priced."""

    name: str
    tensors: tuple[TowerTensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A model as a value: whole dimensions, distinct layers, and which layer is where.

    `groups` holds the distinct layers in order of first appearance; `pattern[i]` is the index of
    layer i in `groups`. `embedding_dim` differs from d_model where the embedding is projected.
    `embedding_rows` and `head_rows` are usually `vocabulary`. `capped_logits`: the logits go
    through a tanh. `initial_state` is a learned vector that a second stream starts from.
    `weight_dtypes` maps a parameter's component to the dtype it is stored in ("" is every other
    one). `defaulted` lists the keys that the config leaves out with the value taken,
    `defaults_source` whose defaults they are. `read_as` says which unknown class was read as
    `architecture`, `unread` which of its keys that may say something of its shape were not read
    then. `numerics` is what the runtime computes with, None where it cannot (`not_runnable` says
    why).
    """

    name: str
    architecture: str
    model_type: str
    d_model: int
    vocabulary: int
    groups: tuple[Layer, ...]
    pattern: tuple[int, ...]
    tied_embeddings: bool
    embedding_dim: int
    embedding_rows: int
    position_rows: int = 0
    max_context: int | None = None
    embedding_norm: bool = False
    initial_state: bool = False
    final_norm: bool = True
    norm_bias: bool = False
    head_bias: bool = False
    capped_logits: bool = False
    streams: int = 1
    mixing: Mixing = "hyper"
    extras: tuple[Extra, ...] = ()
    attention_residual: bool = False
    per_layer_input: int = 0
    per_layer_rows: int = 0
    towers: tuple[Tower, ...] = ()
    towers_unread: tuple[str, ...] = ()
    read_as: str = ""
    unread: tuple[str, ...] = ()
    weight_dtypes: Mapping[str, str] = field(default_factory=dict, hash=False)
    numerics: Numerics | None = None
    not_runnable: str = ""
    defaults_source: str = ""
    defaulted: tuple[tuple[str, str], ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def layers(self) -> int:
        """L, the number of blocks in the stack."""
        return len(self.pattern)

    @property
    def mixer_kinds(self) -> frozenset[str]:
        """Kinds of the layers' mixers, those of `models/specs.py`."""
        return frozenset(layer.mixer.kind for layer in self.groups if layer.mixer is not None)

    @property
    def has_experts(self) -> bool:
        """Whether a layer routes tokens to experts."""
        return any(isinstance(layer.mlp, Moe) for layer in self.groups)

    @property
    def learned_tokens(self) -> int:
        """Tokens of a sequence that learned positions suffice for; 0 where none are learned."""
        return self.position_rows - (self.numerics.position_offset if self.numerics else 0)

    def layer(self, index: int) -> Layer:
        """The layer at one place of the stack."""
        return self.groups[self.pattern[index]]

    def layer_groups(self) -> tuple[tuple[Layer, int], ...]:
        """Distinct layers with how often each occurs, in order of first appearance."""
        return tuple((layer, self.pattern.count(i)) for i, layer in enumerate(self.groups))
