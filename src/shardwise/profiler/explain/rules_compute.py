"""Faults of compute: wide and narrow matmuls, and arrays copied into another layout or written
repeatedly."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from shardwise.profiler.explain.causes import filled
from shardwise.profiler.explain.evidence import HANDS_ON, Evidence
from shardwise.profiler.explain.finding import Finding, Rule, by_source
from shardwise.profiler.explain.flow import inside
from shardwise.profiler.explain.layouts import relays
from shardwise.profiler.explain.lineage import elements
from shardwise.profiler.explain.rules_cache import gathered_copies
from shardwise.profiler.explain.rules_kept import joins
from shardwise.profiler.explain.rules_larger import handed, masking, sorting
from shardwise.profiler.explain.rules_partial import sums_of_parts
from shardwise.profiler.explain.rules_reshard import cuts_anew
from shardwise.profiler.explain.tables import spent
from shardwise.profiler.hlo.shapes import arrays
from shardwise.profiler.hlo.text import Computation, Instruction
from shardwise.profiler.timeline import OpRow
from shardwise.roofline.price import HBM, MATH
from shardwise.units import format_bytes, format_flops

WIDE = ("f32", "f64")
MAY_LOSE = (
    "this counts half of the wait; casts, or matmuls that the compiler splits to overlap "
    "them with narrow reductions, may take that time"
)
"""So libtpu 0.0.42 compiles 12 layers of 1024 x 4096 whose sums become bf16 (v5e:2x4, fsdp=8): it
waits 2.8 ms less of 5.6 ms, and computes 2.8 ms more than 4.3 ms."""


def wide_matmuls(e: Evidence) -> Iterator[Finding]:
    """Matmuls of float32: several bf16 passes at high precision, twice the bytes at any."""
    waits = {r.op.op.id: w for r in e.timeline.rows if r.flops and (w := _sent_wide(e, r))}
    rows = (
        r for r in e.timeline.rows if r.op.op.id in waits or any(d in WIDE for d in r.op.op.flops)
    )
    for where, group in by_source(e, rows).items():
        flops = sum(r.flops * r.count for r in group)
        passes, sent = max(r.op.passes for r in group), any(r.op.op.id in waits for r in group)
        yield Finding(
            rule="wide matmul",
            seconds=sum(_saved(e, r) + waits.get(r.op.op.id, 0.0) / 2 for r in group),
            where=where,
            what=(
                f"{format_flops(flops)} per step multiply float32"
                + (f" in {passes} passes of bf16 each" if passes > 1 else "")
                + (f", and float32 sums are reduced: {MAY_LOSE}" if sent else "")
            ),
            at_most=sent,
            remedy=(
                "multiply in bf16 and accumulate in float32 (preferred_element_type), and leave "
                "the precision at its default; a constant or an operand of float32 widens what "
                "follows: give it the dtype of the others (x * scale.astype(x.dtype))"
            ),
        )


def _saved(e: Evidence, row: OpRow) -> float:
    """Seconds per step less if the operands were bf16: one pass, half the bytes."""
    chip = e.piece.chip
    math = row.flops * chip.jax_devices_per_chip / chip.peak("bf16")
    moved = float(row.op.op.hbm_bytes) / 2 / e.bandwidth
    share = min(math / row.peak["math"], 1.0) if row.peak.get("math") else 1.0
    left = max(row.seconds * share if share < 1 else 0.0, math, moved)
    return max(row.seconds - left, 0.0) * row.count


def _sent_wide(e: Evidence, row: OpRow) -> float:
    """Seconds that compute waits for a float32 result to be exchanged: of a product of float32, or
    of what one gave."""
    computation, found = e.located(row.op)
    if found is None or not (_wide(row) or any(map(_wide, _given(e, computation, found)))):
        return 0.0
    names = (i.name for i in e.users(computation, found.name) if _largest(i) in WIDE)
    rows = e.rows_of(computation, names)
    return sum(r.exposed for r in rows if r.op.op.collective is not None)


def _wide(row: OpRow) -> bool:
    return any(dtype in WIDE for dtype in row.op.op.flops)


def _given(e: Evidence, computation: Computation, found: Instruction) -> Iterator[OpRow]:
    """The ops that make what an instruction reads."""
    waiting = list(found.operands)
    while waiting:
        given = computation.find(waiting.pop())
        if given is not None and given.opcode in HANDS_ON:
            waiting += given.operands[:1]
        elif given is not None and (computation.name, given.name) in e.named:
            yield e.named[computation.name, given.name]


def _largest(found: Instruction) -> str:
    """The dtype of the largest array that an instruction makes; "" of a token."""
    largest = max(arrays(found.shape), key=lambda a: a.bytes, default=None)
    return largest.dtype if largest else ""


def _beside_exchange(e: Evidence, row: OpRow) -> bool:
    """Whether a copy lays together what an all-to-all sends, or takes apart what it brought."""
    computation, found = e.located(row.op)
    if found is None or row.op.op.op_class != "copy":
        return False
    around = list(e.users(computation, found.name))
    names = list(found.operands)
    while names and (given := computation.find(names.pop())) is not None:
        around.append(given)
        names += given.operands[:1] if given.opcode in (*HANDS_ON, "reshape") else ()
    return any(i.opcode.startswith("all-to-all") for i in around)


def relayouts(e: Evidence) -> Iterator[Finding]:
    """Copies on the compute stream: the same numbers in another layout."""
    told = {r.op.op.id for cut in cuts_anew(e) for r in cut.moving}
    told |= joins(e) | gathered_copies(e) | masking(e) | sorting(e)
    told |= {r.op.op.id for r in e.timeline.rows if _beside_exchange(e, r)}
    rows = (
        r
        for r in e.timeline.rows
        if r.op.op.stream == "compute" and r.op.op.id not in told and relays(e, r)
    )
    for where, group in by_source(e, rows).items():
        size = sum(r.hbm_bytes for r in group)
        yield Finding(
            rule="re-layout",
            seconds=sum(r.per_step for r in group),
            where=where,
            what=f"{format_bytes(size)} per step are copied only to change the order of dims",
            remedy=(
                "make the array in the order of its reader (einsum, not a transpose), or store it "
                "in that order"
            ),
        )


def repeated_arrays(e: Evidence) -> Iterator[Finding]:
    """Stored arrays that are repeated along a new dim in memory, to be read many times over."""
    told = masking(e)
    rows = (r for r in e.timeline.rows if r.op.op.id not in told)
    copies = {(r.op.computation, r.op.name): n for r in rows if (n := _repeats(e, r))}
    for where, group in by_source(e, (e.named[key] for key in copies)).items():
        ratio = max(copies[r.op.computation, r.op.name] for r in group)
        rows = {r.op.op.id: r for g in group for r in _around(e, g)}
        own = {r.op.op.id for r in group if not r.flops and not _sums(e, r)}
        yield Finding(
            rule="repeated array",
            seconds=sum(r.per_step * (1 if i in own else 1 - 1 / ratio) for i, r in rows.items()),
            where=where,
            what=(
                f"a stored array is repeated {ratio} times, and "
                f"{format_bytes(_read(rows.values()))} per step are moved for it"
            ),
            remedy=(
                "leave it as it is, and fold the repeats into the other operand: queries as "
                "[B, K, G, H] against keys [B, S, K, H], jnp.einsum('BKGH,BSKH->BKGS', q, k)"
            ),
        )


REPEATS, REPEATED = 64, 2**16
"""The most copies that are taken for repeated heads, not for a bias, and the least elements."""


def _repeats(e: Evidence, row: OpRow) -> int:
    """How often an op repeats a stored array; 0 where it does not."""
    computation, found = e.located(row.op)
    if found is None or row.op.op.stream != "compute":
        return 0
    parts = inside(e.module, computation, found)
    ratios = (_copies_made(e, c, i) for c, i in parts if i.opcode == "broadcast")
    return max(ratios, default=0)


def _copies_made(e: Evidence, computation: Computation, found: Instruction) -> int:
    size = elements(computation.names[found.operands[0]])
    ratio = elements(found) // max(size, 1)
    few = 1 < ratio <= REPEATS and size >= REPEATED and len(found.integers("dimensions")) > 2
    return ratio if few and e.pieces_of(computation.name, found.operands[0]) else 0


def _around(e: Evidence, row: OpRow) -> Iterator[OpRow]:
    """An op that repeats, those that read what it wrote, and copies that are made for it alone."""
    computation = e.module.computation(row.op.computation)
    found = computation.names[row.op.name]
    yield row
    if not row.flops and not _sums(e, row):
        for user in e.users(computation, found.name):
            if (computation.name, user.name) in e.named:
                yield e.named[computation.name, user.name]
    for name in found.operands:
        made = e.named.get((computation.name, name))
        alone = len(computation.readers(name)) == 1
        moves = made is not None and made.op.opcode in ("copy", "convert")
        if made is not None and moves and alone and made.op.op.stream == "compute":
            yield made


def _sums(e: Evidence, row: OpRow) -> bool:
    """Whether an op adds up what it repeats within it, as a product of few rows does."""
    _, found = e.located(row.op)
    called = found.called if found is not None and found.opcode == "fusion" else ()
    return any(i.opcode == "reduce" for c in called for i in e.module.computation(c).instructions)


def _read(rows: Iterable[OpRow]) -> float:
    return sum(r.hbm_bytes for r in rows)


def narrow_products(e: Evidence) -> Iterator[Finding]:
    """Products with a dim far below the others: the matrix unit multiplies mostly nothing, or
    memory holds what a few terms add up to."""
    costs = {r.op.op.id: cost for r in e.timeline.rows if r.flops and (cost := _for_few(e, r))}
    told = {one.product.op.op.id for one in sums_of_parts(e)}
    rows = [r for r in e.timeline.rows if r.op.op.id in costs or _filled(e, r) >= TIMES]
    rows = [r for r in rows if r.op.op.id not in told]
    for where, group in by_source(e, rows).items():
        few = [r for r in group if r.op.op.id in costs]
        wide = [r for r in group if r.op.op.id not in costs]
        flops = format_flops(sum(r.flops * r.count for r in group))
        if wide:
            widest = max(_filled(e, r) for r in wide)
            what = f"have a dim so small that the matrix unit multiplies {widest:.2g} times as much"
        else:
            terms = min(float(m.k) for r in few if (m := r.op.op.matmul) is not None)
            what = (
                f"make sums of {terms:g} terms, which are written to memory and read again, to be "
                "added to what another product gives"
            )
        yield Finding(
            rule="narrow product",
            seconds=sum(spent(r) * (1 - 1 / _filled(e, r)) for r in wide)
            + sum(costs[r.op.op.id] for r in few),
            where=where,
            what=f"{flops} per step {what}",
            remedy=(
                "make the dim a multiple of the unit's side, or join several matmuls into one; "
                "merge constant low-rank factors into the weights: w + a @ b"
            ),
        )


TIMES = 4
"""How much more is multiplied, or how much longer memory takes, from which a product is narrow (a
feeling)."""


def _filled(e: Evidence, row: OpRow) -> float:
    """How much more the matrix unit multiplies as what is summed over, or comes out, is narrow; 1
    of what is not a product, or where the memory bounds it."""
    product, tile = row.op.op.matmul, e.piece.chip.matmul_tile
    if not row.flops or product is None or 2 * row.hbm_bytes / e.bandwidth > spent(row):
        return 1.0
    return filled(replace(product, m=tile[0]), tile)


def _for_few(e: Evidence, row: OpRow) -> float:
    """Seconds per step of a product of few terms by a stored factor, that memory bounds: its own,
    those of the op that does nothing but add it to another product's result, and of what is made
    for it; 0 of others."""
    product = row.op.op.matmul
    if product is None or row.op.op.stream != "compute":
        return 0.0
    if TIMES * product.k > min(product.m, product.n):
        return 0.0
    if row.peak.get(HBM, 0.0) < TIMES * row.peak.get(MATH, 0.0):
        return 0.0
    c = e.module.computation(row.op.computation)
    found = c.names[row.op.name]
    made = [name for name in found.operands if not e.is_stored(c, name)]
    adder = _added_by(e, c, found)
    if adder is None or len(made) != 1 or len(found.operands) < 2:
        return 0.0
    rows = {r.op.op.id: spent(r) for r in (row, adder)}
    return sum((rows | _factor(e, c, made[0], float(product.k))).values())


def _added_by(e: Evidence, c: Computation, found: Instruction) -> OpRow | None:
    """The op that alone reads a product's result and adds it to what another product gave."""
    users = e.users(c, found.name)
    row = e.named.get((c.name, users[0].name)) if len(users) == 1 else None
    if row is None or row.flops or row.op.op.op_class != "elementwise":
        return None
    for body, i in inside(e.module, c, users[0]):
        if i.opcode != "add":
            continue
        given = [_given_to(c, users[0], body, name) for name in i.operands]
        others = [g.name for g in given if g is not None and g.name != found.name]
        if len(others) < len(given) and any(m.flops for m in e.rows_of(c, others)):
            return row
    return None


def _given_to(
    c: Computation, whole: Instruction, body: Computation, name: str
) -> Instruction | None:
    """What an op reads as a value within it, a piece of it or in another dtype."""
    found = handed(body, name)
    while found is not None and found.opcode in ("slice", "convert"):
        found = handed(body, found.operands[0])
    if found is not None and found.opcode == "parameter" and whole.opcode == "fusion":
        return handed(c, whole.operands[int(found.literal)])
    return found


def _factor(e: Evidence, c: Computation, name: str, terms: float) -> dict[str, float]:
    """Seconds, by op, of what makes a thin factor: a product, of which it may be the last columns,
    and stored arrays are joined for these."""
    rows: dict[str, float] = {}
    while (found := handed(c, name)) is not None:
        row = e.named.get((c.name, found.name))
        if row is None or not found.operands:
            return rows
        if not row.flops and row.op.op.op_class == "copy":
            rows[row.op.op.id] = spent(row)
            name = found.operands[0]
            continue
        product = row.op.op.matmul
        if product is None:
            return rows
        rows[row.op.op.id] = spent(row) * min(terms / float(product.n), 1.0)
        joined = (handed(c, n) for n in found.operands)
        for one in (i for i in joined if i is not None and _joins_stored(e, c, i)):
            rows |= {r.op.op.id: spent(r) for r in e.rows_of(c, [one.name])}
        return rows
    return rows


def _joins_stored(e: Evidence, c: Computation, found: Instruction) -> bool:
    joins_some = any(i.opcode == "concatenate" for _, i in inside(e.module, c, found))
    return joins_some and all(e.is_stored(c, name) for name in found.operands)


RULES: tuple[Rule, ...] = (wide_matmuls, relayouts, repeated_arrays, narrow_products)
