"""What the forward pass needs beyond the shapes: norms, activations, rotations, scales, routing.

Counting never reads this. `Numerics` is part of a ModelConfig where its class has a row in
`data/numerics.toml`; elsewhere `ModelConfig.not_runnable` says why there is none.
"""

from dataclasses import dataclass
from typing import Literal

NormKind = Literal["rms", "layer"]
ActivationName = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_silu"]
RopeScaling = Literal["none", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary positions on the first `dim` elements of a head, base `theta`.

    Element i is rotated with element i + dim/2, or with its neighbour where `interleaved`.
    "linear" divides positions by `factor` (position interpolation); "llama3" divides frequencies
    whose wavelength exceeds `original_context` / `low`, blends up to `original_context` / `high`;
    "yarn" blends between `high` (beta_fast) and `low` (beta_slow) rotations within
    `original_context`, at whole dims where `truncate` (Peng et al. 2023). `attention_factor`
    multiplies cosine and sine.
    """

    dim: int
    theta: float
    interleaved: bool = False
    scaling: RopeScaling = "none"
    factor: float = 1.0
    low: float = 1.0
    high: float = 1.0
    original_context: int = 0
    truncate: bool = True
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """From router logits to expert weights.

    `scoring` maps the logits; "softmax_chosen" takes the softmax over the chosen ones alone.
    Scores are divided by the sum of the chosen where `normalise`, then multiplied by `scale`. With
    `groups` > 1 only experts of the `top_groups` best groups are eligible, a group's score being
    its best expert's or the sum of its two best. `correction` adds a bias per expert to the scores
    that choose, not to the weights (DeepSeek-V3, section 2.1.2).
    """

    scoring: Literal["softmax", "sigmoid", "softmax_chosen"] = "softmax"
    normalise: bool = False
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_score: Literal["best", "two_best"] = "best"
    correction: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Numbers of the forward pass that no count depends on.

    A norm's scale is stored less `norm_offset` (Gemma: 1). `attention_scale` multiplies q.k.
    `rope_pattern[i]` is the index in `ropes` of layer i's rotation; None there is no rotation.
    `position_offset` is the first row of learned positions that is used (OPT: 2). A soft cap c
    turns x into c tanh(x / c). `gate_limit` clamps gate and up of "clamped_silu" (gpt-oss), whose
    `gate_alpha` is the factor inside the sigmoid. `logits_scale` multiplies the logits,
    `residual_scale` what a block adds to the stream.
    """

    norm: NormKind = "rms"
    norm_eps: float = 1e-6
    norm_offset: float = 0.0
    activation: ActivationName = "silu"
    gate_limit: float = 0.0
    gate_alpha: float = 1.0
    attention_scale: float
    attention_softcap: float | None = None
    logits_softcap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    position_offset: int = 0
    ropes: tuple[Rope | None, ...]
    rope_pattern: tuple[int, ...]
    routing: Routing = Routing()

    def rope(self, layer: int) -> Rope | None:
        """The rotation of one layer of the stack."""
        return self.ropes[self.rope_pattern[layer]]
