"""Context methods as rows: how attention sees a sequence that is cut over the mesh axis `context`.

Counting (`planner/step/strategies/context.py`), memory (`planner/price/memory.py`), the law
on heads (`laws.py`) and the runtime (`runtime/parallel/context.py`) read the row.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from shardwise.errors import entry_of
from shardwise.work import CollectiveKind, Quantity

ContextMethod = Literal["all_gather", "ring", "ulysses"]
CONTEXT_METHODS: tuple[ContextMethod, ...] = get_args(ContextMethod)

OfDegree = Callable[[Quantity], Quantity]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRow:
    """One context method. A block is what one device of the axis has of keys and values.

    The `collective` brings keys and values to the queries; `moved` is its size (see `Collective`)
    and `held` what a device has of them at once, both in blocks and of the degree of `context`. A
    method that `cuts_heads` exchanges pieces of the sequence for whole heads instead: queries, keys
    and values go there and the output comes back. Others compute with tokens where they are, so
    that causal work is shared evenly only where rows are dealt in zig-zag: those of the kinds of
    mixers that a method `deals`. `op` names what is sent. `kernel`: the rows that our runtime meets
    with the chip's kernel, not in a loop over tiles: those that are dealt, block by block
    (`runtime/attention/ring_kernel.py`), or all (`runtime/attention/splash.py`).
    """

    name: ContextMethod
    op: str
    collective: CollectiveKind
    moved: OfDegree
    held: OfDegree
    cuts_heads: bool = False
    deals: frozenset[str] = frozenset()
    kernel: Literal["dealt", "all"] = "all"

    def dealt(self, kinds: Iterable[str]) -> bool:
        """Whether rows of a model with such mixers are dealt in zig-zag."""
        return bool(self.deals) and self.deals.issuperset(kinds)


_ROWS = (
    # Llama 3, arXiv 2407.21783, section 3.3.2.
    ContextRow(
        name="all_gather",
        op="attention.kv",
        collective="all_gather",
        moved=lambda context: context,
        held=lambda context: context,
        deals=frozenset({"full", "latent", "window", "chunk"}),
    ),
    # Ring Attention, arXiv 2310.01889: a block is read while the next one comes in. All hops are
    # one message, as a body runs each of its ops at most once per round. Of blocks in order a
    # window needs the nearest alone.
    ContextRow(
        name="ring",
        op="attention.ring",
        collective="permute",
        moved=lambda context: context - 1,
        held=lambda context: 2.0,
        deals=frozenset({"full", "latent"}),
        kernel="dealt",
    ),
    # DeepSpeed-Ulysses, arXiv 2309.14509.
    ContextRow(
        name="ulysses",
        op="attention.to_heads",
        collective="all_to_all",
        moved=lambda context: context,
        held=lambda context: 1.0,
        cuts_heads=True,
    ),
)
_BY_NAME: Mapping[str, ContextRow] = {row.name: row for row in _ROWS}


def context_row(name: str) -> ContextRow:
    """The row of a context method; BadRequest for a name that there is not.

    >>> context_row("ring").collective, context_row("ulysses").cuts_heads
    ('permute', True)
    """
    return entry_of("context method", name, _BY_NAME)
