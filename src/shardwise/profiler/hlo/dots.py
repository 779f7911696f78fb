"""The matmuls of a compiled module, as [batch, m, k] x [batch, k, n] of one device."""

from shardwise.profiler.hlo.door import read_module
from shardwise.profiler.hlo.flops import matmul_of, multiplies
from shardwise.work import Matmul


def read_matmuls(text: str) -> tuple[Matmul, ...]:
    """Every `dot` or convolution that the entry reaches, once each; a loop's body counts once.

    Fusions are looked into. XLA may turn a product with a dim of size 1 into a sum, which is no
    matmul any more and is not found.
    """
    module = read_module(text)
    return tuple(
        matmul_of(computation, instruction)
        for computation in module.reached(module.entry)
        for instruction in computation.instructions
        if multiplies(instruction)
    )
