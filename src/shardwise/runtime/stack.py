"""The stack of layers as loops: runs of a repeating pattern become one scan each.

Parameters of a layer group are stacked in the order of their layers, `[layers of the group, ...]`.
Gemma 2 is one segment (window, full) x L/2, DeepSeek-V3 two: dense x 3, then experts x 58.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.models import ModelConfig
from shardwise.models.numerics import Rope
from shardwise.models.runnable import numerics_of
from shardwise.runtime.attention.paged import Paging
from shardwise.runtime.call import Call, Past
from shardwise.runtime.layer import run_layer
from shardwise.runtime.options import rematerialised

LONGEST_PERIOD = 16


@dataclass(frozen=True, slots=True)
class PeriodLayer:
    """One layer of a period: its group, how many of that group the period has before it, and its
    rotation."""

    group: int
    index: int
    rope: Rope | None


@dataclass(frozen=True, slots=True)
class Segment:
    """`times` repetitions of `period`, the first at `starts[group]` in each group's stack."""

    period: tuple[PeriodLayer, ...]
    times: int
    starts: tuple[tuple[int, int], ...]

    def count(self, group: int) -> int:
        """Layers of a group in one period."""
        return sum(place.group == group for place in self.period)


@lru_cache(maxsize=128)
def segments(cfg: ModelConfig, first: int = 0, last: int | None = None) -> tuple[Segment, ...]:
    """The layers from `first` to before `last` as segments; `starts` count from that group's first
    layer in the range, as a pipeline stage holds its layers."""
    n = numerics_of(cfg)
    kinds = [(cfg.pattern[i], n.rope(i)) for i in range(cfg.layers)][first:last]
    found, at, seen = [], 0, dict.fromkeys(range(len(cfg.groups)), 0)
    while at < len(kinds):
        length, times = _best(kinds, at)
        counts: dict[int, int] = {}
        period = []
        for group, rope in kinds[at : at + length]:
            period.append(PeriodLayer(group, counts.get(group, 0), rope))
            counts[group] = counts.get(group, 0) + 1
        starts = tuple((group, seen[group]) for group in counts)
        found.append(Segment(tuple(period), times, starts))
        for group, count in counts.items():
            seen[group] += count * times
        at += length * times
    return tuple(found)


def _best(kinds: Sequence[object], at: int) -> tuple[int, int]:
    """Length and times of the repeated block from `at` that covers the most layers."""
    best = (1, 1)
    for length in range(1, LONGEST_PERIOD + 1):
        block, times = kinds[at : at + length], 1
        while kinds[at + length * times : at + length * (times + 1)] == block:
            times += 1
        if (times > 1 or length == 1) and length * times > best[0] * best[1]:
            best = (length, times)
    return best


def run_stack(
    layers: tuple[Any, ...],
    x_BTD: jax.Array,
    cfg: ModelConfig,
    call: Call,
    cache: tuple[Any, ...] | None = None,
    *,
    fresh: bool = False,
    lengths_B: jax.Array | None = None,
    paging: Sequence[Paging] | None = None,
    first: int = 0,
    last: int | None = None,
    wanted: jax.Array | None = None,
) -> tuple[jax.Array, tuple[Any, ...] | None]:
    """All layers, or those of a stage; the cache is carried through the loop and updated in place.

    `layers[group]` maps names to `[layers of the group in the range, ...]`; or it is a tuple of
    these layers (`unstacked`), which are run without a loop. `paging` has one for each group. Where
    only some places of T are `wanted`, x is of those, and so is the MLP of a last layer that is in
    no loop.
    """

    def past(group: int, arrays: dict[str, jax.Array], layer: Any) -> Past:
        place = None if paging is None else paging[group]
        return Past(arrays, layer, fresh, paging=place, lengths_B=lengths_B)

    found = segments(cfg, first, last)
    for segment in found:
        own = wanted if segment is found[-1] else None
        x_BTD, cache = _run_segment(layers, x_BTD, cfg, call, cache, past, segment, own)
    return x_BTD, cache


def _run_segment(
    layers: tuple[Any, ...],
    x_BTD: jax.Array,
    cfg: ModelConfig,
    call: Call,
    cache: tuple[Any, ...] | None,
    past_of: Callable[..., Past],
    segment: Segment,
    wanted: jax.Array | None = None,
) -> tuple[jax.Array, tuple[Any, ...] | None]:
    starts, stacked = dict(segment.starts), isinstance(layers[segment.starts[0][0]], Mapping)
    looped = segment.times > 1 and call.options.scan and stacked

    def one(
        place: PeriodLayer, wanted: Any, p: Any, x_BTD: jax.Array, past: Past | None
    ) -> tuple[jax.Array, Any]:
        used = call.options.use(place.group, p)
        return run_layer(used, x_BTD, cfg.groups[place.group], place.rope, call, past, wanted)

    def taken(group: int, at: Any) -> Any:
        """One layer of a stack that no gradient is asked for. Taken from the whole stack: what is
        cut of a part of it, or of the layers of a period together, XLA copies in every step."""
        return jax.tree.map(
            lambda w: lax.dynamic_index_in_dim(w, at, keepdims=False), layers[group]
        )

    def body(carry: tuple[jax.Array, Any], xs: tuple[Any, Any]) -> tuple[Any, None]:
        (x_BTD, held), (params, step) = carry, xs
        for place in segment.period:
            at = starts[place.group] + step * segment.count(place.group) + place.index
            with jax.named_scope("parameters"):
                p = _layer(params[place.group], place.index) if params else taken(place.group, at)
            past = None
            if held is not None:
                past = past_of(place.group, held[place.group], at)
            ends = not looped and step == segment.times - 1 and place is segment.period[-1]
            run = partial(one, place, wanted if ends else None)
            if held is None:
                run = rematerialised(run, call.options, looped=looped)
            x_BTD, arrays = run(p, x_BTD, past)
            if held is not None:
                held = (*held[: place.group], arrays, *held[place.group + 1 :])
        return (x_BTD, held), None

    params: Any = None
    if cache is None or not stacked:
        params = {
            group: _slice(layers[group], segment, group, start) for group, start in starts.items()
        }
    if looped:
        steps = jnp.arange(segment.times)
        (x_BTD, cache), _ = lax.scan(body, (x_BTD, cache), (params, steps))
        return x_BTD if wanted is None else x_BTD[:, wanted], cache
    own: Any = [None] * segment.times
    if params is not None:
        own = (_apart if stacked else _periods)(params, segment.times)
    carry = (x_BTD, cache)
    for step in range(segment.times):
        carry, _ = body(carry, (own[step], step))
    return carry


def _apart(params: Any, times: int) -> list[Any]:
    """The tree of each repetition. Split, not indexed: the gradient of a split is a concatenation,
    that of an index a stack of zeros for each layer, and a sum of them all."""
    leaves, tree = jax.tree.flatten(params)
    pieces = [lax.split(w, (1,) * times) for w in leaves]
    return [tree.unflatten([w[step][0] for w in pieces]) for step in range(times)]


def keeps_stacks(platform: str) -> bool:
    """Whether a layer that is taken of a stack, in a step without gradients, is read where it lies:
    on TPUs. On CPUs XLA copies what it takes, and what it puts into a loop, whole and in every
    step; on GPUs it copies each layer's weights before their product, three times the bytes."""
    return platform == "tpu"


def unstacked(
    params: Mapping[str, Any], take: Callable[[Any, int], Any] = lambda w, i: w[i]
) -> dict[str, Any]:
    """The parameters with each layer's apart, each of them by `take` of a stack."""

    def layers(stack: Mapping[str, Any]) -> tuple[Any, ...]:
        count = jax.tree.leaves(stack)[0].shape[0]
        return tuple(jax.tree.map(lambda w, i=i: take(w, i), dict(stack)) for i in range(count))

    return {**params, "layers": tuple(map(layers, params["layers"]))}


def _periods(params: Mapping[int, Any], times: int) -> list[Any]:
    """The layers of each repetition, where they are apart."""
    counts = {group: len(layers) // times for group, layers in params.items()}
    return [
        {group: params[group][step * n : (step + 1) * n] for group, n in counts.items()}
        for step in range(times)
    ]


def _layer(period: Any, index: int) -> Any:
    """One layer of a group's in a period."""
    if isinstance(period, tuple):
        return period[index]
    return jax.tree.map(lambda w: w[index], period)


def _slice(stacked: Any, segment: Segment, group: int, start: int) -> Any:
    """The segment's layers of one group, [times, per period, ...]; no copy where it is all."""
    count = segment.count(group)
    if isinstance(stacked, tuple):
        return stacked[start : start + segment.times * count]

    def cut(w: jax.Array) -> jax.Array:
        part = w[start : start + segment.times * count] if segment.times * count < len(w) else w
        return part.reshape(segment.times, count, *w.shape[1:])

    return jax.tree.map(cut, stacked)
