"""One row of the parameter table, and helpers that write rows at one place of the model."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from typing import Any, Literal

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


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Writes rows of one component at a place, each dim by its letter, whose size is said once: the
    rows so far are `rows`. A tensor that a model has only sometimes is one `when`."""

    place: LayerPlace
    component: str
    sizes: Mapping[str, int]
    rows: list[Parameter] = field(default_factory=list)

    @classmethod
    def at(cls, place: LayerPlace, component: str, **sizes: int | None) -> "TensorRows":
        """Letters with their sizes; D is that of the place unless given. A letter without a size is
        of no tensor that there is."""
        known = {letter: size or 0 for letter, size in sizes.items()}
        return cls(place, component, {"D": place.d_model, **known})

    def of(self, component: str = "", **sizes: int) -> "TensorRows":
        """The same rows, those that follow of another component, or with other sizes."""
        return replace(self, component=component or self.component, sizes={**self.sizes, **sizes})

    def add(
        self, role: Role, name: str, letters: str, sums: str = "", when: object = True, **more: Any
    ) -> None:
        """A tensor of the dims that the letters name."""
        if when:
            row = Parameter(
                name=name,
                dims=tuple((letter, self.sizes[letter]) for letter in letters),
                component=self.component,
                role=role,
                contracts=sums,
                layers=self.place.layers,
                group=self.place.group,
                **more,
            )
            self.rows.append(row)

    def matmul(
        self, name: str, letters: str, sums: str = "", when: object = True, **more: Any
    ) -> None:
        """A matrix, which sums over its first dim unless said."""
        self.add("matmul", name, letters, sums or letters[0], when, **more)

    def bias(self, name: str, letters: str, when: object = True, **more: Any) -> None:
        """A bias."""
        self.add("bias", name, letters, "", when, **more)

    def scale(self, name: str, letters: str, when: object = True) -> None:
        """Learned factors, or other vectors that multiply what passes."""
        self.add("scale", name, letters, when=when)

    def norm(self, name: str, letters: str, bias: bool = False, when: object = True) -> None:
        """A norm's scale, and its bias."""
        norms = self.of("norms")
        norms.add("norm", name, letters, when=when)
        norms.bias(f"{name}.bias", letters, when and bias)
