"""Faults of what is kept, joined and handed back: states of another dtype than they came in,
arrays put together anew in every step, weights widened in memory, masks and logits that lie there
whole, what no round of a loop changes."""

from collections.abc import Iterator, Sequence

from shardwise.profiler.explain.evidence import HANDS_ON, Argument, Evidence
from shardwise.profiler.explain.finding import Finding, Rule, by_source
from shardwise.profiler.explain.lineage import elements
from shardwise.profiler.explain.rules_larger import product_behind
from shardwise.profiler.explain.tables import spent
from shardwise.profiler.hlo.shapes import Array
from shardwise.profiler.hlo.text import Computation, Instruction
from shardwise.profiler.timeline import OpRow
from shardwise.units import format_bytes, format_flops
from shardwise.work import grouped


def drifting_states(e: Evidence) -> Iterator[Finding]:
    """Arguments that come back renewed in a wider dtype: no result can lie where they lay."""
    found = list(_renewed_wider(e))
    for tree, pairs in grouped(found, lambda pair: pair[0].tree).items():
        size = sum(new.bytes for _, new, _ in pairs)
        old, new, name = max(pairs, key=lambda pair: pair[1].bytes)
        where = e.result_at(name) or old.layout
        yield Finding(
            rule="state of another dtype",
            seconds=sum(_written_longer(e, old, new, name) for old, new, name in pairs),
            frees=size,
            where=where,
            what=(
                f"'{tree}' comes in as {old.dtype} and goes out as "
                f"{new.dtype}{_unused(e, [a for a, _, _ in pairs])}: {format_bytes(size)} more are "
                "in memory, and the next step is compiled again"
            ),
            remedy=(
                "return it in its own dtype: new.astype(old.dtype); a float32 gradient, learning "
                "rate or constant widens the other operand"
            ),
        )


def _unused(e: Evidence, arguments: Sequence[Argument]) -> str:
    given = any(a.number in e.unused_donations for a in arguments)
    return ", so that its donation is not used" if given else ""


def _written_longer(e: Evidence, old: Argument, new: Array, name: str) -> float:
    """Seconds in which the wider result is written, where memory bounds the op that makes it."""
    entry = e.module.computation(e.module.entry)
    found = entry.names[name]
    maker = found.operands[0] if found.opcode == "get-tuple-element" else name
    row = e.named.get((entry.name, maker))
    bound = row is not None and row.bound_by == "HBM"
    return (new.bytes - old.bytes) / e.bandwidth if bound else 0.0


def _renewed_wider(e: Evidence) -> Iterator[tuple[Argument, Array, str]]:
    """Arguments, the wider results that are elementwise functions of them, and these' names."""
    free = {a.number: a for a in e.floats() if not a.donated}
    same = {(made.dims, made.dtype) for _, made, _ in e.results}
    for name, made, numbers in e.results:
        for number in sorted(numbers & free.keys()):
            old = free[number]
            wider = made.dims == old.dims and made.bytes > old.bytes
            if wider and (old.dims, old.dtype) not in same:
                yield free.pop(number), made, name
                break


def joined_arrays(e: Evidence) -> Iterator[Finding]:
    """Stored arrays that are laid side by side in every step."""
    rows = [r for r in e.timeline.rows if _joins(e, r)]
    for where, group in by_source(e, rows).items():
        around = {x.op.op.id: x for r in group for x in (r, *_laid_out_for(e, r))}
        size = sum(e.made_bytes(r) * r.count for r in group)
        yield Finding(
            rule="joined arrays",
            seconds=sum(map(spent, around.values())),
            where=where,
            what=f"{format_bytes(size)} of stored arrays per step are copied to make them "
            "contiguous",
            remedy=(
                "store them as one array: stacked once before the first step, or a cache of full "
                "length that a step writes a token into (jax.lax.dynamic_update_slice, donated)"
            ),
        )


def joins(e: Evidence) -> set[str]:
    """The ids of ops that lay stored arrays side by side, and of copies for them."""
    rows = [r for r in e.timeline.rows if _joins(e, r)]
    return {x.op.op.id for r in rows for x in (r, *_laid_out_for(e, r))}


def _joins(e: Evidence, row: OpRow) -> bool:
    """Whether an op puts stored arrays, or pieces of them, into a new one and computes nothing."""
    if row.flops or row.op.op.stream != "compute" or row.count > 1:
        return False  # `copied_weights` tells of those in a loop
    computation, found = e.located(row.op)
    if found is None or elements(found) < JOINED:
        return False
    given = [n for n in found.operands if elements(computation.names[n]) >= JOINED]
    asked = found.op_name.endswith(("/concatenate", "/stack"))
    return (asked and any(e.pieces_of(computation.name, n) for n in given)) or _lays(
        e, found, given
    )


def _lays(e: Evidence, found: Instruction, given: Sequence[str]) -> bool:
    """Whether a fusion of the compiler's own writes a stored array into its place in another."""
    if found.opcode != "fusion" or found.op_name or len(given) < 2:
        return False
    body, entry = e.module.computation(found.called[0]), e.module.computation(e.module.entry)
    writes = any(i.opcode == "dynamic-update-slice" for i in body.instructions)
    return writes and any(n in entry.names and e.is_stored(entry, n) for n in given)


JOINED = 2**16
"""Elements from which joining arrays is worth a look."""


def _laid_out_for(e: Evidence, row: OpRow) -> Iterator[OpRow]:
    """Copies of what is joined, and of what comes of it, that are made for it alone."""
    computation = e.module.computation(row.op.computation)
    found = computation.names[row.op.name]
    names = [i.name for i in computation.readers(found.name)]
    names += [i.name for n in names for i in computation.readers(n)]
    waiting = list(found.operands)
    while waiting:
        given = computation.find(waiting.pop())
        if given is None or len(computation.readers(given.name)) > 1:
            continue
        names.append(given.name)
        moves = given.opcode in ("copy", "bitcast", "async-start") or given.opcode.endswith("-done")
        waiting += given.operands[:1] if moves else ()
    yield from (r for r in e.rows_of(computation, names) if r.op.op.op_class == "copy")


def repeated_rounds(e: Evidence) -> Iterator[Finding]:
    """Elementwise functions, in a loop, of what no round of it changes."""
    rows = (r for r in e.timeline.rows if _same_every_round(e, r))
    for where, group in by_source(e, rows).items():
        yield Finding(
            rule="work in a loop",
            seconds=sum(spent(r) * (1 - 1 / r.count) for r in group),
            where=where,
            what=(
                f"the same {format_bytes(sum(map(e.made_bytes, group)))} are computed in each of "
                f"{group[0].count:g} iterations, from values that none of them changes"
            ),
            remedy="compute it once before the loop, and let the loop's body close over it",
        )


def _same_every_round(e: Evidence, row: OpRow) -> bool:
    plain = row.op.op.op_class == "elementwise" and row.op.op.stream == "compute"
    if row.count <= 1 or not plain or row.flops:
        return False
    computation, found = e.located(row.op)
    if found is None or computation.name == e.module.entry:
        return False
    large = [n for n in found.operands if elements(computation.names[n]) > 1]
    return bool(large) and all(_unchanged(e, computation, n, DEEP) for n in large)


DEEP = 6
"""Ops of a round that are followed back to what comes into it."""


def _unchanged(e: Evidence, computation: Computation, name: str, deep: int) -> bool:
    """Whether a value is stored, or made of what is by ops of the round that multiply nothing."""
    if e.is_stored(computation, name):
        return True
    found, row = computation.names[name], e.named.get((computation.name, name))
    large = [n for n in found.operands if elements(computation.names[n]) > 1]
    handed = found.opcode in HANDS_ON
    plain = row is not None and not row.flops and row.op.op.op_class in ("elementwise", "reduction")
    own = deep > 0 and bool(large) and (handed or plain)
    return own and all(_unchanged(e, computation, n, deep - 1) for n in large)


def widened_weights(e: Evidence) -> Iterator[Finding]:
    """Stored weights of few bits that are written out wider before they are multiplied."""
    rows = (r for r in e.timeline.rows if _widens(e, r))
    for where, group in by_source(e, rows).items():
        size = sum(e.made_bytes(r) * r.count for r in group)
        yield Finding(
            rule="widened weights",
            seconds=sum(spent(r) + _wide_again(e, r) for r in group),
            where=where,
            what=(
                f"quantized weights are expanded to {format_bytes(size)} per step, written to "
                "memory and read again for the matmul"
            ),
            remedy=(
                "multiply the quantized weights and scale the result: (x @ w.astype(x.dtype)) * "
                "scale, so that the matmul widens them as it reads"
            ),
        )


NARROW = ("int4", "uint4", "int8", "uint8", "fp8")


def _widens(e: Evidence, row: OpRow) -> bool:
    if row.flops or row.op.op.op_class != "elementwise" or row.op.op.stream != "compute":
        return False
    computation, found = e.located(row.op)
    if found is None:
        return False
    given = [n for n in found.operands if _narrow_weight(e, computation, n, elements(found))]
    return bool(given) and bool(_products_of(e, row))


def _narrow_weight(e: Evidence, computation: Computation, name: str, size: int) -> bool:
    """Whether a value is all of a stored array of few bits."""
    shape = computation.shape_of(name)
    few = isinstance(shape, Array) and shape.dtype.startswith(NARROW)
    return few and elements(computation.names[name]) == size and e.is_stored(computation, name)


def _products_of(e: Evidence, row: OpRow) -> list[OpRow]:
    """The products that read what an op makes."""
    return [r for r in e.readers_of(row) if r.flops]


def _wide_again(e: Evidence, row: OpRow) -> float:
    """Seconds in which what was written out wide is read, less those in which the narrow is."""
    wide, moved = e.made_bytes(row), row.hbm_bytes / row.count
    read_back = wide if moved > wide else 0.0  # else it stays in the chip's own memory
    return (read_back - max(moved - read_back, 0.0)) * row.count / e.bandwidth


def large_temporaries(e: Evidence) -> Iterator[Finding]:
    """What a product gives, written out whole and only reduced: it could be made in pieces."""
    rows = [r for r in e.timeline.rows if r.flops and e.made_bytes(r) > LARGE * e.capacity]
    for row in rows:
        computation = e.module.computation(row.op.computation)
        size, users = e.made_bytes(row), e.users(computation, row.op.name)
        users = [i for i in users if not _backward(e, computation, i)]
        if not users or not all(_reduces(e, computation, i, row) for i in users):
            continue
        yield Finding(
            rule="large temporary",
            seconds=0.0,
            frees=size * (1 - 1 / PIECES),
            where=e.where(row.op),
            what=(
                f"{format_bytes(size)} of {format_bytes(e.capacity)} hold the whole result of a "
                "matmul, only for reductions over its last dim"
            ),
            remedy=(
                f"make and reduce it in {PIECES} pieces of its rows: jax.lax.map(f, x, "
                "batch_size=...), or jax.lax.scan over x.reshape(pieces, -1, x.shape[-1]), with f "
                "in jax.checkpoint if gradients are taken"
            ),
        )


def _backward(e: Evidence, computation: Computation, user: Instruction) -> bool:
    """Whether a reader is of the backward pass: made in pieces, its rows are made again there."""
    row = e.named.get((computation.name, user.name))
    return row is not None and row.op.op.phase in ("backward", "recompute")


LARGE, PIECES = 0.1, 4
"""The share of the memory from which a temporary is worth a word (a feeling), and pieces."""


def _reduces(e: Evidence, computation: Computation, user: Instruction, row: OpRow) -> bool:
    """Whether a reader makes few numbers of many."""
    found = computation.names[row.op.name]
    given = max((elements(computation.names[n]) for n in user.operands), default=0)
    if given * 16 <= elements(found):
        return True  # it reads another result of the same op
    return elements(user) * 16 <= elements(found) and user.opcode in ("fusion", "reduce", "gather")


def remade_products(e: Evidence) -> Iterator[Finding]:
    """Products that the backward pass makes again, though what was made of them is kept."""
    kept = {size for r in e.timeline.rows if (size := _stacked(e, r))}
    rows = [r for r in e.timeline.rows if r.op.op.phase == "recompute" and r.flops]
    rows = [r for r in rows if _elements(e, r) in kept]
    for where, group in by_source(e, rows).items():
        yield Finding(
            rule="products made again",
            seconds=sum(r.per_step for r in group),
            where=where,
            what=(
                f"{format_flops(sum(r.flops * r.count for r in group))} per step repeat a matmul "
                "of the forward pass, while arrays of the same size made from it, "
                f"{format_bytes(e.made_bytes(group[0]))} a round, are kept instead"
            ),
            remedy=(
                "keep the matmul's result instead of later arrays: h = checkpoint_name(x @ w, "
                "'h'), and policy=jax.checkpoint_policies.save_only_these_names('h')"
            ),
        )


def _elements(e: Evidence, row: OpRow) -> int:
    _, found = e.located(row.op)
    return elements(found) if found is not None else 0


def _stacked(e: Evidence, row: OpRow) -> int:
    """Elements of what a forward loop makes of a product and stacks up in each round; else 0."""
    computation, found = e.located(row.op)
    if found is None or row.op.op.phase != "forward" or row.count <= 1:
        return 0
    body = e.module.computation(found.called[0]) if found.opcode == "fusion" else computation
    steps = body.instructions if found.opcode == "fusion" else (found,)
    for i in steps:
        if i.opcode != "dynamic-update-slice":
            continue
        inner = _source(body, i.operands[1])
        if inner.opcode == "parameter" and found.opcode == "fusion":
            inner = _source(computation, found.operands[int(inner.literal)])
        if row.flops or product_behind(e, computation, inner.name) is not None:
            return elements(inner)
    return 0


def _source(computation: Computation, name: str) -> Instruction:
    found = computation.names[name]
    moves = ("bitcast", "reshape", "copy", "copy-start", "copy-done", "convert")
    while found.opcode in moves:
        found = computation.names[found.operands[0]]
    return found


RULES: Sequence[Rule] = (
    drifting_states,
    joined_arrays,
    repeated_rounds,
    widened_weights,
    large_temporaries,
    remade_products,
)
