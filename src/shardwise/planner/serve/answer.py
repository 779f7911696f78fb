"""One serving plan priced: its two steps, its times, its memory and what its tokens cost.

Definitions. TPOT is one decode step of the whole batch at the mean context (prompt plus half of the
answer). TTFT is the prefill of one prompt on an idle server, which ends with the first token, and
what the engine needs before and after it: nothing waits. `tokens_per_second_per_chip` counts
answer tokens over all chips of the slice, used or idle, while it decodes; prompts are prefilled on
further servers of the same kind. Dollars per million tokens are the chip-seconds of prefill per
prompt token, and of decode per answer token, at the chip's price.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from shardwise.errors import BadRequest
from shardwise.hardware import Placement, Slice, parse_slice
from shardwise.models import ModelConfig
from shardwise.planner.checks import check_box
from shardwise.planner.price.plan import Usage
from shardwise.planner.serve.request import Utilisation
from shardwise.planner.serve.server import Phase, experts_of, heads_divide, server_of
from shardwise.planner.simulate.cost import Lag
from shardwise.plans import ServePlan
from shardwise.plans.serve import SERVE_AXES
from shardwise.roofline.bounds import Bounds
from shardwise.roofline.engines import load_engine
from shardwise.roofline.time_parts import TimeParts, estimate_parts
from shardwise.work import MemoryTimeline, Work

MILLION = 1e6
"""Prices are per million tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeAnswer(Usage):
    """A priced serving plan. Times are seconds, memory bytes per device. `prefill` is of one prompt
    on `prefill_piece`, `decode` one step of the batch."""

    plan: ServePlan
    cfg: ModelConfig
    piece: Slice
    placement: Placement
    prefill: Phase
    decode: Phase
    memory: MemoryTimeline
    prefill_piece: Slice
    lag: Lag

    @property
    def work(self) -> Work:
        """The Work of one decode step on the busiest device."""
        return self.decode.work

    @property
    def time_parts(self) -> TimeParts:
        """Where the expected seconds of a decode step go; the parts add up to them."""
        found, stack = self.decode.estimate, load_engine(self.plan.engine).stack
        engine = self.tpot_seconds.expected - float(np.reshape(found.expected, ()))
        return estimate_parts(found, stack, self.plan.mesh) + TimeParts(host=engine)

    @property
    def prefill_seconds(self) -> Bounds:
        """Prefill of one prompt."""
        return self.prefill.bounds.one()

    @property
    def tpot_seconds(self) -> Bounds:
        """One decode step of the batch at the mean context."""
        return self.decode.bounds.one()

    @property
    def ttft_seconds(self) -> Bounds:
        """Prefill of one prompt on an idle server, with what its engine adds (`Lag`)."""
        alone, prompt = self.prefill.bounds.one(), self.plan.input_length
        expected, upper = (
            float(after + self.lag.of(prompt, 0.0, 0.0)) for after in (alone.expected, alone.upper)
        )
        return Bounds(lower=alone.lower, expected=expected, upper=upper)

    @property
    def tokens_per_second_per_chip(self) -> float:
        """Answer tokens per expected second and chip of the slice, while decoding."""
        return self.plan.batch / self.tpot_seconds.expected / self.piece.chips

    @property
    def requests_per_second_per_chip(self) -> float:
        """Whole answers per expected second and chip, while decoding (QPS/chip, ch. 8.1.1)."""
        return self.tokens_per_second_per_chip / self.plan.output_length

    @property
    def prefill_servers_per_decode_server(self) -> float:
        """Servers that prefill for one that only decodes (P:G ratio, ch. 8.1.2)."""
        answer = self.tpot_seconds.expected * self.plan.output_length
        return self.prefill_seconds.expected * self.plan.batch / answer

    @property
    def tokens_per_second_per_chip_with_prefill(self) -> float:
        """Answer tokens per expected second and chip, over the chips that decode and those of the
        servers that prefill for them."""
        more = self.prefill_servers_per_decode_server * self.prefill_piece.chips / self.piece.chips
        return self.tokens_per_second_per_chip / (1 + more)

    @property
    def usd_per_million_tokens(self) -> dict[str, float | None]:
        """Dollars per million prompt tokens and answer tokens; None where no price is known."""
        prefill = self.prefill_seconds.expected / self.plan.input_length
        return costs(
            self.piece,
            prefill=prefill * self.prefill_piece.chips / self.piece.chips,
            decode=self.tpot_seconds.expected / self.plan.batch,
        )


def evaluate_serve(
    plan: ServePlan,
    cfg: ModelConfig,
    piece: Slice,
    *,
    prefill_piece: Slice | None = None,
    utilisation: Utilisation | None = None,
) -> ServeAnswer:
    """Count and price one plan; prompts on `prefill_piece` where the plan has a prefill server of
    its own. Raises BadRequest where it cannot be placed or does not divide."""
    if plan.prefill is not None:
        prefill_piece = prefill_piece or parse_slice(plan.prefill.slice)
        apart = evaluate_serve(plan.prefill_plan, cfg, prefill_piece, utilisation=utilisation)
        answer = evaluate_serve(replace(plan, prefill=None), cfg, piece, utilisation=utilisation)
        return replace(answer, plan=plan, prefill=apart.prefill, prefill_piece=prefill_piece)
    check_serve_plan(plan, cfg, piece)
    server, batch = server_of(plan, cfg, piece, utilisation=utilisation), float(plan.batch)
    placement = server.placement
    if not placement.legal:
        raise BadRequest(
            f"the mesh {mesh_text(plan.mesh)} cannot be placed on the box "
            f"{'x'.join(map(str, plan.box))} of {piece}; choose degrees that fill it"
        )
    return ServeAnswer(
        plan=plan,
        cfg=cfg,
        piece=piece,
        placement=placement,
        prefill=server.prefill(batch),
        decode=server.decode(batch),
        memory=server.memory(batch),
        prefill_piece=piece,
        lag=server.lag(pools=bool(plan.prefill_replicas)),
    )


def check_serve_plan(plan: ServePlan, cfg: ModelConfig, piece: Slice) -> None:
    """Raise BadRequest where a plan does not suit its model or slice."""
    check_box(plan.box, piece)
    devices = prod(plan.box) * piece.count * piece.chip.jax_devices_per_chip
    if plan.devices != devices:
        raise BadRequest(
            f"the mesh {mesh_text(plan.mesh)} has {plan.devices:,} devices; box "
            f"{'x'.join(map(str, plan.box))} of {piece} has {devices:,}: make them equal"
        )
    if not heads_divide(cfg, plan.degree("tensor")):
        raise BadRequest(
            f"mesh axis 'tensor' of {plan.degree('tensor')} does not divide the heads of every "
            f"layer of {cfg.name}; take a divisor and give the rest to 'data'"
        )
    if cfg.d_model % plan.degree("fsdp"):
        raise BadRequest(
            f"mesh axis 'fsdp' of {plan.degree('fsdp')} does not divide D = {cfg.d_model:,} of "
            f"{cfg.name}; take a divisor and give the rest to 'tensor' or 'data'"
        )
    experts = experts_of(cfg)
    if experts % plan.degree("expert"):
        raise BadRequest(
            f"mesh axis 'expert' of {plan.degree('expert')} does not divide the {experts} routed "
            f"expert(s) of {cfg.name}; take a divisor and give the rest to 'data'"
        )


def costs(piece: Slice, *, prefill: float, decode: float) -> dict[str, float | None]:
    """Dollars per million tokens on all chips of a slice, from seconds per prompt token and per
    answer token; None where its chip has no price."""
    price = piece.chip.price
    if price is None:
        return {"input": None, "output": None}
    usd_per_second = price.usd_per_chip_hour / 3600 * piece.chips
    return {
        "input": MILLION * usd_per_second * prefill,
        "output": MILLION * usd_per_second * decode,
    }


def mesh_text(mesh: Mapping[str, int]) -> str:
    """A mesh in words, outermost axis first."""
    return " x ".join(f"{a}={mesh[a]}" for a in SERVE_AXES if mesh.get(a, 1) > 1) or "one device"
