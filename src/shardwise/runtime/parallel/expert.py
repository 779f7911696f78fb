"""Expert parallelism: experts lie apart over `expert`, tokens travel to theirs and back.

Stored `W[E_expert, D, F_tensor]`, or with `expert_over_tensor` `W[E_{expert,tensor}, D, F]`. Each
device routes the tokens it holds and sorts the (token, choice) rows by expert. Then:

- "ragged" (dropless): rows go where their experts are, by `ragged_all_to_all`; where there is none
  (CPU) by an `all_to_all` of full blocks, each large enough for all rows of its sender;
- "dense": every expert has ceil(capacity x rows / E) slots for each device's own rows, filled or
  not; a row beyond them, in the order of the tokens, is dropped (GShard, arXiv 2006.16668). The
  capacity is thus per shard: which rows are dropped follows from the mesh, not from the batch.

Under sequence parallelism a device of tensor sends its piece of the tokens (`routes_pieces`).
Where tensor cuts the width of the experts, rows are then gathered over it where they arrive, and
the partial sums scattered before the way back; without an exchange, or without sequence
parallelism, all devices of tensor have the same rows, and the sums are added after.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil, prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from shardwise.models.numerics import Numerics
from shardwise.plans.layouts import routes_pieces
from shardwise.plans.train import TrainPlan
from shardwise.runtime.call import Call
from shardwise.runtime.grouped import grouped_product, grouped_product_tpu
from shardwise.runtime.init import stored_rows
from shardwise.runtime.mlp import activate
from shardwise.runtime.moe import with_shared
from shardwise.runtime.parallel.scattering import scattered
from shardwise.runtime.parallel.setup import Setup, one_or_all
from shardwise.runtime.sharding import platform_of

Params = Mapping[str, jax.Array]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The `dispatch` hook: rows to their experts and back, inside `shard_map` over the mesh.

    `specs` holds, by layer group, how the weights of its experts lie while in use.
    """

    setup: Setup
    specs: Mapping[str, P]
    platform: str = "cpu"

    def __call__(
        self, p: Params, x_BTD: jax.Array, weights_BTk: jax.Array, chosen_BTk: jax.Array, call: Call
    ) -> jax.Array:
        """Sum over the k chosen experts of weight * expert(x), and shared ones, [B, T, D]."""
        plan, axes = self.setup.plan, self.setup.axes
        over = plan.expert_over_tensor
        held = {name: w for name, w in p.items() if name.startswith("experts.")}
        tokens = self.setup.activation("dispatched", x_BTD.shape)
        stream = self.setup.activation("mlp_out", x_BTD.shape)
        partial = () if over else tuple(a for a in ("tensor",) if a in axes)
        scatters = bool(partial) and stream != tokens and not routes_pieces(plan)
        local = _Local(
            plan=plan,
            numerics=call.numerics,
            apart=_apart(self.setup),
            partial=partial,
            pieces=routes_pieces(plan),
            scatters=scatters,
            platform=self.platform,
        )
        inside = jax.shard_map(
            local,
            mesh=self.setup.mesh,
            in_specs=({name: self.specs[name] for name in held}, tokens, tokens, tokens),
            out_specs=stream if scatters else tokens,
            check_vma=False,  # ragged_dot and the exchanges have no rule for it everywhere
        )
        return with_shared(inside(held, x_BTD, weights_BTk, chosen_BTk), p, x_BTD, call)


def _apart(setup: Setup) -> tuple[str, ...]:
    """The axes that experts lie apart over."""
    names = ("expert", "tensor") if setup.plan.expert_over_tensor else ("expert",)
    return tuple(a for a in names if a in setup.axes)


def dispatch_for(setup: Setup) -> Dispatch | None:
    """The hook of a plan, None where no layer has experts."""
    rows = [row for row in stored_rows(setup.cfg) if row.name.startswith("experts.")]
    if not rows:
        return None
    apart = one_or_all(_apart(setup))
    specs = {row.name: P(*setup.used(row)[1:]) for row in rows}
    # Biases of experts are stored like any bias; in use they lie beside their matrices.
    for name in [name for name in specs if name.endswith(".bias")]:
        specs[name] = P(apart, specs[name.removesuffix(".bias")][-1])
    return Dispatch(setup, specs, platform_of(setup.mesh))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Local:
    """What one device does: its own tokens, all devices' rows for its own experts.

    `apart` are the axes of the exchange, `partial` that of the experts' width; with `pieces` its
    devices have tokens of their own, and where it `scatters` they get their piece of the sums.
    """

    plan: TrainPlan
    numerics: Numerics
    apart: tuple[str, ...]
    partial: tuple[str, ...]
    pieces: bool
    scatters: bool
    platform: str

    @property
    def places(self) -> int:
        """Devices that the experts lie apart over."""
        return prod(lax.axis_size(axis) for axis in self.apart)

    def __call__(
        self, w: Params, x_BTD: jax.Array, weights_BTk: jax.Array, chosen_BTk: jax.Array
    ) -> jax.Array:
        (B, T, D), k = x_BTD.shape, chosen_BTk.shape[-1]
        expert_R = chosen_BTk.reshape(-1)
        order_R = jnp.argsort(expert_R, stable=True)
        rows_RD = x_BTD.reshape(B * T, D)[order_R // k]
        run = self._ragged if self.plan.expert_dispatch == "ragged" else self._slots
        out_RD = run(w, rows_RD, expert_R[order_R])
        out_RD = out_RD * weights_BTk.reshape(-1)[order_R][:, None]
        out_BTD = jnp.zeros((B * T, D), x_BTD.dtype).at[order_R // k].add(out_RD)
        out_BTD = out_BTD.reshape(B, T, D)
        if self.pieces or not self.partial:
            return out_BTD
        if self.scatters:
            return scattered(out_BTD, 1, self.partial, at_once=self.platform == "gpu")
        return lax.psum(out_BTD, self.partial)

    def _slots(self, w: Params, rows_RD: jax.Array, expert_R: jax.Array) -> jax.Array:
        """Rows sorted by expert -> their outputs; 0 for those that found no slot."""
        (R, D), here = rows_RD.shape, w["experts.up"].shape[0]
        E = here * self.places
        slots = ceil(self.plan.expert_capacity * R / E)
        starts_E = jnp.searchsorted(expert_R, jnp.arange(E))
        rank_R = jnp.arange(R) - starts_E[expert_R]
        at_R = jnp.where(rank_R < slots, expert_R * slots + rank_R, E * slots)
        sent = jnp.zeros((E * slots, D), rows_RD.dtype).at[at_R].set(rows_RD, mode="drop")
        got = self._gathered(self._exchange(sent.reshape(self.places, here, slots, D)))
        x_EMD = jnp.moveaxis(got, 0, 1).reshape(here, -1, D)
        out_EMD = self._experts(w, x_EMD)
        back = jnp.moveaxis(out_EMD.reshape(here, -1, slots, D), 1, 0)
        back = self._exchange(self._scattered(back)).reshape(E * slots, D)
        return back.at[at_R].get(mode="fill", fill_value=0)

    def _experts(self, w: Params, x_EMD: jax.Array) -> jax.Array:
        """The MLP of every expert on the slots that are its own."""

        def every(name: str, spec: str, x: jax.Array) -> jax.Array:
            out = jnp.einsum(spec, x, w[name].astype(x.dtype))
            return out + self._bias(w, name, x.dtype)[:, None] if f"{name}.bias" in w else out

        up = every("experts.up", "EMD,EDF->EMF", x_EMD)
        gated = "experts.gate" in w
        gate = every("experts.gate", "EMD,EDF->EMF", x_EMD) if gated else None
        return every("experts.down", "EMF,EFD->EMD", activate(up, gate, self.numerics))

    def _ragged(self, w: Params, rows_RD: jax.Array, expert_R: jax.Array) -> jax.Array:
        """Rows sorted by expert -> their outputs, all of them."""
        here = w["experts.up"].shape[0]
        sizes_E = jnp.bincount(expert_R, length=here * self.places)
        if self.places == 1:
            return self._grouped(w, rows_RD, expert_R, sizes_E)
        sizes_PE = sizes_E.reshape(self.places, here)  # mine, by the place that has the expert
        if self.platform != "cpu":
            return self._by_ragged_exchange(w, rows_RD, sizes_PE)
        return self._by_blocks(w, rows_RD, sizes_PE)

    def _by_blocks(self, w: Params, rows_RD: jax.Array, sizes_PE: jax.Array) -> jax.Array:
        """A block of R rows to every place, most of it empty."""
        (R, D), places = rows_RD.shape, self.places
        count_P = sizes_PE.sum(1)
        start_P = jnp.cumsum(count_P) - count_P
        place_R = jnp.repeat(jnp.arange(places), count_P, total_repeat_length=R)
        at_R = place_R * R + jnp.arange(R) - start_P[place_R]
        sent = jnp.zeros((places * R, D), rows_RD.dtype).at[at_R].set(rows_RD)
        got = self._exchange(sent.reshape(places, R, D)).reshape(places * R, D)
        got_PE = self._exchange(sizes_PE)  # theirs for me, by sender
        ends_PE = jnp.cumsum(got_PE, axis=1)
        number = jax.vmap(lambda ends: jnp.searchsorted(ends, jnp.arange(R), side="right"))
        expert = number(ends_PE).reshape(-1)
        sizes_E = self._gathered(got_PE).sum(0)
        out = self._sorted_here(w, self._gathered(got), self._gathered(expert), sizes_E)
        back = self._scattered(out).reshape(places, R, D)
        return self._exchange(back).reshape(places * R, D)[at_R]

    def _by_ragged_exchange(self, w: Params, rows_RD: jax.Array, sizes_PE: jax.Array) -> jax.Array:
        """Every row once, into the receiver's buffer behind those of the senders before."""
        R, places, axis = rows_RD.shape[0], self.places, self.apart
        all_SPE = lax.all_gather(sizes_PE, axis)  # sender, receiver, expert
        counts_SP, me = all_SPE.sum(2), lax.axis_index(axis)
        starts_SP = jnp.cumsum(counts_SP, axis=0) - counts_SP  # in the receiver's buffer
        offsets_SP = jnp.cumsum(counts_SP, axis=1) - counts_SP  # in the sender's rows
        there, here = counts_SP[me], counts_SP[:, me]
        away = Parcels(offsets_SP[me], there, starts_SP[me], here)
        back = Parcels(starts_SP[:, me], here, offsets_SP[:, me], there)
        got: Any = _send(Rooms(places * R, R), axis, rows_RD, away, back)
        run = self._everyones if self._cuts_both else self._in_runs
        sent: Any = _send(Rooms(R, places * R), axis, run(w, got, all_SPE[:, me]), back, away)
        return sent

    def _everyones(self, w: Params, rows_MD: jax.Array, sizes_SE: jax.Array) -> jax.Array:
        """Outputs of rows of which every device of tensor has some: all send theirs to all, and
        each adds up what all made of its own. Only rows that are there travel."""
        (M, D), axis, n = rows_MD.shape, self.partial, lax.axis_size(self.partial)
        all_TSE = lax.all_gather(sizes_SE, axis)
        count_T, me = all_TSE.sum((1, 2)), lax.axis_index(axis)
        start_T, block_T = jnp.cumsum(count_T) - count_T, jnp.arange(n) * M
        mine_T, from_T = jnp.full(n, count_T[me]), jnp.full(n, start_T[me])
        copies = jnp.broadcast_to(rows_MD[None], (n, M, D)).reshape(n * M, D)
        away = Parcels(block_T, mine_T, from_T, count_T)
        back = Parcels(start_T, count_T, jnp.full(n, me * M), mine_T)
        got: Any = _send(Rooms(n * M, n * M), axis, copies, away, back)
        out = self._in_runs(w, got, all_TSE.reshape(-1, sizes_SE.shape[1]))
        sent: Any = _send(Rooms(n * M, n * M), axis, out, back, away)
        return sent.reshape(n, M, D).sum(0)

    def _in_runs(self, w: Params, rows: jax.Array, sizes_SE: jax.Array) -> jax.Array:
        """Outputs of rows that lie sender by sender, expert by expert, from the first one on."""
        own = sizes_SE.shape[1]
        number = jnp.searchsorted(
            jnp.cumsum(sizes_SE.reshape(-1)), jnp.arange(len(rows)), side="right"
        )
        expert = jnp.where(number < sizes_SE.size, number % own, own)
        return self._sorted_here(w, rows, expert, sizes_SE.sum(0))

    def _sorted_here(
        self, w: Params, rows: jax.Array, expert: jax.Array, sizes_E: jax.Array
    ) -> jax.Array:
        """Outputs of rows in any order; those of no expert (number E) give what is not read."""
        order = jnp.argsort(expert, stable=True)  # unique, else gradients number elements in u32
        out = self._grouped(w, rows[order], expert[order], sizes_E)
        return jnp.zeros_like(out).at[order].set(out, unique_indices=True)

    def _grouped(
        self, w: Params, rows_RD: jax.Array, expert_R: jax.Array, sizes_E: jax.Array
    ) -> jax.Array:
        multiplied = grouped_product_tpu if self.platform == "tpu" else grouped_product

        def each(name: str, x: jax.Array) -> jax.Array:
            out = multiplied(x, w[name].astype(x.dtype), sizes_E.astype(jnp.int32))
            if f"{name}.bias" not in w:
                return out
            return out + self._bias(w, name, x.dtype).at[expert_R].get(mode="fill", fill_value=0)

        up = each("experts.up", rows_RD)
        gate = each("experts.gate", rows_RD) if "experts.gate" in w else None
        return each("experts.down", activate(up, gate, self.numerics))

    def _bias(self, w: Params, name: str, dtype: jnp.dtype) -> jax.Array:
        """A bias; that of the way down is added once where tensor adds partial sums."""
        bias = w[f"{name}.bias"].astype(dtype)
        if name == "experts.down" and self.partial:
            return jnp.where(lax.axis_index(self.partial) == 0, bias, jnp.zeros_like(bias))
        return bias

    def _gathered(self, x: jax.Array) -> jax.Array:
        """What all devices of tensor have, one behind the other, where each has its own tokens."""
        return lax.all_gather(x, self.partial, tiled=True) if self._cuts_both else x

    def _scattered(self, x: jax.Array) -> jax.Array:
        """The sum over tensor of what `_gathered` was made into, each device its own part."""
        return lax.psum_scatter(x, self.partial, tiled=True) if self._cuts_both else x

    @property
    def _cuts_both(self) -> bool:
        """Whether tensor cuts the tokens and the experts' width."""
        return self.pieces and bool(self.partial)

    def _exchange(self, x: jax.Array) -> jax.Array:
        """Block p of dim 0 to place p; block p of the result came from there."""
        if self.places == 1:
            return x
        return lax.all_to_all(x, self.apart, split_axis=0, concat_axis=0, tiled=True)


class Parcels(NamedTuple):
    """Of an exchange of rows: counts[p] rows from offsets[p] on go to place p, behind its row
    places[p]; coming[p] arrive from there."""

    offsets_P: jax.Array
    counts_P: jax.Array
    places_P: jax.Array
    coming_P: jax.Array


class Rooms(NamedTuple):
    """Rows of the buffer that an exchange fills, and of what it sends."""

    filled: int
    sent: int


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _send(
    rooms: Rooms, axis: tuple[str, ...], rows: jax.Array, away: Parcels, back: Parcels
) -> jax.Array:
    """`ragged_all_to_all` of rows into a buffer for them; what nobody fills stays as it is.
    Gradients go the way back, into a buffer like that of the rows: JAX's own rule, and a buffer of
    zeros, would fill it first, on TPUs at a fortieth of the memory's rate (docs/lab/log.md)."""
    del back

    def empty() -> jax.Array:
        return lax.empty((rooms.filled, *rows.shape[1:]), rows.dtype)

    # Always the same, but not known: else the buffer leaves the loop over layers and is copied in.
    room = lax.cond(away.counts_P[0] >= 0, empty, empty)
    parcels = (x.astype(jnp.int32) for x in away)
    return lax.ragged_all_to_all(rows, room, *parcels, axis_name=axis)


def _send_forward(
    rooms: Rooms, axis: tuple[str, ...], rows: jax.Array, away: Parcels, back: Parcels
) -> tuple[jax.Array, Any]:
    return _send(rooms, axis, rows, away, back), (away, back)


def _send_backward(rooms: Rooms, axis: tuple[str, ...], kept: Any, d: jax.Array) -> Any:
    away, back = kept
    return _send(Rooms(rooms.sent, rooms.filled), axis, d, back, away), None, None


_send.defvjp(_send_forward, _send_backward)
