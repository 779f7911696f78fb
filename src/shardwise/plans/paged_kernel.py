"""Where a serving step's attention is JAX's Pallas kernel: one table, of which the first row that
does not hold is the reason why a layer's pages are read by a kernel of our own instead, for TPUs or
for GPUs, or gathered by XLA (`runtime/attention/`).

The kernel is `jax.experimental.pallas.ops.tpu.ragged_paged_attention` as JAX 0.10.2 has it, tried
by compiling it for v4, v5e, v5p, v6e and tpu7x (`tests/runtime/attention/test_ragged.py`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shardwise.models import Attention

LANES = 128
KEPT = ("bf16", "f32")


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedLayer:
    """A layer's attention on one device: what it is, for which platform, the dtype of its cache, KV
    heads of the device, and into how many parts the places of a page are cut."""

    mixer: object
    platform: str
    cache: str
    kv_heads: int
    cuts: int = 1

    @property
    def attention(self) -> Attention | None:
        """Softmax attention that caches keys and values head by head; None of any other mixer."""
        return self.mixer if isinstance(self.mixer, Attention) else None

    @property
    def group(self) -> int:
        """How many heads of a token lie side by side: as many as fill whole tiles, or a power of
        two of rows."""
        rows = {heads: 2 * heads // (2 if self.cache == "bf16" else 1) for heads in self._divisors}
        return max(heads for heads, n in rows.items() if n in (1, 2, 4, 8) or n % 8 == 0)

    def width(self, entry: int, heads: int) -> int:
        """Numbers of a token's entry of all `heads` in a page: on TPUs those of each device fill
        whole lanes, which they take there anyway, and pages lie as a kernel reads them."""
        parts = heads // self.kv_heads
        lanes = LANES if self.platform == "tpu" else 1
        return -(-entry // parts // lanes) * lanes * parts

    def pairs(self, entries: Iterable[int]) -> bool:
        """Whether keys and values share pages: on TPUs, where heads alone fill no whole lanes."""
        both, kv = list(entries), self.attention
        if self.platform != "tpu" or kv is None:
            return False
        return any(self.width(entry, kv.kv_heads) != entry for entry in both)

    @property
    def _divisors(self) -> list[int]:
        return [n for n in range(1, self.kv_heads + 1) if self.kv_heads % n == 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLaw:
    """What a layer must have for the kernel; `rule` and `reason` are its line in docs/legality.md,
    and what an answer says of a layer without it."""

    name: str
    rule: str
    reason: str
    holds: Callable[[PagedLayer], bool]


def _wide(layer: PagedLayer) -> bool:
    a = layer.attention
    if a is None or a.head_dim != a.v_head_dim or a.head_dim % LANES:
        return False
    return a.head_dim == LANES or layer.kv_heads == 1


def _plain(layer: PagedLayer) -> bool:
    a = layer.attention
    return a is not None and not a.sinks and a.kind == "full"


KERNEL_LAWS: tuple[KernelLaw, ...] = (
    KernelLaw(
        name="tpu",
        rule="the devices are TPUs",
        reason="it neither runs nor is interpreted elsewhere",
        holds=lambda layer: layer.platform == "tpu",
    ),
    KernelLaw(
        name="kv_heads",
        rule="the layer caches keys and values head by head",
        reason="it has no latent cache and no recurrent state",
        holds=lambda layer: layer.attention is not None,
    ),
    KernelLaw(
        name="head_dim",
        rule=f"keys and values are equally wide, {LANES}, or a multiple of it of one KV head",
        reason="others are not lanes of a tile; its strided loads of several heads take 128 lanes",
        holds=_wide,
    ),
    KernelLaw(
        name="mask",
        rule="a token sees all before it, without sinks",
        reason="it reads all pages whatever a window hides, and has no score without a value",
        holds=_plain,
    ),
    KernelLaw(
        name="cache",
        rule=f"the cache is kept in {' or '.join(KEPT)}",
        reason="it takes one scale for all tokens, and the cache has one for each token and head",
        holds=lambda layer: layer.cache in KEPT,
    ),
    KernelLaw(
        name="places",
        rule="the places of a page are not cut over devices",
        reason="it does not return the log-sum-exp that joins the parts",
        holds=lambda layer: layer.cuts == 1,
    ),
)


def kernel_problem(layer: PagedLayer) -> KernelLaw | None:
    """The first law that a layer breaks; None where the kernel serves it."""
    return next((law for law in KERNEL_LAWS if not law.holds(layer)), None)
