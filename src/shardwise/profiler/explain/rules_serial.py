"""Faults of what vector units do one after the other: rows written or read in a loop that the
compiler made of one operation, and sums across the rows of a tile."""

from collections.abc import Iterator, Sequence

from shardwise.profiler.explain.evidence import Evidence
from shardwise.profiler.explain.finding import Finding, Rule, by_source
from shardwise.profiler.explain.layouts import steps
from shardwise.profiler.explain.lineage import elements, largest_bytes
from shardwise.profiler.explain.tables import spent
from shardwise.profiler.hlo.shapes import Array
from shardwise.profiler.hlo.text import Computation, Instruction
from shardwise.profiler.timeline import OpRow
from shardwise.units import format_bytes
from shardwise.work import grouped

MANY = 16
"""Rounds from which a loop of the compiler's own is worth a word (a feeling)."""
ONE_BY_ONE = ("scatter", "gather", "scatter-add", "dynamic_update_slice", "dynamic_slice")
"""Operations that compilers run row by row where they find nothing better."""


def serial_loops(e: Evidence) -> Iterator[Finding]:
    """Loops that the program did not write: an operation on rows that runs row after row."""
    rows = [(r, loop) for r in e.timeline.rows if (loop := _made_loop(e, r)) is not None]
    for name, pairs in grouped(rows, lambda pair: pair[1].name).items():
        loop, group = pairs[0][1], [r for r, _ in pairs]
        rounds = max(r.count for r in group)
        moved = largest_bytes(loop)
        if rounds < MANY:
            continue
        what = loop.op_name.rpartition("/")[2].replace("_", " ")
        yield Finding(
            rule="serial loop",
            seconds=max(sum(map(spent, group)) - 2 * moved / e.bandwidth, 0.0),
            where=e.line_of(loop) or e.where(group[0].op) or name,
            what=(
                f"a {what} runs as a loop of {rounds:g} rounds, one row after the other, on an "
                f"array of {format_bytes(moved)}"
            ),
            remedy=(
                "write or read all rows at once: jnp.where(jnp.arange(S) == at[:, None], new, x) "
                "in place of jax.vmap of dynamic_update_slice (or x.at[rows, at].set) for a few "
                "rows, x[rows] with whole rows for reads; indices_are_sorted and unique_indices "
                "help if they are true"
            ),
        )


def _made_loop(e: Evidence, row: OpRow) -> Instruction | None:
    """The loop that runs an op, if it is the compiler's own and made of an operation on rows."""
    name = row.op.computation
    loop = e.runs(name)
    if row.count < MANY or loop is None or loop.opcode != "while":
        return None
    return loop if loop.op_name.rpartition("/")[2] in ONE_BY_ONE else None


def sums_across_rows(e: Evidence) -> Iterator[Finding]:
    """Sums over a dim that lies along the rows of a tile, which units add by turning them."""
    rows = [r for r in e.timeline.rows if _beyond(e, r) > 0 and _across(e, r)]
    for where, group in by_source(e, rows).items():
        over = max(_across(e, r) for r in group)
        yield Finding(
            rule="sum across rows",
            seconds=sum(_beyond(e, r) for r in group),
            where=where,
            what=(
                f"{format_bytes(sum(r.hbm_bytes for r in group))} per step are summed over a dim "
                f"of {over} that lies along the rows of a tile, which needs a transpose: several "
                "times the time of memory"
            ),
            remedy=(
                "sum over a leading dim, or add the parts as arrays of their own: sum(y[at[:, k]] "
                "* w[:, k, None] for k in range(K)) in place of (y[at] * w[..., None]).sum(1)"
            ),
        )


SLOW, PARTS = 2, 1.5
"""Times what memory takes from which a sum is slow (a feeling), and those that adding the parts
takes (libtpu's of 8 arrays of 33 MB on v5e: 656 us for 302 MB)."""


def _beyond(e: Evidence, row: OpRow) -> float:
    """Seconds per step of an op without products that its cycles take beyond its bytes."""
    moved = row.hbm_bytes / e.bandwidth
    plain = row.bound_by == "cycles" and not row.flops and row.op.op.stream == "compute"
    return spent(row) - PARTS * moved if plain and spent(row) > SLOW * moved > 0 else 0.0


def _across(e: Evidence, row: OpRow) -> int:
    """The size of the dim along a tile's rows that an op sums over; 0 where it sums over others."""
    parts = steps(e, row)
    return max((_rows_summed(c, i) for c, i in parts if i.opcode == "reduce"), default=0)


def _rows_summed(computation: Computation, found: Instruction) -> int:
    given = computation.shape_of(found.operands[0])
    if not isinstance(given, Array) or not given.layout.tiles or len(given.dims) < 3:
        return 0
    at, tile = given.layout.order[1], given.layout.tiles[0][0]
    over = given.dims[at] if at in found.integers("dimensions") else 0
    return over if 1 < over <= tile and elements(found) > over else 0


RULES: Sequence[Rule] = (serial_loops, sums_across_rows)
