"""What attention kernels reach on each generation of chips, over the best that there is for it.

`Efficiency.attention` is the rate of the best kernel; an older library, which knows nothing of a
newer chip's instructions, reaches a share of it (`data/attention_kernels.toml`, from benchmarks of
the kernels).
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from shardwise.boundary import read_toml

_DATA = Path(__file__).parent / "data" / "attention_kernels.toml"


@cache
def _table() -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    return read_toml(_DATA, "the table of attention kernels")


def kernel_rate(kernel: str, generation: str) -> float:
    """The rate of a kernel over that of the best on a generation; 1 where nothing is known.

    >>> kernel_rate("fa2", "hopper") < kernel_rate("fa2", "ampere") == 1.0
    True
    """
    return _table().get(kernel, {}).get(generation, {}).get("value", 1.0)


FORWARD = "forward attention"
"""What `forward_rate` is called."""


def forward_rate(generation: str) -> tuple[float, str] | None:
    """The share of the dense peak that the best forward kernel reaches in 16 bits, long sequences
    and heads of 128 or 256, and its source; None where nothing was measured."""
    found = cast(Mapping[str, Any], _table()["forward"]).get(generation)
    return None if found is None else (found["value"], found["source"])


def latent_rate(dtype: str, generation: str) -> float | None:
    """The share of the dense peak at which queries meet a latent cache in decode; None where
    nothing was measured.

    >>> latent_rate("bf16", "hopper") > latent_rate("fp8", "hopper")
    True
    """
    found = _table().get(f"latent_{dtype}", {}).get(generation)
    return None if found is None else found["value"]
