"""Faults of compute: wide matmuls, and arrays copied into another layout."""

from collections.abc import Iterator

from shardwise.profiler.explain.evidence import Evidence
from shardwise.profiler.explain.finding import Finding, Rule, by_source
from shardwise.profiler.hlo.shapes import arrays
from shardwise.profiler.hlo.text import Computation, Instruction
from shardwise.profiler.timeline import OpRow
from shardwise.units import format_bytes, format_flops

WIDE = ("f32", "f64")


def wide_matmuls(e: Evidence) -> Iterator[Finding]:
    """Matmuls of float32: several bf16 passes at high precision, twice the bytes at any."""
    rows = (r for r in e.timeline.rows if any(d in WIDE for d in r.op.op.flops))
    for where, group in by_source(e, rows).items():
        flops = sum(r.flops * r.count for r in group)
        passes = max(r.op.passes for r in group)
        yield Finding(
            rule="wide matmul",
            seconds=sum(_saved(e, r) for r in group),
            where=where,
            what=(
                f"{format_flops(flops)} per step multiply float32"
                + (f" in {passes} passes of bf16 each" if passes > 1 else "")
            ),
            remedy=(
                "multiply in bf16 and add up in float32 (preferred_element_type), and leave the "
                "precision at its default"
            ),
        )


def _saved(e: Evidence, row: OpRow) -> float:
    """Seconds per step less if the operands were bf16: one pass, half the bytes."""
    math = row.peak.get("math", 0.0) / max(row.op.passes, 1)
    moved = float(row.op.op.hbm_bytes) / 2 / e.bandwidth
    left = max(row.seconds / max(row.op.passes, 1), math, moved)
    if row.op.passes == 1:
        left = max(math, moved)
    return max(row.seconds - left, 0.0) * row.count


def _relays(e: Evidence, row: OpRow) -> bool:
    """Whether an op does nothing but give an array another order of dims in memory."""
    if row.op.op.op_class == "matmul" or row.op.asynchronous:
        return False
    computation = e.module.computation(row.op.computation)
    found = computation.find(row.op.name)
    if found is None:
        return False
    steps = [(computation, found)]
    if found.opcode == "fusion":
        inside = [e.module.computation(name) for name in found.called]
        steps = [(c, i) for c in inside for i in c.instructions]
    return all(i.opcode in PLAIN for _, i in steps) and any(_turns(c, i) for c, i in steps)


PLAIN = frozenset({"parameter", "bitcast", "copy", "transpose", "reshape"})


def _turns(computation: Computation, found: Instruction) -> bool:
    """A copy between orders of dims, or a transpose that is no mere change of names."""
    if found.opcode not in ("copy", "transpose"):
        return False
    old, new = (next(arrays(computation.shape_of(n))) for n in (found.operands[0], found.name))
    order = old.layout.order
    if found.opcode == "transpose":  # where each dim of the old array is in the new one
        at = {dim: i for i, dim in enumerate(found.integers("dimensions"))}
        order = tuple(at[dim] for dim in order)
    return order != new.layout.order


def relayouts(e: Evidence) -> Iterator[Finding]:
    """Copies on the compute stream: the same numbers in another layout."""
    rows = (r for r in e.timeline.rows if r.op.op.stream == "compute" and _relays(e, r))
    for where, group in by_source(e, rows).items():
        size = sum(r.hbm_bytes for r in group)
        yield Finding(
            rule="re-layout",
            seconds=sum(r.per_step for r in group),
            where=where,
            what=f"{format_bytes(size)} per step are copied only to lie in another order",
            remedy=(
                "make the array in the order that its reader wants (einsum, not a transpose), "
                "or store it that way"
            ),
        )


RULES: tuple[Rule, ...] = (wide_matmuls, relayouts)
