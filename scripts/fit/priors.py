"""What each constant is expected to be before any training run is seen.

Kernel timings and compilers' schedules where they exist (`rates.py`); the literature, or an
assumption that says so (`constants.py`), elsewhere.
"""

from collections.abc import Mapping

from fit.constants import kind_of, names
from fit.hierarchy import Prior
from fit.rates import measured_priors

ATTENTION: Mapping[str, Prior] = {
    "ampere.attention": Prior(
        value=0.55, source="FlashAttention-2 paper: 50 to 73 % of an A100's peak, least backward"
    ),
    "hopper.attention": Prior(
        value=0.55, source="FlashAttention-3 paper: 75 % of an H100's peak forward, less backward"
    ),
    "blackwell.attention": Prior(
        value=0.50, source="assumed: somewhat below hopper's, as its peak grew more"
    ),
}
STACKS: Mapping[str, Prior] = {
    "xla.launch_seconds": Prior(
        value=5e-7,
        sigma=2.5e-7,
        source="assumed: one program runs a step, without the host, and an op begins within a "
        "microsecond of the one before",
    ),
    "xla.passes": Prior(value=1.3, source="assumed: XLA fuses nearly all elementwise work"),
}
"""Where a stack is expected to differ from the others."""


def prior_values() -> dict[str, Prior]:
    """A prior for every fitted constant, measured where kernel timings or a compiler's schedules
    say it."""
    known = {**ATTENTION, **STACKS, **measured_priors()}
    return {name: known.get(name) or _assumed(name) for name in names()}


def _assumed(name: str) -> Prior:
    kind = kind_of(name)
    return Prior(value=kind.expected, source=kind.source)
