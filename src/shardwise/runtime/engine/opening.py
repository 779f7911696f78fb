"""From a checkpoint's folder to an engine that can step: what is stored how, and how much of it.

What is not said is chosen: weights in the checkpoint's dtype (float32 on CPUs, where 16 bits are
slower), a cache in the same, as many pages as the batch can use at full length or as the memory
leaves, whichever is less.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import jax

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig, load_model, weight_dtype
from shardwise.models.kv import cache_groups
from shardwise.runtime.cache_entry import CACHES
from shardwise.runtime.checkpoint import load
from shardwise.runtime.engine.cache_room import kept_groups, whole_pages
from shardwise.runtime.engine.core import Engine
from shardwise.runtime.engine.model_executor import ModelExecutor
from shardwise.runtime.precision import DTYPES, dtype_of
from shardwise.runtime.quant import NARROW
from shardwise.scheduling import SchedulerConfig
from shardwise.scheduling.forecast import pages_for
from shardwise.scheduling.policies import Policy

LONGEST = 4096
"""Tokens of a sequence unless said, where the model takes as many."""
MEMORY_SHARE = 0.9
"""Of an accelerator's memory; a host's is shared with others, and half of what is free is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How a checkpoint is served. `weights` and `cache` are dtypes by the names of plans;
    None chooses. `batch` sequences at once, `budget` tokens of a step, sequences of at
    most `most_tokens`; `pages` of `page_size` tokens (None: what the memory leaves)."""

    batch: int = 32
    budget: int = 512
    most_tokens: int | None = None
    page_size: int = 16
    pages: int | None = None
    host_pages: int = 0
    weights: str | None = None
    cache: str | None = None
    policy: Policy = "chunked"
    prefix_cache: bool = True
    multi_step: int = 1
    max_waiting: int = 0
    seed: int | None = None


def open_engine(
    folder: Path, settings: EngineSettings, end_ids: frozenset[int] = frozenset()
) -> Engine:
    """Load a checkpoint and make its engine; `end_ids` are the tokenizer's, beside those of the
    folder's configs. Raises BadRequest for what cannot be served."""
    cfg = load_model(folder)
    compute = _compute_dtype(cfg)
    weights, cache = settings.weights or compute, settings.cache or compute
    if weights in DTYPES:
        compute, cache = weights, settings.cache or weights
    elif weights not in NARROW:
        raise BadRequest(
            f"weights in {weights}; the engine keeps them in one of {', '.join((*DTYPES, *NARROW))}"
        )
    if cache not in CACHES:
        raise BadRequest(f"a cache in {cache}; the engine keeps it in one of {', '.join(CACHES)}")
    small = weights if weights in NARROW else None
    params = load(folder, cfg, dtype_of(compute), kept=small)
    dtype = CACHES[cache]
    most_tokens = _most_tokens(cfg, settings.most_tokens)
    width = pages_for(most_tokens, settings.page_size)
    groups = cache_groups(cfg, most_tokens)
    size, budget = settings.page_size, settings.budget
    kept = kept_groups(groups, settings.batch, budget, size, prefix_cache=settings.prefix_cache)
    pages = settings.pages or whole_pages(
        cfg,
        groups,
        kept,
        batch=settings.batch,
        most_tokens=most_tokens,
        page_size=size,
        dtype=dtype,
        free=_free_bytes(),
    )
    config = SchedulerConfig(
        pages=pages,
        page_size=settings.page_size,
        batch=settings.batch,
        budget=settings.budget,
        policy=settings.policy,
        prefix_cache=settings.prefix_cache,
        host_pages=settings.host_pages,
        max_waiting=settings.max_waiting,
        kept=kept,
    )
    end_ids |= end_tokens(folder)
    executor = ModelExecutor(
        params,
        cfg,
        groups=groups,
        pages=(pages, *(group.pages for group in kept)),
        page_size=size,
        table_width=width,
        batch=settings.batch,
        budget=settings.budget,
        dtype=dtype,
        compute=compute,
        host_pages=(settings.host_pages, *(0 for _ in kept)),
        end_ids=end_ids,
        multi_step=settings.multi_step,
    )
    return Engine(
        config,
        executor,
        end_ids=end_ids,
        most_tokens=most_tokens,
        multi_step=settings.multi_step,
        seed=settings.seed,
    )


def keep_programs() -> None:
    """Let this process keep what it compiles, and find what others have: below $XDG_CACHE_HOME,
    else ~/.cache, where JAX names a program by its content and the compiler's version."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", str(Path(home) / "shardwise" / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def end_tokens(folder: Path) -> frozenset[int]:
    """The ids that end an answer, by generation_config.json, else by config.json."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if path.exists():
            ids = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            if ids is not None:
                return frozenset(ids if isinstance(ids, list) else [ids])
    return frozenset()


def _compute_dtype(cfg: ModelConfig) -> str:
    if jax.default_backend() == "cpu":
        return "f32"
    return "f16" if weight_dtype(cfg, "") == "f16" else "bf16"


def _most_tokens(cfg: ModelConfig, asked: int | None) -> int:
    """The longest sequence: what was asked for, within what the model was made for."""
    made_for = cfg.position_rows or cfg.max_context or LONGEST
    if asked is not None and asked > made_for:
        raise BadRequest(
            f"sequences of {asked:,} tokens are longer than the {made_for:,} positions of model "
            f"'{cfg.name}'; ask for at most that many"
        )
    return asked or min(made_for, LONGEST)


def _free_bytes() -> float:
    """Bytes of the device that the cache may take, the weights being loaded."""
    stats = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return MEMORY_SHARE * stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
