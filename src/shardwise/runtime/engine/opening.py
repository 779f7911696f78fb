"""From a checkpoint's folder to an engine that can step: what is stored how, and how much of it.

What is not said is chosen: weights in the checkpoint's dtype (float32 on CPUs, where 16 bits are
slower), a cache in the same, as many pages as the batch can use at full length or as the memory
leaves, whichever is less.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil, prod
from pathlib import Path
from typing import Any, NamedTuple

import jax

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig, load_model, weight_dtype
from shardwise.models.kv import CacheGroup, cache_groups
from shardwise.plans.serve import ENGINE_CACHES, ENGINE_WEIGHTS, KvSharding, ServeScheduling
from shardwise.runtime.cache_entry import CACHES
from shardwise.runtime.checkpoint import load
from shardwise.runtime.engine.cache_room import CacheRoom, kept_groups
from shardwise.runtime.engine.core import Engine
from shardwise.runtime.engine.hosts import FollowingHost, LeadingExecutor, LeadingHost, least_of_all
from shardwise.runtime.engine.model_executor import DraftModel, ModelExecutor
from shardwise.runtime.engine.server_layout import ServerLayout, server_layout
from shardwise.runtime.engine.slot_engine import SlotEngine
from shardwise.runtime.precision import dtype_of
from shardwise.runtime.quant import NARROW
from shardwise.runtime.text.text_files import end_tokens
from shardwise.scheduling import SchedulerConfig
from shardwise.scheduling.forecast import pages_for
from shardwise.scheduling.routing import Routing

PAGE = 16
"""Tokens of a page unless said."""
HOST_SHARE = 0.5
"""Of the host's free memory that caches take unless said, where devices have none of their own."""
LONGEST = 4096
"""Tokens of a sequence unless said, where the model takes as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How a checkpoint is served. `weights` and `cache` are dtypes by the names of plans;
    None chooses. `batch` sequences at once, `budget` tokens of a step, sequences of at
    most `most_tokens`; `pages` (None: what the memory leaves): all of one replica, whose devices
    are `mesh` (none named: one), with its cache cut by `kv_sharding`. `replicas` of them answer,
    and `prefill_replicas` on `prefill_mesh` compute their prompts. `draft` is the checkpoint of a
    model that makes the guesses of `scheduling`; without it a sequence's own past does."""

    batch: int = 32
    budget: int = 512
    most_tokens: int | None = None
    pages: int | None = None
    memory_share: float | None = None
    """Of a device's memory that this process was given; of the host's for devices without."""
    host_pages: int = 0
    weights: str | None = None
    cache: str | None = None
    multi_step: int = 1
    seed: int | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)
    kv_sharding: KvSharding = "heads_then_batch"
    replicas: int = 1
    prefill_replicas: int = 0
    prefill_mesh: Mapping[str, int] = field(default_factory=dict)
    routing: Routing = "shortest_queue"
    draft: Path | None = None
    adapters: Sequence[Path] = ()
    """Each is added to a copy of the weights, which answers beside the model itself."""
    scheduling: ServeScheduling = field(default_factory=partial(ServeScheduling, page_size=PAGE))

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        prefill = self.prefill_replicas * prod(self.prefill_mesh.values())
        return self.replicas * prod(self.mesh.values()) + prefill


class Formats(NamedTuple):
    """Dtypes by the names of plans: of weights and cache in memory, and of the products."""

    weights: str
    cache: str
    compute: str


def formats_of(settings: EngineSettings, cfg: ModelConfig) -> Formats:
    """Those asked for, else those of the model and the device. Raises BadRequest."""
    compute = settings.weights or _compute_dtype(cfg)
    compute = _compute_dtype(cfg) if compute in NARROW else compute
    found = Formats(settings.weights or compute, settings.cache or compute, compute)
    if found.weights not in ENGINE_WEIGHTS:
        raise BadRequest(
            f"weights in {found.weights}; the engine supports {', '.join(ENGINE_WEIGHTS)}"
        )
    if found.cache not in ENGINE_CACHES:
        raise BadRequest(
            f"a cache in {found.cache}; the engine supports {', '.join(ENGINE_CACHES)}"
        )
    return found


def open_engine(
    folder: Path,
    settings: EngineSettings,
    end_ids: frozenset[int] = frozenset(),
    hosts: LeadingHost | FollowingHost | None = None,
) -> Engine:
    """Load a checkpoint and make its engine; `end_ids` are the tokenizer's, beside those of the
    folder's configs. Of several `hosts` each does the same. Raises BadRequest for what cannot be
    served."""
    cfg = load_model(folder)
    devices = jax.devices()
    if settings.devices > len(devices):
        raise BadRequest(
            f"{settings.devices} devices are requested and {len(devices)} are here; plan for "
            f"these, or use virtual ones with --cpu-devices {settings.devices}"
        )
    if hosts is not None:
        _check_hosts(settings, len(devices))
    if settings.adapters and (hosts is not None or settings.prefill_replicas):
        raise BadRequest(
            "adapters need one host, and replicas that compute their own prompts; "
            "leave out --lora-modules, or plan without prefill replicas"
        )
    _check_guesses(settings, cfg, cache_groups(cfg, _most_tokens(cfg, settings.most_tokens)), hosts)
    opening = _Opening(folder, cfg, settings, end_ids | end_tokens(folder), hosts)
    answering = [
        server
        for _ in range(settings.replicas)
        for server in opening.servers(settings.mesh, devices)
    ]
    prefilling = [
        server
        for _ in range(settings.prefill_replicas)
        for server in opening.servers(settings.prefill_mesh, devices, prefills=True)
    ]
    return Engine(
        answering[0].config,
        *(server.executor for server in answering),
        prefilling=[server.executor for server in prefilling],
        prefill=prefilling[0].config if prefilling else None,
        routing=settings.routing,
        end_ids=opening.end_ids,
        most_tokens=opening.most_tokens,
        multi_step=settings.multi_step,
        variants=1 + len(settings.adapters),
        drafted=settings.draft is not None,
        seed=settings.seed,
    )


def open_slots(
    folder: Path | str,
    *,
    slots: int = 4,
    longest: int | None = None,
    weights: str | None = None,
    cache: str | None = None,
    page_size: int = PAGE,
    budget: int = 512,
) -> SlotEngine:
    """The book's verbs over a checkpoint on the first device, without a scheduler: `slots` of
    sequences of at most `longest` tokens, prompts computed `budget` tokens at a time; dtypes as
    `EngineSettings` names them. Raises BadRequest for what cannot be served."""
    path = Path(folder)
    cfg = load_model(path)
    kept = formats_of(EngineSettings(weights=weights, cache=cache), cfg)
    most = _most_tokens(cfg, longest)
    groups, pages = cache_groups(cfg, most), pages_for(most, page_size)
    narrow = kept.weights if kept.weights in NARROW else None
    executor = ModelExecutor(
        load(path, cfg, dtype_of(kept.compute), kept=narrow),
        cfg,
        groups=groups,
        pages=[(slots + 1) * pages] * len(groups),
        page_size=page_size,
        table_width=pages,
        batch=slots + 1,
        budget=budget,
        dtype=CACHES[kept.cache],
        compute=kept.compute,
    )
    return SlotEngine(
        executor,
        slots=slots,
        pages=pages,
        page_size=page_size,
        groups=len(groups),
        budget=budget,
    )


class _LoadedServer(NamedTuple):
    """One replica that is loaded: its executor, and how each of its pools is scheduled."""

    executor: ModelExecutor
    config: SchedulerConfig


class _Opening:
    """Servers of one checkpoint, each on the next devices."""

    def __init__(
        self,
        folder: Path,
        cfg: ModelConfig,
        settings: EngineSettings,
        end_ids: frozenset[int],
        hosts: LeadingHost | FollowingHost | None,
    ) -> None:
        self.end_ids = end_ids
        self.most_tokens = _most_tokens(cfg, settings.most_tokens)
        self._folder, self._cfg, self._settings = folder, cfg, settings
        weights, cache, self._compute = formats_of(settings, cfg)
        self._narrow = weights if weights in NARROW else None
        self._cache_dtype = CACHES[cache]
        self._used, self._hosts = 0, hosts
        self._draft = None if settings.draft is None else self._read_draft(settings.draft)

    def servers(
        self, degrees: Mapping[str, int], devices: Sequence[Any], *, prefills: bool = False
    ) -> list[_LoadedServer]:
        """Load one on the next of the devices, and beside it one with each of the adapters."""
        settings, first = self._settings, self._used
        self._used += prod(degrees.values())
        own = devices[first : self._used]
        layout = server_layout(self._cfg, degrees, settings.kv_sharding, settings.batch, own)
        if layout is not None:
            layout.check_pages(settings.scheduling.page_size)
        loaded = [self._params(layout, adapter) for adapter in (None, *settings.adapters)]
        groups = cache_groups(self._cfg, self.most_tokens)
        config = self._config(groups, layout, own, prefills)
        return [
            _LoadedServer(self._executor(params, config, groups, layout, prefills), config)
            for params in loaded
        ]

    def _executor(
        self,
        params: Mapping[str, Any],
        config: SchedulerConfig,
        groups: Sequence[CacheGroup],
        layout: ServerLayout | None,
        prefills: bool,
    ) -> ModelExecutor:
        leads = isinstance(self._hosts, LeadingHost)
        executor = (LeadingExecutor if leads else ModelExecutor)(
            params,
            self._cfg,
            groups=groups,
            lookahead=config.lookahead,
            draft=None if prefills else self._draft,
            pages=(config.pages, *(group.pages for group in config.kept)),
            page_size=config.page_size,
            table_width=pages_for(self.most_tokens + config.lookahead, config.page_size),
            batch=config.batch,
            budget=config.budget,
            dtype=self._cache_dtype,
            compute=self._compute,
            host_pages=(config.host_pages, *(0 for _ in config.kept)),
            end_ids=self.end_ids,
            multi_step=self._settings.multi_step,
            layout=layout,
        )
        if isinstance(executor, LeadingExecutor) and isinstance(self._hosts, LeadingHost):
            executor.tell = self._hosts.tell
        return executor

    def _params(self, layout: ServerLayout | None, adapter: Path | None) -> Mapping[str, Any]:
        lies = None if layout is None else layout.weight_shardings(self._cfg)
        dtype = dtype_of(self._compute)
        params = load(self._folder, self._cfg, dtype, lies, self._narrow, adapter)
        if layout is None:
            return params
        return jax.device_put(params, layout.weight_formats(self._cfg, params))

    def _config(
        self,
        groups: Sequence[CacheGroup],
        layout: ServerLayout | None,
        devices: Sequence[Any],
        prefills: bool,
    ) -> SchedulerConfig:
        """Of one pool, which has its share of the replica's pages, rows and tokens of a step."""
        settings, pools = self._settings, 1 if layout is None else layout.pool_count
        batch, wanted = ceil(settings.batch / pools), settings.scheduling
        guesses, size = 0 if prefills else wanted.guesses, wanted.page_size
        budget = max(ceil(settings.budget / pools), batch * (1 + guesses) + 1)
        kept = kept_groups(groups, batch, budget, size, prefix_cache=wanted.prefix_cache)
        room = CacheRoom(
            cfg=self._cfg,
            groups=groups,
            kept=kept,
            page_size=size,
            dtype=self._cache_dtype,
            layout=layout,
        )
        host = settings.memory_share or HOST_SHARE
        free = _free_bytes(devices, settings.devices, wanted.memory_share, host)
        free /= 1 + len(settings.adapters)
        if settings.pages:
            pages = ceil(settings.pages / pools)
        else:
            pages = room.whole_pages(batch, self.most_tokens, free)
        return SchedulerConfig(
            pages=least_of_all(pages),
            page_size=size,
            batch=batch,
            budget=budget,
            policy="prefill" if prefills else wanted.policy,
            prefix_cache=wanted.prefix_cache,
            host_pages=ceil(settings.host_pages / pools),
            admission=wanted.admission,
            margin=wanted.margin,
            order=wanted.order,
            age=wanted.age_seconds,
            max_waiting=ceil(wanted.max_waiting / pools),
            refuse_late=wanted.refuse_late,
            kept=kept,
            lookahead=guesses,
        )

    def _read_draft(self, folder: Path) -> DraftModel:
        cfg = load_model(folder)
        if cfg.vocabulary != self._cfg.vocabulary:
            raise BadRequest(
                f"the draft model '{cfg.name}' has {cfg.vocabulary:,} tokens and "
                f"'{self._cfg.name}' {self._cfg.vocabulary:,}; give one with the same tokenizer"
            )
        if len(cache_groups(cfg, self.most_tokens)) > 1:
            raise BadRequest(
                f"layers of the draft model '{cfg.name}' keep only a part of a sequence; give a "
                "draft model whose layers all attend to the whole sequence"
            )
        return DraftModel(load(folder, cfg, dtype_of(self._compute)), cfg)


def _check_guesses(
    settings: EngineSettings, cfg: ModelConfig, groups: Sequence[CacheGroup], hosts: Any
) -> None:
    if settings.draft is not None and not settings.scheduling.guesses:
        raise BadRequest("a draft model needs the number of guesses per step; give --guesses 3")
    if not settings.scheduling.guesses:
        return
    if len(groups) > 1:
        raise BadRequest(
            f"layers of '{cfg.name}' keep only a part of a sequence, and a wrong guess cannot be "
            "removed from it; serve it without guesses"
        )
    if settings.draft is not None and (hosts is not None or settings.devices > 1):
        raise BadRequest("a draft model needs a model on one device; use n-gram guesses")


def keep_programs() -> None:
    """Let this process keep what it compiles, and find what others have: below $XDG_CACHE_HOME,
    else ~/.cache, where JAX names a program by its content and the compiler's version."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", str(Path(home) / "shardwise" / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _compute_dtype(cfg: ModelConfig) -> str:
    if jax.default_backend() == "cpu":
        return "f32"
    return "f16" if weight_dtype(cfg, "") == "f16" else "bf16"


def _most_tokens(cfg: ModelConfig, asked: int | None) -> int:
    """The longest sequence: what was asked for, within what the model was made for."""
    made_for = cfg.learned_tokens or cfg.max_context or LONGEST
    if asked is not None and asked > made_for:
        raise BadRequest(
            f"sequences of {asked:,} tokens exceed the {made_for:,} positions of model "
            f"'{cfg.name}'; ask for at most that many"
        )
    return asked or min(made_for, LONGEST)


def _check_hosts(settings: EngineSettings, devices: int) -> None:
    if settings.replicas > 1 or settings.prefill_replicas:
        raise BadRequest(
            "several hosts can serve one replica only; start other replicas and prefill pools as "
            "separate servers"
        )
    if settings.devices != devices or settings.host_pages:
        raise BadRequest(
            f"the hosts have {devices} devices and the plan's mesh {settings.devices}; each host "
            "holds a part of the mesh, so make them equal"
        )


def _free_bytes(devices: Sequence[Any], sharing: int, share: float, host: float) -> float:
    """Bytes of the fullest device that the cache may take, the weights being loaded, where a
    `share` is used; devices without memory of their own share that part of what the `host` has
    free with all `sharing` ones."""
    here = [device for device in devices if device.process_index == jax.process_index()]
    stats = [device.memory_stats() or {} for device in here]
    if all("bytes_limit" in s for s in stats):
        return min(share * s["bytes_limit"] - s.get("bytes_in_use", 0) for s in stats)
    return host * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / sharing
