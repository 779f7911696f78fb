"""What engines keep of a GPU beside weights and cache: rows of constants by engine and release.

`planner/serve/engine_memory.py` has the formulas that they are constants of. They come from the
rows of `evidence/serving/data/cache_sizes.csv` that are not held out; `scripts/cache_sizes.py`
prints how far the others are off.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shardwise.boundary import read_toml
from shardwise.hardware import Chip

GIB = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """One engine from release `since` on.

    `of_total`: its memory share is of all memory, else of what is free once it has its context.
    `of_free`: its share is of what weights and all else leave, and all of that is the cache's.
    `alone` and `ranks` are bytes outside its allocator, of one rank and of several that exchange;
    `logits` bytes that the sampler has per sequence and word; `reserves`: peaks are taken off the
    cache, and `reserves_graphs`: so are graphs. `groups`: layers whose cache keeps other tokens
    lie in groups of one size, filled up with empty layers. `spare_states`: recurrent states kept
    per running sequence, for prefixes too. `whole_windows`: its line counts windows whole. D of
    experts in mxfp4 is filled up to a multiple of 256, a rank's F to one of `mxfp4_width`.
    With `window_share` layers with a window have a pool of their own, of so many tokens for one of
    the others.
    """

    engine: str
    since: str
    of_total: bool = True
    of_free: bool = False
    alone: float
    ranks: float
    logits: float
    reserves: bool = True
    reserves_graphs: bool = False
    keeps_scratch: bool = False
    groups: bool = False
    whole_windows: bool = True
    spare_states: int = 1
    mxfp4_width: int = 64
    window_share: float = 0.0
    graphs: bool = True
    sizes: int = 51


_VLLM = {"engine": "vllm", "ranks": 0.55 * GIB, "groups": True}
ENGINE_MEMORY: tuple[EngineMemory, ...] = (
    EngineMemory(**{**_VLLM, "ranks": 0.6 * GIB}, since="0.2", alone=0.3 * GIB, logits=38),
    # NCCL's own buffers were counted until 0.11.1.
    EngineMemory(
        **{**_VLLM, "ranks": 1.4 * GIB}, since="0.8", alone=0.13 * GIB, logits=38, mxfp4_width=128
    ),
    EngineMemory(**_VLLM, since="0.11.1", alone=0.13 * GIB, logits=38),
    EngineMemory(
        **{**_VLLM, "ranks": 2.1 * GIB},
        since="0.17",
        alone=0.25 * GIB,
        logits=14,
        keeps_scratch=True,
    ),
    EngineMemory(
        **{**_VLLM, "ranks": 2.1 * GIB},
        since="0.21",
        alone=0.25 * GIB,
        logits=14,
        keeps_scratch=True,
        reserves_graphs=True,
        whole_windows=False,
    ),
    EngineMemory(
        engine="sglang",
        since="0.4",
        of_total=False,
        alone=0.5 * GIB,
        ranks=1.6 * GIB,
        logits=12,
        reserves=False,
        spare_states=3,
        window_share=0.8,  # its --swa-full-tokens-ratio
    ),
    # (total - peak) * free_gpu_memory_fraction, the peak with NCCL and graphs (its
    # _torch/pyexecutor/_util.py); what is outside and the logits are assumed: as vLLM's.
    EngineMemory(
        engine="trtllm",
        since="1.0",
        of_free=True,
        alone=0.25 * GIB,
        ranks=2.1 * GIB,
        logits=14,
        reserves_graphs=True,
    ),
)
"""Rows by engine, oldest first."""

DRIVER = Path(__file__).parent / "data" / "software" / "driver_memory.toml"


@cache
def _beyond() -> Mapping[str, float]:
    """GiB by which the memory that the driver shows is larger than what programs can use."""
    return read_toml(DRIVER, "the memory that drivers show")["beyond_gib"]


def seen_bytes(chip: Chip) -> float:
    """Bytes that the driver shows; of chips that no log was seen of 1 GiB more than is usable."""
    usable = chip.require("hbm_usable_bytes")
    if chip.id in _beyond():
        return usable + _beyond()[chip.id] * GIB
    return min(usable + GIB, max(chip.hbm_bytes or usable, usable))


def engine_memory(engine: str, chip: Chip, release: str = "") -> EngineMemory | None:
    """The row of an engine on a chip, of the newest release unless told; None where nothing is
    known of it, and its memory is counted as ours."""
    if chip.vendor != "nvidia":
        return None
    rows = [row for row in ENGINE_MEMORY if row.engine == engine]
    if release:
        rows = [row for row in rows if _number(row.since) <= _number(release)] or rows[:1]
    return rows[-1] if rows else None


def _number(release: str) -> tuple[int, ...]:
    """A release in the order of releases."""
    return tuple(int(part) for part in re.findall(r"\d+", release)[:3])
