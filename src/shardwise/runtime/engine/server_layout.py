"""How a server's weights, pages and activations lie on its mesh: a ServePlan's strategies in JAX.

The mesh is data x expert x fsdp x tensor x spread x sequence, the last three of which are the
plan's `tensor`. In the notation of plans, for a step of X tokens and P pages of S places:

    pages  K[L, P_pools, S_sequence, K_tensor]     pools: data, expert, fsdp and, where the plan
    q      q[X_pools, N_tensor, H]                 says heads_then_batch, spread
    stream x[X_{data,expert}, D_{fsdp,HEADS}]      where all tokens decode, pieces of X with prompts
    weights W_in[D_fsdp, F_HEADS], experts W[E_expert, D_fsdp, F_HEADS]

KV heads are cut over `tensor`, of which there are as many as divide them. Beyond those, sequences
are spread: every pool has sequences, pages and slots of its own, and a step's tokens stand pool
after pool, so that cutting X gives each device its own. Where sequences are fewer than devices each
page is cut along its places, too (`sequence`), and the parts of an answer are combined by their
log-sum-exp. With kv_sharding "heads" the devices of `spread` have the same heads and share queries.
`fsdp` cuts D of weights that stay in place (`planner.step.strategies.stationary`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig
from shardwise.models.specs import RecurrentMixer, ShortConv
from shardwise.plans.layouts import tensor_letter
from shardwise.plans.paged_kernel import LANES, PagedLayer
from shardwise.plans.serve import KvSharding
from shardwise.plans.served_steps import heads_of, served_parts
from shardwise.runtime.cache_entry import CACHES, SCALE
from shardwise.runtime.call import Call
from shardwise.runtime.checkpoint import of_scale
from shardwise.runtime.init import PADDED, Tree, rows_tree, tree_of
from shardwise.runtime.moe import dense_experts, ragged_experts, with_shared
from shardwise.runtime.options import Options, unmarked
from shardwise.runtime.paged_cache import JOINED
from shardwise.runtime.parallel.scattering import scattered
from shardwise.runtime.parallel.setup import axes_of
from shardwise.runtime.quant import Quantized, Weight, looked_up, products
from shardwise.runtime.sharding import devices_of, parameter_spec, platform_of

SPLITS = ("data", "expert")
WIDTH = ("fsdp",)
MIXERS = (*SPLITS, *WIDTH)
HEADS = ("tensor", "spread", "sequence")
PLACES = "sequence"
FEW = 128
"""Tokens whose products with a weight take no longer than reading it: TPUs do 166 (v5p) to 560
FLOPs for a byte of HBM, and a bf16 weight takes one for each of its bytes and tokens."""
STREAM = ("embedding", "block_input", "attention_out", "mlp_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLayout:
    """The mesh of one server, and whether `spread` cuts its sequences (else KV heads are there
    several times)."""

    mesh: jax.sharding.Mesh
    by_batch: bool

    @property
    def pools(self) -> tuple[str, ...]:
        """The axes over which sequences lie apart."""
        return (*MIXERS, "spread") if self.by_batch else MIXERS

    @property
    def pool_count(self) -> int:
        """How many pools of pages there are."""
        return self.degree(self.pools)

    def degree(self, axes: tuple[str, ...]) -> int:
        """Devices along some axes."""
        return prod(self.mesh.shape[a] for a in axes)

    def sharding(self, *spec: Any) -> NamedSharding:
        """A spec on the mesh."""
        return NamedSharding(self.mesh, PartitionSpec(*spec))

    def check_pages(self, size: int) -> None:
        """Raise BadRequest for pages that cannot be cut along their places."""
        cuts = self.mesh.shape[PLACES]
        if size % cuts:
            raise BadRequest(
                f"pages of {size} tokens cannot be cut over {cuts} devices; set "
                "scheduling.page_size to a multiple"
            )

    # Weights and pages.

    def weight_shardings(self, cfg: ModelConfig) -> Tree:
        """How each parameter is placed; BadRequest where an axis divides none of what it must."""
        return tree_of(cfg, lambda row: self.sharding(*self.weight_spec(row)))

    def weight_formats(self, cfg: ModelConfig, params: Any) -> Tree:
        """How each array of the parameters lies, small numbers' scales too."""

        def lie(row: Any, w: Any) -> Any:
            at = self.sharding(*self.weight_spec(row))
            if not isinstance(w, Quantized):
                return self._format(row, at)
            parts: Any = self._format(row, at), of_scale(at, w.scale.shape)
            return Quantized(*parts)

        return jax.tree.map(lie, rows_tree(cfg), params)

    def _format(self, row: Any, sharding: NamedSharding) -> Any:
        """How a parameter lies in a device's memory. XLA for TPUs copies all layers' of what lies
        otherwise than its products want it, in every step: the heads of a projection into them, of
        which it wants one after the other, each a matrix of D rows, as heads side by side in every
        row of D fill no tile; and a matrix whose last dim is not a whole number of lanes (29,568 of
        Qwen2-72B over four devices) but the one before is, which it wants the other way round."""
        if platform_of(self.mesh) != "tpu" or row.role != "matmul":
            return sharding
        letters = [letter for letter, _ in row.dims]
        if letters[1:2] in (["N"], ["K"]):
            narrow = row.dims[-1][1] % LANES and row.dims[0][1] % LANES == 0
            return Format(Layout((0, 2, 3, 1) if narrow else (0, 2, 1, 3)), sharding)
        rank = len(letters) + (row.group is not None)
        sizes = [size for _, size in row.dims][-2:]
        spec = [*sharding.spec, *(rank - len(sharding.spec)) * [None]][-2:]
        before, last = (
            -(-size // self.degree(axes_of(entry))) for size, entry in zip(sizes, spec, strict=True)
        )
        if last % LANES == 0 or before % LANES:
            return sharding
        return Format(Layout((*range(rank - 2), rank - 1, rank - 2)), sharding)

    def weight_spec(self, row: Any) -> PartitionSpec:
        """A row over all of the plan's `tensor` where it divides, KV heads over the devices that
        have one each; its D, where it has one, over `fsdp`."""
        axes = {axis: self.mesh.shape[axis] for axis in ("expert", "fsdp")}
        whole = {**axes, "tensor": self.degree(HEADS)}
        sizes, letter = dict(row.dims), tensor_letter(row)
        stored = WIDTH if "D" in sizes else ()
        if letter and letter not in PADDED and sizes[letter] % whole["tensor"]:
            return parameter_spec(row, {**axes, "tensor": self.mesh.shape["tensor"]}, stored)
        return PartitionSpec(*(_all_of_tensor(e) for e in parameter_spec(row, whole, stored)))

    def state_shardings(self, cfg: ModelConfig, state: Any) -> Any:
        """How what stays on the devices between steps lies: pages, and each slot's last token."""
        groups = zip(cfg.groups, state.pages, strict=True)
        pages = tuple(
            {name: self.page_sharding(name, layer.mixer) for name in arrays}
            for layer, arrays in groups
        )
        return state._replace(pages=pages, last_S=self.sharding())

    def page_sharding(self, name: str, mixer: object) -> NamedSharding:
        """How an array of a cache in pages lies; recurrent states are whole but for their pages,
        and but for channels that lie apart."""
        apart = mixer.width if isinstance(mixer, ShortConv) else heads_of(mixer)
        axes = self.axes_of(apart, apart)
        letters = "LPKS" if name.endswith(SCALE) or name == JOINED else "LPSW"
        if isinstance(mixer, RecurrentMixer):
            letters = "LP.W" if isinstance(mixer, ShortConv) else "LP"
        return self.sharding(*(axes.get(letter) for letter in letters))

    def axes_of(self, kv_heads: int, heads: int) -> dict[str, Any]:
        """The axes that cut each dim of a layer's attention, by letter: R tokens or rows of tables,
        P pages, S places of a page, K KV heads (W: side by side), N query heads."""
        tensor = self.mesh.shape["tensor"]
        axes: dict[str, Any] = {"R": self.pools, "P": self.pools, "S": PLACES}
        if kv_heads % tensor:
            return axes
        copies = () if self.by_batch or kv_heads > tensor else ("spread",)
        asked = ("tensor", *copies) if heads % self.degree(("tensor", *copies)) == 0 else "tensor"
        return {**axes, "K": "tensor", "W": "tensor", "N": asked}

    def over(
        self, function: Callable[..., Any], ins: Any, outs: Any, *, kv_heads: int, heads: int
    ) -> Callable[..., Any]:
        """A function of what one device has of a layer's attention; `ins` and `outs` name the dims
        of its arguments and answers by the letters of `axes_of`."""
        axes = self.axes_of(kv_heads, heads)

        def spec(letters: str) -> PartitionSpec:
            return PartitionSpec(*(axes.get(letter) for letter in letters))

        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=jax.tree.map(spec, ins),
            out_specs=jax.tree.map(spec, outs),
            check_vma=False,  # its loop begins with constants
        )

    # Activations of a step [1, X, ...].

    def options(self, options: Options, *, prompts: bool) -> Options:
        """The hooks of a step with or without prompts."""
        at, look_up = partial(self.lay_out, prompts), partial(self.look_up, prompts)
        dispatch = partial(self.dispatch, prompts)
        return replace(options, at=at, look_up=look_up, dispatch=dispatch)

    def look_up(self, prompts: bool, table: Weight, tokens_1X: jax.Array, dtype: Any) -> jax.Array:
        """Rows of the embedding, cut by V: each device looks up those that it has, and the sum of
        all is scattered as the stream lies. XLA would send rows over `data`, too."""
        values = table.values if isinstance(table, Quantized) else table
        count = values.shape[0] // self.degree(HEADS)
        scatter, stream = self._scatter(prompts, tokens_1X.shape[1], values.shape[1])

        def local(table: Weight, tokens_1X: jax.Array) -> jax.Array:
            rows_1X = tokens_1X - lax.axis_index(HEADS) * count
            here_1X1 = ((rows_1X >= 0) & (rows_1X < count))[..., None]
            x_1XD = looked_up(table, jnp.clip(rows_1X, 0, count - 1), dtype)
            return scatter(jnp.where(here_1X1, x_1XD, 0))

        spec: Any = PartitionSpec(HEADS, WIDTH)
        if isinstance(table, Quantized):
            parts: Any = spec, spec if table.scale.shape[1] > 1 else PartitionSpec(HEADS)
            spec = Quantized(*parts)
        inside = jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(spec, PartitionSpec(None, SPLITS)),
            out_specs=stream,
            check_vma=False,  # axes that cut neither
        )
        return inside(table, tokens_1X)

    def _scatter(
        self, prompts: bool, tokens: int, width: int
    ) -> tuple[Callable[[jax.Array], jax.Array], PartitionSpec]:
        """How a device's part [1, X_splits, D_fsdp] of a sum over tensor becomes the stream, and
        how that lies: it is scattered over X with prompts, else over D, where that divides."""
        dim, size, cut = (1, tokens, SPLITS) if prompts else (2, width, WIDTH)
        if size % self.degree((*cut, *HEADS)):
            return partial(lax.psum, axis_name=HEADS), PartitionSpec(None, SPLITS, WIDTH)
        at_once = platform_of(self.mesh) == "gpu"
        scatter = partial(scattered, dim=dim, names=HEADS, at_once=at_once)
        spec = ((*SPLITS, *HEADS), WIDTH) if prompts else (SPLITS, (*WIDTH, *HEADS))
        return scatter, PartitionSpec(None, *spec)

    def lay_out(self, prompts: bool, name: str, x: jax.Array) -> jax.Array:
        """The activation of that name, laid out."""
        if name in STREAM or name == "lookup":
            cut = ((*SPLITS, *HEADS), WIDTH) if prompts else (SPLITS, (*WIDTH, *HEADS))
            return self.lay(x, None, *cut)
        if name in ("norm", "routed"):
            return self.lay(x, None, SPLITS, WIDTH)
        if name == "logits":
            return self.lay(x, None, SPLITS, HEADS)
        if name == "qkv" and x.ndim == 3:  # of a recurrence, which lays it out anew
            return self.lay(x, None, SPLITS, HEADS)
        if x.ndim == 4:
            heads = HEADS if x.shape[2] % self.degree(HEADS) == 0 else "tensor"
            return self.lay(x, None, MIXERS if name == "qkv" else SPLITS, heads, None)
        return self.lay(x, None, SPLITS, self._width(name, x)) if x.ndim == 3 else x

    def by_rows(self, logits_RV: jax.Array) -> jax.Array:
        """Logits, whose V is cut, with whole rows on each device: some of them where tensor divides
        them, else all. Gathered part by part: XLA would put V first, and few rows fill no tile."""
        rows, columns = logits_RV.shape
        if rows % self.degree((*SPLITS, *HEADS)) == 0 or columns % self.degree(HEADS):
            return self.lay(logits_RV, (*SPLITS, *HEADS), None)

        def whole(part_RV: jax.Array) -> jax.Array:
            parts_PRV = lax.all_gather(part_RV, HEADS)
            return jnp.moveaxis(parts_PRV, 0, 1).reshape(len(part_RV), -1)

        cut = PartitionSpec(SPLITS, HEADS), PartitionSpec(SPLITS)
        spread = jax.shard_map(
            whole, mesh=self.mesh, in_specs=cut[0], out_specs=cut[1], check_vma=False
        )
        return spread(logits_RV)

    def lay(self, x: jax.Array, *spec: Any) -> jax.Array:
        """A constraint, without the entries that do not divide their dim."""
        entries = map(axes_of, spec)
        kept = [
            names if size % self.degree(names) == 0 else None
            for size, names in zip(x.shape, entries, strict=True)
        ]
        return lax.with_sharding_constraint(x, self.sharding(*kept))

    def _width(self, name: str, x: jax.Array) -> tuple[str, ...]:
        """What cuts F: sums over D are scattered over fsdp, where it divides what tensor leaves."""
        cut = (*HEADS, *WIDTH)
        return cut if name == "mlp_in" and x.shape[-1] % self.degree(cut) == 0 else HEADS

    def dispatch(
        self,
        prompts: bool,
        p: Mapping[str, Any],
        x_BTD: Any,
        weights_BTk: Any,
        chosen_BTk: Any,
        call: Call,
    ) -> jax.Array:
        """Routed experts: tokens are gathered over `expert`, each device runs those of its own
        experts on its part of F, and the sums are added up, with those of shared experts. A TPU
        that would read most experts' weights for a few tokens runs each expert on all of them,
        while it waits for the weights."""
        held = {name: w for name, w in p.items() if name.startswith("experts.")}
        shared = {name: w for name, w in p.items() if name.startswith("shared.")}
        summed = partial(lax.psum, axis_name=WIDTH)

        def into(x: jax.Array, *factors: tuple[str, Weight]) -> tuple[jax.Array, ...]:
            return tuple(map(summed, products(x, *factors)))

        inner = replace(call, options=replace(call.options, at=unmarked, into=into))
        scatter, lies = self._scatter(prompts, *x_BTD.shape[1:])
        apart = self.degree(("expert",)) > 1
        tokens, chosen = chosen_BTk.shape[1] // self.degree(("data",)), chosen_BTk.size
        few = tokens <= FEW and chosen >= _experts(p) * self.degree(("data",))
        dense = few and platform_of(self.mesh) == "tpu"
        run = partial(dense_experts, copied=True) if dense else ragged_experts

        def local(
            w: Any, own: Any, all_BTD: Any, weights_BTk: Any, chosen_BTk: Any, x_BTD: Any
        ) -> jax.Array:
            w, own = ({n: _once_in(HEADS, n, b) for n, b in some.items()} for some in (w, own))
            first = lax.axis_index("expert") * _experts(w) if apart else None
            routed = weights_BTk, chosen_BTk, inner
            sums = run(w, all_BTD, *routed, first=first, summed=summed)
            if apart:
                sums = scattered(sums, 1, ("expert",))
            return scatter(with_shared(sums, own, x_BTD, inner, summed))

        tokens = PartitionSpec(None, "data", None)
        inside = jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(
                {name: _expert_spec(name, w) for name, w in held.items()},
                {name: _shared_spec(name, w) for name, w in shared.items()},
                PartitionSpec(None, "data", WIDTH),
                tokens,
                tokens,
                PartitionSpec(None, SPLITS, WIDTH),
            ),
            out_specs=lies,
            check_vma=False,  # ragged_dot has no rule for it
        )
        return inside(held, shared, x_BTD, weights_BTk, chosen_BTk, x_BTD)


def server_layout(
    cfg: ModelConfig,
    degrees: Mapping[str, int],
    kv_sharding: KvSharding,
    batch: int,
    devices: Any,
) -> ServerLayout | None:
    """The layout of a plan's server on the first of some devices; None where that is JAX's own
    choice of one. Raises BadRequest where they are too few."""
    need = devices_of(degrees, len(devices))
    if need == 1 and devices[0] == jax.devices()[0]:
        return None
    return layout_over(cfg, degrees, kv_sharding, batch, devices[:need])


def layout_over(
    cfg: ModelConfig,
    degrees: Mapping[str, int],
    kv_sharding: KvSharding,
    batch: int,
    devices: Any,
) -> ServerLayout:
    """The layout of a plan's server over as many devices as its mesh has, here or not."""
    parts = served_parts(cfg, degrees, kv_sharding, batch)
    tensor = degrees.get("tensor", 1)
    mixers = [degrees.get(axis, 1) for axis in MIXERS]
    shape = (*mixers, tensor // parts.spread, parts.spread // parts.cuts, parts.cuts)
    mesh = jax.sharding.Mesh(np.array(devices, dtype=object).reshape(shape), (*MIXERS, *HEADS))
    return ServerLayout(mesh=mesh, by_batch=parts.by_batch)


def paged_layers(
    cfg: ModelConfig, dtype: Any, layout: ServerLayout | None
) -> tuple[PagedLayer, ...]:
    """Each layer group's attention on one device, with a cache in a dtype."""
    cache = next(name for name, kept in CACHES.items() if jnp.dtype(kept) == jnp.dtype(dtype))

    def one(mixer: Any) -> PagedLayer:
        axes: dict[str, Any] = {}
        platform, cuts = jax.default_backend(), 1
        if layout is not None:
            axes = layout.axes_of(heads_of(mixer), getattr(mixer, "heads", 1))
            platform, cuts = platform_of(layout.mesh), layout.mesh.shape[PLACES]
        held = heads_of(mixer) // (layout.degree(axes_of(axes.get("K"))) if layout else 1)
        return PagedLayer(mixer=mixer, platform=platform, cache=cache, kv_heads=held, cuts=cuts)

    return tuple(one(layer.mixer) for layer in cfg.groups)


def _all_of_tensor(entry: Any) -> Any:
    parts = tuple(part for a in axes_of(entry) for part in (HEADS if a == "tensor" else (a,)))
    return parts or None


def _expert_spec(name: str, w: Any) -> Any:
    """How a weight or bias of routed experts [E, in, out] lies while in use."""
    return _matrix_spec(name, w, "expert")


def _shared_spec(name: str, w: Any) -> Any:
    """How a weight or bias of shared experts [in, out], or the gate's [D], lies while in use."""
    return PartitionSpec(WIDTH) if name == "shared.gate_weight" else _matrix_spec(name, w)


def _matrix_spec(name: str, w: Any, *batch: str) -> Any:
    inward, outward = (HEADS, WIDTH) if ".down" in name else (WIDTH, HEADS)
    if name.endswith(".bias"):
        return PartitionSpec(*batch, outward)
    whole = PartitionSpec(*batch, inward, outward)
    if isinstance(w, Quantized):
        groups = inward if w.scale.shape[-2] > 1 else None
        parts: Any = whole, PartitionSpec(*batch, groups, outward)
        return Quantized(*parts)
    return whole


def _experts(w: Mapping[str, Any]) -> int:
    up = w["experts.up"]
    return (up.values if isinstance(up, Quantized) else up).shape[0]


def _once_in(axes: tuple[str, ...], name: str, w: Any) -> Any:
    """A bias of what is summed over some axes afterwards, added on one device of them alone; other
    weights as they are."""
    return w * (lax.axis_index(axes) == 0).astype(w.dtype) if name.endswith("down.bias") else w
