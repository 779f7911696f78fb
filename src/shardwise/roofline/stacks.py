"""What the training software does with a chip: a few numbers per stack, each with its source.

A stack is the software a plan names (`TrainPlan.stack`): how much of the communication it really
hides, what it spends per op on the host, and how far it fuses elementwise work; which attention
kernel, graphs and kernels of experts it runs with says the plan. What the chip does
(the share of its peaks that kernels reach) is in `Chip.efficiency`. The numbers lie in
`data/stacks.toml`, written by `scripts/fit_efficiency.py` from published runs, none of which
belongs to a pair of chip and stack; those of our own trainer in `data/jax.toml`, written by
`scripts/fit_jax.py` from programs that were compiled for TPUs and from steps that were measured on
a GPU, with what only it pays. Two of these depend on the generation too, as the compiler does: its
cycles of the same product are 1.0 to 1.4 times its FLOPs at the peak, and it gathers weights beside
other work on some generations alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from shardwise.boundary import read_toml
from shardwise.errors import BadRequest, entry_of, shown
from shardwise.hardware.chip import GIVEN
from shardwise.work import Quantity

_DATA = Path(__file__).parent / "data" / "stacks.toml"
_COMPILED = _DATA.with_name("jax.toml")
_WHOLE = _DATA.with_name("whole_sums.toml")

CONSTANTS: Mapping[str, str] = {
    "overlap": "share of the collectives off the chain of matmuls that really hides behind it",
    "launch_seconds": "seconds of the host exposed by every op on the chip",
    "passes": "times the counted memory traffic of elementwise ops that is moved",
}
"""The constants of a stack and what each means."""

COMPILED_CONSTANTS: Mapping[str, str] = {
    **CONSTANTS,
    "attention": "rate of the stack's attention kernel over the chip's efficiency.attention",
    "products": "rate of the stack's matrix products over the chip's",
    "experts": "rate of the products of routed experts over that of others",
    "tiles": "rate of attention as a loop over tiles over that of the stack's kernel",
    "sums": "times its seconds that a reduce-scatter or all-reduce of gradients takes",
    "exchanges": "times its seconds that one of activations over tensor takes",
    "dispatch": "times the traffic of other elementwise ops that sorting tokens to experts moves",
}
"""Those of a stack that is learned from compiled programs, class by class; an engine has `streams`
beside them (`engines.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The constants of one software stack, as `CONSTANTS` describes them.

    `overlap` lies in [0, 1], `attention` in (0, 2], `launch_seconds` is zero or more, `passes` one
    or more. `captured` are the components whose kernels CUDA graphs start ("full": all), and
    `fused_experts` says that the products of a layer's experts are one kernel. The host works
    `host_seconds` for an op, ahead of the device, and `begin_seconds` a step that the device waits
    for. `products`, `tiles` and all that follow are 1 where nothing is known of them
    (`COMPILED_CONSTANTS`). `sources` says where each comes from, `bases` what kind of number it is;
    `generations` has constants that are other ones on some generations of chips (`on`). A serving
    engine (`engines.py`) launches the experts of a layer as one `grouped` kernel and its
    collectives as kernels too, exchanges tokens with experts in `dispatch_seconds` beside their
    bytes, and pays `hops` of the latency that the communication library shows; its products read
    weights at `streams` of the memory's rate, those narrower than two bytes at `narrow` of that and
    those of a byte at `byte_reads`. XLA for
    TPUs scatters sums over one mesh axis after the other, and sums whole what is to be scattered
    over one of all devices of a slice, from `whole_sums` of them on, by generation
    (`data/whole_sums.toml`); None: over all axes at once.
    """

    name: str
    overlap: Quantity
    launch_seconds: Quantity
    passes: Quantity
    sources: Mapping[str, str]
    bases: Mapping[str, str] = field(default_factory=dict)
    attention: Quantity = 1.0
    captured: frozenset[str] = frozenset()
    fused_experts: bool = False
    host_seconds: float = 0.0
    begin_seconds: float = 0.0
    hops: Quantity = 1.0
    grouped: bool = False
    products: Quantity = 1.0
    experts: Quantity = 1.0
    byte_reads: Quantity = 1.0
    streams: Quantity = 1.0
    narrow: Quantity = 1.0
    tiles: Quantity = 1.0
    sums: Quantity = 1.0
    exchanges: Quantity = 1.0
    dispatch: Quantity = 1.0
    dispatch_seconds: Quantity = 0.0
    generations: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    whole_sums: Mapping[str, int] | None = None

    def on(self, generation: str) -> "Stack":
        """The constants on a generation of chips."""
        return replace(self, **self.generations.get(generation, {}), generations={})


OP_SECONDS: Mapping[bool, float] = {False: 50e-6, True: 20e-6}
"""Seconds that the host works for a counted op under PyTorch, without a compiler and with one.

    per layer of 25 counted ops    57 kernels x 23 us = 1.3 ms    15 x 23 + 18 x 9.1 us = 0.5 ms

A layer of GPT-2 under autocast starts 57 kernels forward and backward, casts of weights and sums of
gradients among them; compiled 15 products and attentions and 18 fused ones. PyTorch's host takes 23
us for a product (triton-lang/triton#459) and 9.1 for an Inductor kernel of 19 arguments
(meta-pytorch/tritonbench#1017). Steps of one sequence measure 1.3 and 0.6 ms a layer
(docs/lab/log.md).
"""
BEGIN_SECONDS = 5e-3
"""Seconds of a step that the device waits for PyTorch's host, however long the step is: a batch is
loaded, the loss read, gradients clipped, the first kernels of a pass are started. Compiled GPT-2 on
an H100 takes 2.7 ms a sequence and 8 beside (4 and 16 sequences, Jjschwartz/gollem), of which the
update and what else the device does once are 3."""

IDEAL = Stack(
    name="ideal",
    overlap=1.0,
    launch_seconds=0.0,
    passes=1.0,
    sources=dict.fromkeys(CONSTANTS, "by definition: everything off the chain hides, fully fused"),
)
"""Hides all that order allows, launches for free and fuses what counting fuses."""


def load_stack(name: str) -> Stack:
    """The stack of that name; BadRequest lists the known ones.

    >>> load_stack("ideal").overlap
    1.0
    """
    return entry_of("software stack", name, {**_stacks(), **_compiled(), IDEAL.name: IDEAL})


def stack_names() -> tuple[str, ...]:
    """The stacks with constants fitted on published runs."""
    return tuple(_stacks())


@cache
def _stacks() -> Mapping[str, Stack]:
    table = read_toml(_DATA, "the table of stacks")
    return {name: stack_of(name, record) for name, record in table.items()}


@cache
def _compiled() -> Mapping[str, Stack]:
    table = read_toml(_COMPILED, "the table of our own trainer's constants")
    made = {name: _with_generations(name, row) for name, row in table.items()}
    return {name: replace(stack, whole_sums=whole_sums()) for name, stack in made.items()}


@cache
def whole_sums() -> Mapping[str, int]:
    """Generation -> the fewest devices of a slice over all of which XLA scatters nothing.

    >>> whole_sums()["v5e"]
    16
    """
    found: Mapping[str, int] = read_toml(_WHOLE, "the table of whole sums")["least_devices"]
    return found


def _with_generations(name: str, row: Mapping[str, Any]) -> Stack:
    """A stack some of whose constants stand once more by generation."""
    apart: dict[str, Mapping[str, float]] = {}
    for generation, some in row.get("generations", {}).items():
        about = {one: COMPILED_CONSTANTS[one] for one in some}
        whose = f"stack '{name}' on {generation}"
        apart[generation], _ = read_constants(whose, some, about, _BOUNDS)
    return replace(stack_of(name, row, COMPILED_CONSTANTS), generations=apart)


def stack_of(name: str, record: Mapping[str, Any], about: Mapping[str, str] = CONSTANTS) -> Stack:
    """A Stack from its table of {value, source, basis} entries. BadRequest for what is out of
    bounds."""
    values, sources = read_constants(f"stack '{name}'", record, about, _BOUNDS)
    bases = {name: str(e.get("basis", GIVEN)) for name, e in record.items() if name in sources}
    return Stack(name=name, sources=sources, bases=bases, **values)


_BOUNDS = {
    "overlap": (0.0, 1.0),
    "attention": (0.05, 2.0),
    "launch_seconds": (0.0, 1e-2),
    "passes": (1.0, 20.0),
    "products": (0.1, 2.0),
    "experts": (0.05, 2.0),
    "tiles": (0.001, 1.0),
    "sums": (0.5, 10.0),
    "exchanges": (0.5, 10.0),
    "dispatch": (0.5, 20.0),
}


def read_constants(
    whose: str,
    record: Mapping[str, object],
    about: Mapping[str, str],
    bounds: Mapping[str, tuple[float, float]],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Values and sources of the constants that `about` explains, from a table of {value, source}
    entries; BadRequest for one that is not there or not within its bounds."""
    values, sources = {}, {}
    for constant, meaning in about.items():
        if constant not in record:
            raise BadRequest(f"{whose} lacks '{constant}' ({meaning}); write it")
        entry, what = record[constant], f"'{constant}' of {whose}"
        if not isinstance(entry, Mapping) or "value" not in entry:
            raise BadRequest(
                f'{what} is {shown(entry)}; write {{ value = NUMBER, source = "WHERE FROM" }}'
            )
        values[constant] = _checked(what, entry["value"], *bounds[constant])
        sources[constant] = str(entry.get("source", "not stated"))
    return values, sources


def _checked(what: str, value: object, least: float, most: float) -> float:
    """The value, or BadRequest where it is not a number within the bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise BadRequest(
            f"{what} is {shown(value)}; it must be a number from {least:g} to {most:g}"
        )
    return float(value)
