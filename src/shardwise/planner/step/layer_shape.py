"""LayerShape: what one device sees of one layer, training or serving."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.models import Parameter
from shardwise.plans.layouts import compute_share
from shardwise.plans.train import USUAL, Structure
from shardwise.work import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What one device sees of one layer: `tokens` of its microbatch, `context` tokens attended.

    `tokens` are this device's after batch and context sharding, before tensor. `exact` are
    components whose matmuls run in the activations' dtype whatever `compute` is. A server may cut D
    of its weights over `stationary` devices, and leave them there; its `choices` are the defaults.
    """

    tokens: Quantity
    context: Quantity
    degrees: Mapping[str, Quantity]
    compute: str
    weights: str
    activations: str
    choices: Structure = USUAL
    causal: bool = True
    exact: frozenset[str] = frozenset()
    stationary: Quantity = 1.0

    def degree(self, axis: str) -> Quantity:
        """Degree of a mesh axis; 1 where there is none."""
        return self.degrees.get(axis, 1)

    @property
    def norm_tokens(self) -> Quantity:
        """Tokens per device between blocks: also cut by tensor under sequence parallelism."""
        return (
            self.tokens / self.degree("tensor") if self.choices.sequence_parallel else self.tokens
        )

    @property
    def mixer_tokens(self) -> Quantity:
        """Tokens per device between a mixer's projections: cut over `stationary`, too."""
        return self.tokens / self.stationary

    @property
    def together(self) -> Quantity:
        """Devices that work on the same tokens. What each of them has a copy of (norms, KV heads
        fewer than devices) one could read and send to the others, so a bound counts it once."""
        return self.degree("tensor") * self.stationary

    @property
    def expert_axes(self) -> tuple[str, ...]:
        """Axes over which whole experts lie apart."""
        return ("expert", "tensor") if self.choices.expert_over_tensor else ("expert",)

    @property
    def expert_group(self) -> Quantity:
        """Devices that share the experts between them, whole ones each."""
        group: Quantity = 1.0
        for axis in self.expert_axes:
            group = group * self.degree(axis)
        return group

    @property
    def expert_tokens(self) -> Quantity:
        """Tokens that one device sends to experts: its own, in pieces where tensor cuts experts
        apart rather than their width."""
        return (
            self.tokens / self.degree("tensor") if self.choices.expert_over_tensor else self.tokens
        )

    def compute_share(self, row: Parameter) -> Quantity:
        """Share of a row that one device computes with."""
        return compute_share(row, self.degrees, self.choices.expert_over_tensor)
