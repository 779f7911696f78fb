"""From a checkpoint folder to an engine on the device at hand."""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig, load_model
from shardwise.runtime.checkpoint import load
from shardwise.runtime.engine.core import Engine
from shardwise.runtime.engine.model_executor import ModelExecutor
from shardwise.runtime.paged_cache import page_bytes
from shardwise.scheduling import SchedulerConfig
from shardwise.scheduling.forecast import pages_for

DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "int8": jnp.int8}
PAGE = 16
"""Tokens of a page."""
LONGEST = 8192
"""Tokens of a sequence where the model's config says nothing, or more."""
SHARE = 0.8
"""Of a device's free memory, for the cache."""
CPU_CACHE = 2 * 2**30
"""Bytes of the cache on a CPU, whose memory others use too."""

Tell = Callable[[str], None]


def open_engine(
    folder: Path,
    end_ids: frozenset[int],
    *,
    sequences: int,
    budget: int,
    longest: int = 0,
    kv_tokens: int = 0,
    dtype: str = "",
    kv: str = "",
    warm: str = "lazy",
    tell: Tell = lambda _: None,
) -> Engine:
    """The engine of a model: `sequences` run at once, `budget` tokens in a step, `longest` in a
    sequence, `kv_tokens` in the cache (0: what the model and the device take). `warm` compiles all
    shapes of steps before the first request, or each as it comes. Raises BadRequest."""
    cfg = load_model(folder)
    compute = dtype or ("f32" if jax.default_backend() == "cpu" else "bf16")
    for name in (compute, kv or compute):
        if name not in DTYPES:
            raise BadRequest(f"dtype '{name}' is not served; take one of {', '.join(DTYPES)}")
    tell(f"loading {folder}")
    params = load(folder, cfg, None if compute == "int8" else DTYPES[compute])
    longest = longest or min(cfg.max_context or LONGEST, LONGEST)
    pages = _pages(cfg, DTYPES[kv or compute], kv_tokens, sequences * longest)
    config = SchedulerConfig(pages=pages, page_size=PAGE, batch=sequences, budget=budget)
    longest = min(longest, pages * PAGE)
    executor = ModelExecutor(
        params,
        cfg,
        pages=pages,
        page_size=PAGE,
        table_width=pages_for(longest, PAGE),
        batch=sequences,
        budget=budget,
        dtype=DTYPES[kv or compute],
        compute=compute,
        end_ids=end_ids,
    )
    for i, _ in enumerate(executor.warm() if warm == "all" else (), 1):
        tell(f"compiling step {i} of {sum(1 for _ in executor.shapes())}")
    return Engine(config, executor, end_ids=end_ids, most_tokens=longest)


def _pages(cfg: ModelConfig, dtype: object, kv_tokens: int, most: int) -> int:
    """Pages of the cache: as asked, else what the device has room for, and no more than used."""
    if kv_tokens:
        return pages_for(kv_tokens, PAGE)
    stats = jax.devices()[0].memory_stats() or {}
    free = SHARE * (stats["bytes_limit"] - stats["bytes_in_use"]) if stats else CPU_CACHE
    return max(min(int(free) // page_bytes(cfg, PAGE, dtype), pages_for(most, PAGE)), 1)
