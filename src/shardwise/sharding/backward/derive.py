"""From a forward computation and its storage to all steps of forward, backward and update.

Backward (book 5.4.2): for C = A * B, dA = dC * B and dB = A * dC, each a sharded product again,
laid out by the same rule as the forward's. A gradient is wanted in the layout of its array, a
parameter's in that in which its gradient is stored; what the contraction leaves unreduced is summed
into that layout, and this is where data parallelism gets its all-reduce and FSDP its
reduce-scatter. Arrays used twice add their gradients before they are reduced.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from shardwise.errors import BadRequest
from shardwise.sharding.backward.forward import FROM_OUTPUT, Forward, ForwardLine, gradient_name
from shardwise.sharding.backward.moves import moves
from shardwise.sharding.backward.product import local_product
from shardwise.sharding.backward.reshapes import local_reshape
from shardwise.sharding.layout import Layout
from shardwise.sharding.local import Sizes, check_mesh
from shardwise.sharding.mesh import Mesh
from shardwise.sharding.steps import Program, ShardStep

PhaseName = Literal["forward", "backward", "update"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation:
    """The steps of one training step of a layer; `analyse` says which of them wait for which.

    Forward starts from the inputs and ends with the outputs; backward starts from the outputs'
    gradients, which the next layer gives; update turns stored gradients into new parameters.
    """

    source: Forward
    mesh: Mesh
    sizes: Sizes
    forward: tuple[ShardStep, ...]
    backward: tuple[ShardStep, ...]
    update: tuple[ShardStep, ...]

    def steps(self, phase: PhaseName) -> tuple[ShardStep, ...]:
        """The steps of one phase, in order."""
        return {"forward": self.forward, "backward": self.backward, "update": self.update}[phase]

    def program(self, phase: PhaseName, dtype: str) -> Program:
        """One phase as a Program."""
        steps = self.steps(phase)
        return Program(mesh=self.mesh, sizes=self.sizes, dtype=dtype, steps=steps)

    @property
    def saved(self) -> tuple[Layout, ...]:
        """Activations that the backward reads: what the forward has to keep, in that layout."""
        kept = self.source.made | {*self.source.inputs} | self.source.constants
        made = {step.output for step in self.backward}
        read = dict.fromkeys(a for step in self.backward for a in step.inputs)
        return tuple(a for a in read if a.name in kept and a not in made)


def derive(source: Forward, mesh: Mesh, sizes: Sizes) -> Derivation:
    """All steps of one layer, from layouts alone; only reshapes need `sizes`.

    Raises BadRequest for axes that the mesh lacks, and for a gradient stored unreduced over an axis
    without partial sums of its product.
    """
    for array in source.arrays.values():
        check_mesh(array, mesh)
    for stored in source.storage.values():
        check_mesh(stored.gradient, mesh)
        check_mesh(stored.optimizer, mesh)
    forward = _forward(source, mesh, sizes)
    backward = _Backward(source, mesh, sizes).run()
    return Derivation(
        source=source,
        mesh=mesh,
        sizes=sizes,
        forward=forward,
        backward=backward,
        update=_update(source),
    )


def gradient_layout(source: Forward, name: str) -> Layout:
    """Where the gradient of an array is wanted: as stored for a parameter, else as the array is."""
    if name in source.storage:
        return source.storage[name].gradient
    return replace(source.arrays[name], name=gradient_name(name), unreduced=())


class _PassPhase:
    """The steps so far and the layouts in which each array exists by now."""

    def __init__(self, stored: Sequence[Layout], mesh: Mesh, sizes: Sizes) -> None:
        self.mesh, self.sizes = mesh, sizes
        self.at = {layout.name: layout for layout in stored}
        self.known = set(stored)
        self.steps: list[ShardStep] = []

    def add(self, step: ShardStep) -> None:
        if step.output not in self.known:
            self.steps.append(step)
            self.known.add(step.output)

    def bring(self, name: str, needed: Layout) -> Layout:
        """Have the array in the layout `needed`; nothing moves that was moved before."""
        goal = replace(needed, name=name)
        if goal not in self.known:
            self.move(self.at[name], goal)
        return goal

    def move(self, before: Layout, after: Layout) -> None:
        for step in moves(before, after):
            self.add(step)

    def settle(self, made: Layout, wanted: Layout) -> None:
        """Take a new array from the layout in which it came out to the wanted one."""
        if not set(wanted.unreduced) <= set(made.unreduced):
            rule = "only axes over which the product makes partial sums can stay unreduced"
            raise BadRequest(f"'{wanted}' results in '{made}'; {rule}")
        self.move(made, wanted)
        self.at[wanted.name] = wanted

    def product(self, operands: Sequence[Layout], wanted: Layout) -> Layout:
        """The local product, its operands brought where it needs them; returns how it came out."""
        needed, made = local_product(operands, wanted)
        inputs = tuple(self.bring(n.name, n) for n in needed)
        self.add(ShardStep(kind="einsum", inputs=inputs, output=made))
        return made

    def map(self, function: str, operands: Sequence[Layout], output: Layout, over: str) -> Layout:
        """A function of blocks cut alike: as the first operand is, but whole along `over`."""
        first = operands[0]
        dims = tuple(replace(d, axes=()) if d.name == over else d for d in first.dims)
        local = replace(first, dims=dims, unreduced=())
        inputs = tuple(self.bring(o.name, local) for o in operands)
        made = replace(local, name=output.name)
        self.add(ShardStep(kind="map", inputs=inputs, output=made, function=function, dim=over))
        return made

    def reshape(self, before: Layout, after: Layout) -> Layout:
        needed, made = local_reshape(before, after, self.sizes, self.mesh)
        given = self.bring(before.name, needed)
        self.add(ShardStep(kind="reshape", inputs=(given,), output=made))
        return made


def _forward(source: Forward, mesh: Mesh, sizes: Sizes) -> tuple[ShardStep, ...]:
    given = [a for name, a in source.arrays.items() if name not in source.made]
    phase = _PassPhase(given, mesh, sizes)
    for line in source.lines:
        if not line.function:
            made = phase.product(line.inputs, line.output)
        elif line.function == "reshape":
            made = phase.reshape(line.inputs[0], line.output)
        else:
            made = phase.map(line.function, line.inputs, line.output, line.over)
        phase.settle(made, line.output)
    return tuple(phase.steps)


class _Backward:
    """Differentiates the lines from last to first."""

    def __init__(self, source: Forward, mesh: Mesh, sizes: Sizes) -> None:
        given = [gradient_layout(source, name) for name in source.outputs]
        self.source = source
        self.phase = _PassPhase([*source.arrays.values(), *given], mesh, sizes)
        self.wants = _wants_gradient(source)
        self.uses = Counter(
            a.name for line in source.lines if line.output.name in self.wants for a in line.inputs
        )
        self.parts: dict[str, list[Layout]] = {}

    def run(self) -> tuple[ShardStep, ...]:
        for line in reversed(self.source.lines):
            if line.output.name not in self.wants:
                continue
            if not line.function:
                self.product(line)
            elif line.inputs[0].name in self.wants:
                self.call(line)
        return tuple(self.phase.steps)

    def product(self, line: ForwardLine) -> None:
        """Parameters first: the sum of their gradient can start while the others are computed."""
        params = self.source.storage
        order = sorted(range(len(line.inputs)), key=lambda i: line.inputs[i].name not in params)
        made = gradient_layout(self.source, line.output.name)
        for i in order:
            name = line.inputs[i].name
            if name not in self.wants:
                continue
            others = (*line.inputs[:i], *line.inputs[i + 1 :])
            operands = (*others, made) if name in params else (made, *others)
            self.settle(name, self.phase.product(operands, self.part(name)))

    def call(self, line: ForwardLine) -> None:
        (before,), after = line.inputs, line.output
        made = gradient_layout(self.source, after.name)
        wanted = self.part(before.name)
        if line.function == "reshape":
            self.settle(before.name, self.phase.reshape(made, wanted))
            return
        saved = after if line.function in FROM_OUTPUT else before
        function = f"{line.function}'"
        self.settle(before.name, self.phase.map(function, (made, saved), wanted, line.over))

    def part(self, name: str) -> Layout:
        """The layout wanted of the next contribution to a gradient, under a name of its own."""
        wanted = gradient_layout(self.source, name)
        if self.uses[name] == 1:
            return wanted
        bare = wanted.name.rstrip("'")
        primes = wanted.name[len(bare) :]
        number = len(self.parts.setdefault(name, [])) + 1
        return replace(wanted, name=f"{bare}_{number}{primes}")

    def settle(self, name: str, made: Layout) -> None:
        """Sum what came out into the wanted layout, once every use of the array has given its."""
        wanted = gradient_layout(self.source, name)
        if self.uses[name] == 1:
            self.phase.settle(made, wanted)
            return
        parts = self.parts[name]
        parts.append(made)
        if len(parts) < self.uses[name]:
            return
        if len({replace(part, name="") for part in parts}) > 1:
            for i, part in enumerate(parts):
                parts[i] = replace(wanted, name=part.name)
                self.phase.settle(part, parts[i])
        total = replace(parts[0], name=wanted.name)
        self.phase.add(ShardStep(kind="map", inputs=tuple(parts), output=total, function="add"))
        self.phase.settle(total, wanted)


def _wants_gradient(source: Forward) -> frozenset[str]:
    """Parameters, inputs and everything that is made from them."""
    wants = {*source.storage, *source.inputs}
    for line in source.lines:
        if any(a.name in wants for a in line.inputs):
            wants.add(line.output.name)
    return frozenset(wants)


def _update(source: Forward) -> tuple[ShardStep, ...]:
    """Each device updates the part whose optimizer state it holds, then parameters are restored."""
    steps: list[ShardStep] = []
    for name, stored in source.storage.items():
        mine = replace(stored.optimizer, name=name)
        gradient = replace(stored.optimizer, name=stored.gradient.name)
        steps += moves(stored.gradient, gradient)
        steps += moves(stored.parameter, mine)
        inputs = (mine, gradient, stored.optimizer)
        steps.append(ShardStep(kind="map", inputs=inputs, output=mine, function="update"))
        steps += moves(mine, stored.parameter)
    return tuple(steps)
