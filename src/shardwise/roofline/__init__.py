"""Pricing: Work on a placed mesh becomes seconds [lower, expected, upper] and what bounds them.

`chip_roofline.py`, `matmul.py` and `matmul_report.py` hold the single-chip rooflines,
`collectives.py` the cost of each collective on each network (`groups.py` has the links of a group,
`tree.py` fat trees, `latency.py` says which wait for hops), `exchanges.py` that of a permute from
one layout to another, `transfer.py` copies between memories, hosts and chips, `price.py` prices a
whole Work, `bodies.py` lays its loops on streams, `time_parts.py` says where their seconds go,
`bounds.py` the three numbers of an estimate, `finding.py` what a mistake in a program costs,
`stacks.py` holds what training software does with a chip, `attention_kernels.py` what libraries of
attention reach of it and `engines.py` what serving engines do, their constants in `data/`;
`strategies.py` ranks the resolver's programs by time, `crossover.py` says where one overtakes
another, `residuals.py` puts a range around a predicted step, `evidence.py` says what a few runs of
one's own do to both, `resolution.py` holds what predictions cannot tell, `rests.py` says which
constants the rate of an op rests on, `reached.py` how good a measured time is. Nothing is counted
here and no model is known. Read `price.py` first.
"""

from shardwise.roofline.matmul import ElementBytes
from shardwise.roofline.matmul_report import MatmulRoofline, matmul_roofline
from shardwise.roofline.price import Estimate, body_times, price, price_op
from shardwise.roofline.stacks import Stack, load_stack, stack_names
from shardwise.roofline.strategies import PricedStrategy, Ranking, rank, seconds

__all__ = [
    "ElementBytes",
    "Estimate",
    "MatmulRoofline",
    "PricedStrategy",
    "Ranking",
    "Stack",
    "body_times",
    "load_stack",
    "matmul_roofline",
    "price",
    "price_op",
    "rank",
    "seconds",
    "stack_names",
]
