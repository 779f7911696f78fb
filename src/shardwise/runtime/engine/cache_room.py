"""How many pages the cache of an engine has, group by group (`models.kv.CacheGroup`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig
from shardwise.models.kv import CacheGroup
from shardwise.runtime.engine.server_layout import paged_layers
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRoom:
    """A cache of which a pool has its `kept` groups beside the first; a `layout` cuts it."""

    cfg: ModelConfig
    groups: Sequence[CacheGroup]
    kept: Sequence[KeptGroup]
    page_size: int
    dtype: Any
    layout: Any = None

    def whole_pages(self, batch: int, most_tokens: int, free: float) -> int:
        """Pages of the first group: for the batch at full length, or as many as `free` bytes of a
        device leave beside the others. Raises BadRequest where one sequence does not fit."""
        width, each = pages_for(most_tokens, self.page_size), self._bytes(self.groups[0])
        taken = sum(
            self._bytes(group) * room.pages
            for group, room in zip(self.groups[1:], self.kept, strict=True)
        )
        left = free - taken
        if left < width * each or left < 0:
            raise BadRequest(
                f"{format_gib(free)} of memory are free for the cache, and one sequence of "
                f"{width * self.page_size:,} tokens takes {format_gib(taken + width * each)}; "
                "use shorter sequences, a smaller batch or an int8 cache"
            )
        return min(batch * width, int(left // each)) if each else batch * width

    def _bytes(self, group: CacheGroup) -> int:
        layers = paged_layers(self.cfg, self.dtype, self.layout)
        return page_bytes(self.cfg, group, self.page_size, self.dtype, self.layout, layers)
