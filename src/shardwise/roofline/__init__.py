"""Pricing: Work on a placed mesh becomes seconds [lower, expected, upper] and what bounds them.

`chip_roofline.py`, `matmul.py` and `matmul_report.py` hold the single-chip rooflines,
`collectives.py` the cost of each collective on each network (`groups.py` has the links of a group,
`tree.py` fat trees), `exchanges.py` that of a permute from one layout to another, `transfer.py`
copies between memories, hosts and chips, `price.py` prices a whole Work, `bodies.py` lays its loops
on streams, `stacks.py` holds what training software does with a chip and `engines.py` what serving
engines do, their constants in `data/`; `strategies.py` ranks the resolver's programs by time,
`crossover.py` says where one overtakes another, `residuals.py` puts a range around a predicted
step. Nothing is counted here and no model is known. Read `price.py` first.
"""

from shardwise.roofline.chip_roofline import (
    Times,
    attainable_flops,
    chip_critical_intensity,
    critical_intensity,
    level_bandwidth,
    math_seconds,
    vector_critical_intensity,
)
from shardwise.roofline.collectives import (
    collective_seconds,
)
from shardwise.roofline.crossover import crossover
from shardwise.roofline.matmul import (
    ElementBytes,
    critical_batch,
    critical_batch_approx,
    first_batch_at_peak,
    matmul_bytes,
    matmul_flops,
    matmul_flops_exact,
    matmul_intensity,
    matmul_times,
    padded_flops,
    split_contraction_threshold,
    split_contraction_times,
    tile_intensity,
)
from shardwise.roofline.matmul_report import MatmulRoofline, matmul_roofline
from shardwise.roofline.price import Estimate, body_times, price, price_op
from shardwise.roofline.stacks import IDEAL, Stack, load_stack, stack_names
from shardwise.roofline.strategies import (
    Priced,
    Ranking,
    collective_matmul,
    rank,
    rings,
    seconds,
    times,
)

__all__ = [
    "IDEAL",
    "ElementBytes",
    "Estimate",
    "MatmulRoofline",
    "Priced",
    "Ranking",
    "Stack",
    "Times",
    "attainable_flops",
    "body_times",
    "chip_critical_intensity",
    "collective_matmul",
    "collective_seconds",
    "critical_batch",
    "critical_batch_approx",
    "critical_intensity",
    "crossover",
    "first_batch_at_peak",
    "level_bandwidth",
    "load_stack",
    "math_seconds",
    "matmul_bytes",
    "matmul_flops",
    "matmul_flops_exact",
    "matmul_intensity",
    "matmul_roofline",
    "matmul_times",
    "padded_flops",
    "price",
    "price_op",
    "rank",
    "rings",
    "seconds",
    "split_contraction_threshold",
    "split_contraction_times",
    "stack_names",
    "tile_intensity",
    "times",
    "vector_critical_intensity",
]
