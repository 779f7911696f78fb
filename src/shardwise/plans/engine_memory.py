"""What engines keep of a GPU beside weights and cache: rows of constants by engine and release.

`planner/serve/engine_memory.py` has the formulas that they are constants of. The table is
`data/software/engine_memory.toml`; `scripts/cache_sizes.py` prints how far servers are off that
chose no constant.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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


_DATA = Path(__file__).parent / "data" / "software"


@cache
def engine_memories() -> tuple[EngineMemory, ...]:
    """Rows by engine, oldest first."""
    rows = read_toml(_DATA / "engine_memory.toml", "the memory that engines keep")["rows"]
    return tuple(map(_row, rows))


def _row(row: Mapping[str, Any]) -> EngineMemory:
    """A row of the table, whose GiB are bytes here."""
    sizes = {name: value * GIB for name, value in row.items() if name.endswith("_gib")}
    rest = {name: value for name, value in row.items() if name not in sizes}
    return EngineMemory(**rest, **{n.removesuffix("_gib"): size for n, size in sizes.items()})


DRIVER = _DATA / "driver_memory.toml"


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
    rows = [row for row in engine_memories() if row.engine == engine]
    if release:
        rows = [row for row in rows if _number(row.since) <= _number(release)] or rows[:1]
    return rows[-1] if rows else None


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release)[:3])
