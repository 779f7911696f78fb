"""The matmuls of a compiled module, as [batch, m, k] x [batch, k, n] of one device."""

from math import prod

from shardwise.errors import ShardwiseError
from shardwise.profiler.hlo.shapes import Array
from shardwise.profiler.hlo.text import Computation, Instruction, read_module
from shardwise.work import Matmul


def read_matmuls(text: str) -> tuple[Matmul, ...]:
    """Every `dot` that the entry reaches, once each; a loop's body counts once.

    Fusions are looked into. XLA may turn a product with a dim of size 1 into a sum, which is no
    matmul any more and is not found.
    """
    module = read_module(text)
    return tuple(
        _matmul(computation, instruction)
        for computation in module.reached(module.entry)
        for instruction in computation.instructions
        if instruction.opcode == "dot"
    )


def _matmul(computation: Computation, dot: Instruction) -> Matmul:
    left, right = (_dims(computation, name) for name in dot.operands[:2])
    batch, contracted = _places(dot, "lhs_batch_dims"), _places(dot, "lhs_contracting_dims")
    free = [n for i, n in enumerate(left) if i not in batch + contracted]
    used = _places(dot, "rhs_batch_dims") + _places(dot, "rhs_contracting_dims")
    return Matmul(
        m=prod(free),
        k=prod(left[i] for i in contracted),
        n=prod(n for i, n in enumerate(right) if i not in used),
        batch=prod(left[i] for i in batch),
    )


def _places(dot: Instruction, key: str) -> tuple[int, ...]:
    return tuple(int(n) for n in dot.attribute(key).strip("{}").split(",") if n)


def _dims(computation: Computation, name: str) -> tuple[int, ...]:
    found = computation.find(name)
    if found is None or not isinstance(found.shape, Array):
        raise ShardwiseError(f"operand '{name}' of a dot in '{computation.name}' has no shape")
    return found.shape.dims
