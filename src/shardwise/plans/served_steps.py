"""The steps of our own engine: into how many pools of pages a server's sequences are parted, and to
how many rows and tokens a step is padded.

    pools = data x expert x fsdp x spread,   spread = devices of `tensor` that share a KV head

The engine lays out its mesh and compiles its programs by it (`runtime/engine/`), and a plan's
collectives are compared with its program's by it (`profiler/collectives/served.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, gcd

from shardwise.models import Attention, ModelConfig
from shardwise.plans.serve import KvSharding, ServePlan

QUERY_BLOCK = 16
"""Tokens of a prompt that attend together; a chunk is padded to whole blocks."""
LEAST_ROWS = 2
MIXED_ROWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedParts:
    """How a server's sequences lie apart: over `mixers` devices (data, expert, fsdp), over the
    `spread` devices of tensor that share a KV head where `by_batch`, and there each along its
    places in `cuts` parts, of devices that sequences leave over."""

    mixers: int
    spread: int
    cuts: int
    by_batch: bool

    @property
    def pools(self) -> int:
        """Pools of pages, each with sequences of its own."""
        return self.mixers * (self.spread // self.cuts if self.by_batch else 1)


def served_parts(
    cfg: ModelConfig, degrees: Mapping[str, int], kv_sharding: KvSharding, batch: int
) -> ServedParts:
    """The parts of a server of a mesh with a cache that is cut so."""
    tensor = degrees.get("tensor", 1)
    heads = max((heads_of(layer.mixer) for layer, _ in cfg.layer_groups()), default=1)
    mixers = degrees.get("data", 1) * degrees.get("expert", 1) * degrees.get("fsdp", 1)
    spread, cuts = tensor // gcd(tensor, heads), 1
    if kv_sharding == "heads_then_batch_then_sequence":
        most = max(int(spread // max(batch / mixers, 1)), 1)
        cuts = next(cuts for cuts in range(most, 0, -1) if spread % cuts == 0)
    by_batch = kv_sharding != "heads"
    return ServedParts(mixers=mixers, spread=spread, cuts=cuts, by_batch=by_batch)


def heads_of(mixer: object) -> int:
    """KV heads that a layer caches; a latent cache is one."""
    return mixer.kv_heads if isinstance(mixer, Attention) else 1


def power(count: int, least: int) -> int:
    """The smallest power of two from `least` on that is not below."""
    return max(least, 1 << max(count - 1, 0).bit_length())


def most_rows(batch: int) -> int:
    """Rows of a pool's whole batch: a power of two, or the batch in whole eights."""
    return min(power(batch, LEAST_ROWS), -(-batch // MIXED_ROWS) * MIXED_ROWS)


def prompt_tokens(plan: ServePlan, pools: int) -> int:
    """Tokens of a pool's prompt in one step: its share of a chunk, in whole blocks."""
    chunks = ceil(plan.input_length / plan.prefill_chunk)
    share = ceil(plan.input_length / chunks / pools)
    return ceil(share / QUERY_BLOCK) * QUERY_BLOCK


def emitting_rows(tokens: int, batch: int) -> int:
    """Rows of a pool of so many sequences that emit after `tokens` of prompts: one a chunk."""
    return max(LEAST_ROWS, min(tokens // QUERY_BLOCK, most_rows(batch))) if tokens else 0
