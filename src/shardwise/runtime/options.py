"""How a model is run: dtypes, remat policy, attention kernel, and the hooks of a strategy.

An `Options` is a frozen value that can be hashed, so it is a static argument under `jit`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isinf
from typing import Any, Literal

import jax
from jax import ad_checkpoint

from shardwise.errors import check_known
from shardwise.models.remat import SAVED_KINDS, TREATMENTS, remat_row
from shardwise.plans.software.xla_programs import apart_from
from shardwise.runtime.attention.dense import dense_attention
from shardwise.runtime.attention.scoring import Kernel
from shardwise.runtime.precision import dtype_of
from shardwise.runtime.quant import looked_up, product, products

Apart = Literal["passes", "matmuls", "nothing"]
"""What a compiler is kept from with a gated activation: in the backward pass finding factors of the
forward pass and keeping them, computing it within the matmuls around it, or nothing."""

COSTLY = frozenset(
    {
        *("dot_general", "ragged_dot_general", "all_to_all", "ragged_all_to_all", "all_gather"),
        "dot_product_attention_fwd_wrapper",
    }
)
"""JAX primitives whose results stay under a policy that keeps all, whatever they are called; the
last is cuDNN's attention, which else ran again in the backward pass for its statistics."""


def unmarked(name: str, x: jax.Array) -> jax.Array:
    """The default hook: nothing happens to a named activation."""
    return x


def as_stored(group: int, params: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
    """The default hook: a layer uses its parameters as they are stored."""
    return params


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Choices of one run; dtypes and policies are named as in a plan.

    `remat_kinds` overrides `remat` by kind of activation. `kernel` computes attention from
    queries, keys and values (`attention/scoring.py`); the dense one takes those of an int8 cache
    with their scales. `experts` says how tokens reach them: every
    expert on every token ("dense"), or sorted by expert ("ragged"). Two hooks serve strategies:
    `at(name, x)` sees each activation of SAVED_KINDS plus "lookup", "embedding" and "logits" (a
    sharding constraint, a collective in `shard_map`); a norm that routed experts alone read is
    "routed" to it. `use(group, params)` sees the parameters of a layer just before they are used
    (a gather); for those outside the stack the group is -1.
    `gathered` says whether what that hook made stays for the backward pass. `dispatch`, where
    given, sends tokens to their experts instead (`moe.Dispatch`). `into(x, (spec, w), ...)` and
    `out_of(spec, x, w)` are the matmuls into and out of attention and a dense MLP (`quant.product`,
    `linear.py`); `look_up(table, tokens, dtype)` gives the rows of the embedding. `rows` makes one
    matrix of all tokens for the logits (`quant.row_product`). `apart` is how the activation of a
    gated dense MLP is made where there is a gradient.
    """

    compute: str = "f32"
    remat: str = "none"
    remat_kinds: tuple[tuple[str, str], ...] = ()
    experts: Literal["dense", "ragged"] = "dense"
    kernel: Kernel = dense_attention
    at: Callable[[str, jax.Array], jax.Array] = unmarked
    use: Callable[[int, Mapping[str, jax.Array]], Mapping[str, jax.Array]] = as_stored
    gathered: Literal["keep", "recompute"] = "keep"
    dispatch: Callable[..., jax.Array] | None = None
    into: Callable[..., tuple[jax.Array, ...]] = products
    out_of: Callable[..., jax.Array] = product
    look_up: Callable[..., jax.Array] = looked_up
    rows: bool = False
    apart: Apart = "passes"
    scan: bool = True

    def __post_init__(self) -> None:
        dtype_of(self.compute)
        remat_row(self.remat)
        for kind, treatment in self.remat_kinds:
            check_known("kind of activation", kind, SAVED_KINDS)
            check_known("treatment", treatment, TREATMENTS)
        check_known("expert dispatch", self.experts, ("dense", "ragged"))

    @property
    def dtype(self) -> Any:
        """The JAX dtype that matmuls compute in."""
        return dtype_of(self.compute)

    def mark(self, name: str, x: jax.Array) -> jax.Array:
        """Name an activation for the remat policy, after the strategy's hook has seen it.

        Kernels of attention name their output themselves, with what else their gradient needs:
        named again, a transposed copy of it would be kept beside it.
        """
        x = self.at(name, x)
        return x if name == "attention" else ad_checkpoint.checkpoint_name(x, name)


def activation_apart(kind: str, width: int, remat: str, *, looped: bool) -> Apart:
    """How the activation of an MLP of width D is made on such a device, by its name in JAX.

    Where all is kept, the two passes are two loops, and what keeps their factors apart only copies
    up and gate out of their stacks. Where matmuls are made again, some compilers take smaller
    windows for those whose operands are computed on the way (on v5p 1.5 times the cycles for the
    gradients). Without a gate, and for other compilers, a pass of its own costs as much as it
    saves, or more (`plans/data/software/xla_programs.toml`)."""
    least = apart_from(kind)
    if isinf(least):
        return "passes"
    if remat_row(remat).tape and looped:
        return "nothing"
    return "matmuls" if width >= least else "passes"


def rematerialised(
    body: Callable[..., Any], options: Options, *, looped: bool
) -> Callable[..., Any]:
    """The body of a layer under the remat policy.

    One that keeps all keeps what is named and the results of matmuls and exchanges: a loop over
    layers (`looped`) would stack all that autodiff holds, every step between them, in memory.
    Without a loop the compiler sees both passes and chooses; a loop keeps it from merging the two.
    """
    row = remat_row(options.remat)
    treated = {**row.kinds, **dict(options.remat_kinds)}
    kept = {kind for kind, treatment in treated.items() if treatment == "keep"}
    offloaded = {kind for kind, treatment in treated.items() if treatment == "offload"}
    policies = jax.checkpoint_policies
    if row.tape and kept == set(SAVED_KINDS):
        if options.gathered == "keep" and not looped:
            return body
        names = (*SAVED_KINDS, *(("parameters",) if options.gathered == "keep" else ()))
        named = policies.save_only_these_names(*names)
        policy = policies.save_from_both_policies(named, _costly)
        return jax.checkpoint(body, policy=policy, prevent_cse=not looped)
    if options.gathered == "keep":
        kept.add("parameters")
    if offloaded:
        policy = policies.save_and_offload_only_these_names(
            names_which_can_be_saved=sorted(kept),
            names_which_can_be_offloaded=sorted(offloaded),
            offload_src="device",
            offload_dst="pinned_host",
        )
    else:
        policy = policies.save_only_these_names(*sorted(kept))
    return jax.checkpoint(body, policy=policy, prevent_cse=not looped)


def _costly(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name in COSTLY
