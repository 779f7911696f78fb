"""One row of the parameter table, and a helper that writes rows at one place of the model."""

from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Literal

Role = Literal["matmul", "cross", "lookup", "norm", "bias", "scan", "conv", "scale", "tower"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One tensor of `dims`, repeated `layers` times.

    A "matmul" row multiplies every token: it sums over the letters in `contracts`, keeps those in
    `batch` (one independent product each), and yields the others; so the forward pass costs
    2 * size * active * layers FLOPs per token. "cross" is a matmul over image tokens, "lookup" a
    gather by token id, "conv" a depthwise convolution, "scan" a recurrence's own vectors.
    `active` is the share that one token uses (k/E for routed experts). `group` is the index of the
    layer in `ModelConfig.groups`, None outside the stack. `shares` names the row whose storage this
    one uses (a tied head, a layer that runs again): it costs FLOPs but holds no parameters of its
    own.
    """

    name: str
    dims: tuple[tuple[str, int], ...]
    component: str
    role: Role
    contracts: str = ""
    batch: str = ""
    layers: int = 1
    active: Fraction = Fraction(1)
    dtype_role: str = ""
    group: int | None = None
    shares: str = ""

    @property
    def size(self) -> int:
        """Elements of one tensor."""
        return prod(n for _, n in self.dims)

    @property
    def params(self) -> int:
        """Elements stored over all layers; 0 where the storage is another row's."""
        return 0 if self.shares else self.size * self.layers

    @property
    def active_params(self) -> Fraction:
        """Stored elements that one token uses."""
        return self.params * self.active

    @property
    def contracted(self) -> int:
        """Length of the sum of a matmul row (k in [m, k] x [k, n])."""
        return prod(n for letter, n in self.dims if letter in self.contracts)

    @property
    def batches(self) -> int:
        """Independent products of a matmul row (experts, output groups)."""
        return prod(n for letter, n in self.dims if letter in self.batch)

    @property
    def outputs(self) -> int:
        """Width of the result of one product of a matmul row (n in [m, k] x [k, n])."""
        return prod(n for letter, n in self.dims if letter not in self.contracts + self.batch)

    @property
    def flops_per_token(self) -> Fraction:
        """Forward FLOPs per token over all layers: 2 * size * active * layers for a matmul row."""
        return 2 * self.size * self.active * self.layers if self.role == "matmul" else Fraction(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlace:
    """Where rows stand: the layer group and how often it occurs, and D."""

    d_model: int
    group: int | None = None
    layers: int = 1

    def row(
        self,
        name: str,
        dims: dict[str, int],
        component: str,
        role: Role,
        contracts: str = "",
        batch: str = "",
        active: Fraction = Fraction(1),
        dtype_role: str = "",
        shares: str = "",
    ) -> Parameter:
        """One row of the table at this place; `dtype_role` is the component unless given."""
        return Parameter(
            name=name,
            dims=tuple(dims.items()),
            component=component,
            role=role,
            contracts=contracts,
            batch=batch,
            layers=self.layers,
            active=active,
            dtype_role=dtype_role or component,
            group=self.group,
            shares=shares,
        )

    def norm(self, name: str, width: dict[str, int], bias: bool = False) -> list[Parameter]:
        """A norm's scale over `width`, and its bias."""
        rows = [self.row(name, width, "norms", "norm")]
        return rows + [self.row(f"{name}.bias", width, "norms", "bias")] * bias
