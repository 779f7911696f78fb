"""A server's step as our engine runs it: what its program moves otherwise than the plan's list.

The planner counts what a step of any server moves. Our engine pads rows and tokens to few shapes,
gives every pool of pages a prompt of its own, and can draw tokens; all of it follows from the plan
(`plans/served_steps.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from shardwise.models import ModelConfig
from shardwise.models.specs import ShortConv
from shardwise.plans import ServePlan
from shardwise.plans.served_steps import emitting_rows, most_rows, prompt_tokens, served_parts
from shardwise.profiler.collectives.lines import Line, activation_dtype
from shardwise.units import dtype_bytes
from shardwise.work import CollectiveKind

SERVED = {
    "own prompts": "a step of prompts has one for each pool of pages, so that no keys, values or "
    "states are gathered over the axes that cut the tokens",
    "padded": "rows that decode are padded to a power of two or whole eights, prompts to whole "
    "blocks; a pool of pages has as many rows as any other",
    "channels": "where sequences are spread over devices of one KV head, those of a short "
    "convolution are too: its inputs go to them and its outputs back",
    "whole rows": "a step can draw tokens, for which logits that tensor cuts along the vocabulary "
    "are exchanged so that each device has whole rows, or all of them where it does not divide "
    "the rows",
}
"""Name -> what it is."""
OWN = ("/attention.kv", "/scan.states")
"""Exchanges between the parts of one prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepRows:
    """Of a copy of the weights: tokens of a step as planned and as run, and those of its last
    matmul."""

    planned: float
    run: float
    samples_planned: float
    samples: float


def as_served(
    plan: ServePlan, cfg: ModelConfig, planned: Sequence[Line]
) -> tuple[tuple[str, tuple[Line, ...], tuple[Line, ...]], ...]:
    """(name, lines of the plan's list that go, those that come) of each difference, in order.

    Padding takes a plan's bytes times `rows run / rows planned`; whole rows are `rows V`.
    """
    prefill = any(line.name.startswith("prefill") for line in planned)
    rows, here = _rows(plan, cfg, prefill), list(planned)
    found: list[tuple[str, tuple[Line, ...], tuple[Line, ...]]] = []
    if own := tuple(line for line in here if line.name.endswith(OWN)):
        found.append(("own prompts", own, ()))
        here = [line for line in here if line not in own]
    more = tuple(replace(line, bytes=line.bytes * _padding(rows, line)) for line in here)
    if more != tuple(here):
        found.append(("padded", tuple(here), more))
    parts = served_parts(cfg, plan.mesh, plan.kv_sharding, plan.batch)
    convolved = sum(
        layers * layer.mixer.width
        for layer, layers in cfg.layer_groups()
        if isinstance(layer.mixer, ShortConv)
    )
    if convolved and parts.by_batch and parts.spread > parts.cuts:
        both = 2 * rows.run * convolved
        found.append(("channels", (), (_line(plan, "channels", "all_to_all", both),)))
    tensor = plan.degree("tensor")
    if tensor > 1:
        columns = ceil(cfg.vocabulary / tensor) * tensor
        kind = "all_gather" if rows.samples % tensor else "all_to_all"
        line = _line(plan, "whole rows", kind, rows.samples * columns, "f32")
        found.append(("whole rows", (), (line,)))
    return tuple(found)


def _line(
    plan: ServePlan, name: str, kind: CollectiveKind, elements: float, dtype: str = ""
) -> Line:
    dtype = dtype or activation_dtype(plan)
    size = elements * dtype_bytes(dtype)
    return Line(kind=kind, axes=("tensor",), bytes=size, count=1.0, name=name, dtype=dtype)


def _padding(rows: _StepRows, line: Line) -> float:
    sampled = ".sample/" in line.name
    return rows.samples / rows.samples_planned if sampled else rows.run / rows.planned


def _rows(plan: ServePlan, cfg: ModelConfig, prefill: bool) -> _StepRows:
    splits = plan.degree("data") * plan.degree("expert")
    pools = served_parts(cfg, plan.mesh, plan.kv_sharding, plan.batch).pools
    if not prefill:
        planned, run = ceil(plan.batch / splits), pools * most_rows(ceil(plan.batch / pools))
        return _StepRows(
            planned=planned, run=run / splits, samples_planned=planned, samples=run / splits
        )
    chunks, tokens = ceil(plan.input_length / plan.prefill_chunk), prompt_tokens(plan, pools)
    return _StepRows(
        planned=ceil(plan.input_length / chunks / splits) * chunks,
        run=tokens * pools / splits,
        samples_planned=1,
        samples=emitting_rows(tokens, 1) * pools / splits,
    )
