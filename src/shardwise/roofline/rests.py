"""How far a priced op is from the roofline, and which constants its rate rests on.

    roofline = seconds of its busiest resource at peak rates / seconds expected

The rate is that of the resource which takes longest at derated rates: the peak of the chip times
the constants of `Chip.efficiency` and of the software (`Stack`) that `price.py` takes for the op,
each with its own source. An op whose start takes longer rests on the software's alone.
"""

from dataclasses import dataclass

from shardwise.hardware.chip import GIVEN, RATE_OF, Chip
from shardwise.hardware.placement import Placement
from shardwise.roofline.bodies import OpTime
from shardwise.roofline.price import HBM, HOST, NETWORK, ROUTED, SUMS, UNFUSED, over_tensor
from shardwise.roofline.stacks import Stack
from shardwise.work import largest

START = "start"
"""What takes longest of an op that is short beside the start of its kernel."""
PEAK = "vendor's peak"
"""What a rate rests on of which nothing is taken off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """A constant behind a rate, as `Chip.numbers` calls it or "stack." and its name in `Stack`, its
    value, what kind of number it is (`basis`), and its `source`."""

    constant: str
    value: float
    basis: str
    source: str


def roofline_share(t: OpTime, chip: Chip) -> float:
    """Seconds of the op's busiest resource at its peak over the seconds expected; 0 for an op that
    takes none. Of memory all bytes that the op moves count, not those alone that no implementation
    avoids (`OpTime.peak`)."""
    seconds, moved = float(t.derated), float(t.op.hbm_bytes) * chip.jax_devices_per_chip
    memory = moved / chip.require("hbm_bandwidth")
    return float(largest((*t.peak.values(), memory))) / seconds if seconds else 0.0


def limit(t: OpTime) -> str:
    """The resource that takes longest at derated rates, or `START`."""
    taken = {**t.rated, START: t.launch}
    return max(taken, key=lambda name: float(taken[name]))


def rests_on(t: OpTime, chip: Chip, placement: Placement, stack: Stack) -> tuple[Rest, ...]:
    """The constants that the op's rate is made of; none where it is the peak itself."""
    numbers, where = chip.numbers(), limit(t)
    found = {
        path: (numbers[path], chip.bases.get(path, GIVEN), chip.sources.get(path, ""))
        for path in (f"efficiency.{name}" for name in _of_chip(t, where, chip, placement))
    }
    for name in _of_stack(t, where):
        value, basis = float(getattr(stack, name)), stack.bases.get(name, GIVEN)
        own = {f"stack.{name}": (value, basis, stack.sources.get(name, ""))}
        found |= own if value != 1 else {}
    return tuple(
        Rest(constant=path, value=value, basis=basis, source=source)
        for path, (value, basis, source) in found.items()
    )


def _of_stack(t: OpTime, where: str) -> tuple[str, ...]:
    """The fields of `Stack` behind the slowest resource."""
    op, routed = t.op, t.op.component == ROUTED
    if where == START:
        return ("launch_seconds",)
    if where == NETWORK:
        summed = op.collective is not None and op.collective.kind in SUMS
        return (("exchanges",) if over_tensor(op) else ("sums",)) * summed
    if where == HBM:
        unfused = op.op_class in UNFUSED and op.component != "optimizer"
        return ("passes", *(("dispatch",) * routed)) * unfused
    if where == HOST:
        return ()
    return ("attention",) if op.op_class == "attention" else ("products", *("experts",) * routed)


def _of_chip(t: OpTime, where: str, chip: Chip, placement: Placement) -> tuple[str, ...]:
    """The fields of `Chip.efficiency` behind the slowest resource (`price.py`, `_op_time`)."""
    if where == HBM:
        return ("hbm",)
    if where in (START, HOST):
        return ()
    if where == NETWORK:
        return _links(t, placement)
    return (_kernel(t, chip), "sustained")


def _kernel(t: OpTime, chip: Chip) -> str:
    """The constant of the op's math: attention's, or that of products in its dtype."""
    if t.op.op_class == "attention":
        return "attention"
    return matmul_constant(chip, max(t.op.flops, key=lambda dtype: float(t.op.flops[dtype])))


def matmul_constant(chip: Chip, dtype: str) -> str:
    """The constant of products in a dtype."""
    own = RATE_OF.get(dtype, dtype)
    return f"matmul_{own}" if own in chip.efficiency.matmul_by_dtype else "matmul"


def _links(t: OpTime, placement: Placement) -> tuple[str, ...]:
    """The constants of the links that a collective goes over."""
    wire = t.op.collective
    assert wire is not None, "only collectives take time on a network"
    links = placement.links(wire.axes)
    inside = any(float(part.size) > 1 for one in links for part in (one.within, *one.parts))
    outside = any(float(one.outer.size) > 1 for one in links)
    return ("network",) * inside + ("outer_network",) * outside
