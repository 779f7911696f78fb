"""Why XLA's own choice may be cheaper than the resolver's by our pricing: the rules that allow it."""

from shardwise.sharding.steps import Program
from shardwise.workflows.proof.draw import Case


def explain(case: Case, program: Program, hlo: str) -> str:
    """The name of the rule that explains a cheaper choice of XLA's; empty if there is none."""
    return ""
