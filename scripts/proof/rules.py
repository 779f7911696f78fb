"""Rules that allow XLA's own choice to be cheaper than the resolver's, by the resolver's pricing.

A rule names a way of computing that the resolver leaves out and why; it holds for a case only if
the resolver, given that way, costs no more than XLA.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from proof.draw import DrawnEinsum
from proof.parts import einsum_in_parts, in_parts
from proof.pricing import PRICED, XlaCollective, cost_on, program_seconds
from shardwise.hardware import parse_slice
from shardwise.sharding.chain import resolve

TOLERANCE = 1e-6


class ProofRule(Protocol):
    """Whether a rule explains XLA's collectives and seconds (with local products or without)."""

    def __call__(
        self, case: DrawnEinsum, chosen: Sequence[XlaCollective], xla: float, *, products: bool
    ) -> bool: ...


def parts_of_axes(
    case: DrawnEinsum, chosen: Sequence[XlaCollective], xla: float, *, products: bool
) -> bool:
    """XLA exchanged over a part of an axis; with the axes in parts the resolver is as cheap.

    The notation cuts dims by whole axes, and so do the programs: `A[K_X, L_Y] -> A[K_Y, L_X]` on
    X=4,Y=2 takes an exchange over half of X, which has no name. A mesh that names it has it all.
    """
    if all(c.whole_axes for c in chosen):
        return False
    piece, mesh = parse_slice(case.slice_text), in_parts(case.mesh)
    einsum = einsum_in_parts(case.einsum, case.mesh)
    cost = cost_on(piece, mesh)
    best = resolve(einsum, mesh, case.priced_sizes, dtype=PRICED, cost=cost, top=1).best
    ours = program_seconds(best.program, piece, products=products)
    return ours <= xla * (1 + TOLERANCE)


RULES: Mapping[str, ProofRule] = {"parts of axes": parts_of_axes}


def explanation(
    case: DrawnEinsum, chosen: Sequence[XlaCollective], xla: float, *, products: bool
) -> str:
    """The rule that explains why XLA is cheaper in a case; empty if there is none."""
    holding = (n for n, rule in RULES.items() if rule(case, chosen, xla, products=products))
    return next(holding, "")
