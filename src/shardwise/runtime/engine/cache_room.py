"""How many pages the cache of an engine has, group by group (`models.kv.CacheGroup`)."""

from collections.abc import Sequence
from typing import Any

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig
from shardwise.models.kv import CacheGroup
from shardwise.runtime.paged_cache import page_bytes
from shardwise.scheduling.forecast import pages_for
from shardwise.scheduling.kept import KeptGroup, least_pages
from shardwise.units import format_gib


def kept_groups(
    groups: Sequence[CacheGroup], batch: int, budget: int, page_size: int, *, prefix_cache: bool
) -> tuple[KeptGroup, ...]:
    """The groups after the first: what the batch needs at most, and as much again for prefixes that
    are cached."""
    kept = []
    for group in groups[1:]:
        reach = group.reach(page_size)
        pages = least_pages(reach, batch, budget, page_size) * (2 if prefix_cache else 1)
        kept.append(KeptGroup(reach=reach, pages=pages, state=group.state))
    return tuple(kept)


def whole_pages(
    cfg: ModelConfig,
    groups: Sequence[CacheGroup],
    kept: Sequence[KeptGroup],
    *,
    batch: int,
    most_tokens: int,
    page_size: int,
    dtype: Any,
    free: float,
) -> int:
    """Pages of the first group: for the batch at full length, or as many as `free` bytes leave
    beside the others. Raises BadRequest where one sequence does not fit."""
    width = pages_for(most_tokens, page_size)
    each = page_bytes(cfg, groups[0], page_size, dtype)
    taken = sum(
        page_bytes(cfg, group, page_size, dtype) * room.pages
        for group, room in zip(groups[1:], kept, strict=True)
    )
    left = free - taken
    if left < width * each or left < 0:
        raise BadRequest(
            f"{format_gib(free)} of memory are left for the cache and one sequence of "
            f"{width * page_size:,} tokens takes {format_gib(taken + width * each)}; ask for "
            "shorter sequences, a smaller batch, or for a cache in int8"
        )
    return min(batch * width, int(left // each)) if each else batch * width
