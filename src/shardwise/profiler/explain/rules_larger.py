"""Faults of what is made larger, wider or more often than its reader needs: rows that nothing
fills, whole sorts, both branches of a choice, 64-bit numbers, random numbers and masks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.profiler.explain.evidence import HANDS_ON, Argument, Evidence
from shardwise.profiler.explain.finding import Finding, Rule, by_source
from shardwise.profiler.explain.flow import inside
from shardwise.profiler.explain.layouts import steps
from shardwise.profiler.explain.lineage import constant, elements, groups_kept
from shardwise.profiler.explain.rules_twice import pointwise, slices_of
from shardwise.profiler.explain.tables import spent
from shardwise.profiler.hlo.flops import multiplies
from shardwise.profiler.hlo.shapes import arrays
from shardwise.profiler.hlo.text import Computation, Instruction
from shardwise.profiler.timeline import OpRow
from shardwise.roofline.price import MATH
from shardwise.units import format_bytes, format_flops
from shardwise.work import grouped

FEW = 0.5
"""The share of what is made that is used, up to which it is worth a word (a feeling)."""
FARTHEST = 30
"""Values that are followed from an op to what it is for."""


def empty_rows(e: Evidence) -> Iterator[Finding]:
    """Products of rows that are mostly zeros: buffers larger than what is written into them."""
    found = {
        (r.op.computation, r.op.name): made for r in e.timeline.rows if (made := _filled(e, r))
    }
    for where, group in by_source(e, (e.named[key] for key in found)).items():
        made = [found[r.op.computation, r.op.name] for r in group]
        share = max(share for share, _ in made)
        zeros = {z.op.op.id: z for _, rows in made for z in rows}
        lost = sum(spent(r) * (1 - share_of) for r, (share_of, _) in zip(group, made, strict=True))
        yield Finding(
            rule="empty rows",
            seconds=lost + sum(map(spent, zeros.values())),
            where=where,
            what=(
                f"{format_flops(sum(r.flops * r.count for r in group))} per step multiply buffers "
                f"in which at most {100 * share:.2g} % of the rows are filled"
            ),
            remedy=(f"{_as_they_are(e)}, or make the buffers smaller: a capacity factor near 1"),
        )


def _as_they_are(e: Evidence) -> str:
    """How rows are multiplied as they are. XLA writes a ragged product out for GPUs, with the rows
    of all in each group, unless told otherwise (openxla/xla#45996)."""
    compiler = e.piece.chip.compiler
    if compiler is None or compiler.platform == "tpu":
        return "sort the rows by expert and multiply them as they are (jax.lax.ragged_dot)"
    return (
        "sort the rows by expert and multiply them by a kernel for groups "
        "(jax.experimental.pallas.ops.gpu.ragged_dot_mgpu, or jax.lax.ragged_dot with "
        "--xla_gpu_experimental_use_ragged_dot_fusion=true; without it XLA multiplies all rows for "
        "each expert)"
    )


def _filled(e: Evidence, row: OpRow) -> tuple[float, list[OpRow]] | None:
    """The share of a product's rows that were scattered into zeros, or that its groups keep of what
    each of them multiplies, and the ops that fill with zeros and scatter."""
    if not row.flops or row.op.op.stream != "compute":
        return None
    computation = e.module.computation(row.op.computation)
    own = computation.names[row.op.name]
    for found in (own, *(handed(computation, name) for name in own.operands)):
        for c, i in inside(e.module, computation, found) if found is not None else ():
            if (groups := groups_kept(c, i)) > 1 and found is not None:
                return 1 / groups, []
            if i.opcode != "scatter" or found is None or found is own:
                continue
            base = handed(computation, _outer(c, found, i.operands[0]))
            share = elements(c.names[i.operands[-1]]) / max(elements(i), 1)
            if base is None or share > FEW or not _one_number(e, computation, base):
                continue
            return share, e.rows_of(computation, (base.name, found.name))
    return None


def _one_number(e: Evidence, computation: Computation, found: Instruction) -> bool:
    """Whether a value is one number everywhere, that the program has written down."""
    if found.opcode != "fusion":
        return constant(computation, found.name)
    body = e.module.computation(found.called[0])
    return constant(body, body.root.name)


def handed(computation: Computation, name: str) -> Instruction | None:
    """What a value is, before it was handed on as it is."""
    found = computation.find(name)
    while found is not None and (
        found.opcode in (*HANDS_ON, "reshape") or found.opcode.endswith("-done")
    ):
        found = computation.find(found.operands[0])
    return found


def product_behind(e: Evidence, computation: Computation, name: str) -> OpRow | None:
    """The one product that a value is, or that functions of single numbers make it of."""
    products: dict[str, OpRow] = {}
    waiting, seen = [name], set[str]()
    while waiting:
        found = handed(computation, waiting.pop())
        if found is None or len(seen) == FARTHEST:
            return None
        if found.name in seen or found.opcode in ("broadcast", "constant"):
            continue
        seen.add(found.name)
        row = e.named.get((computation.name, found.name))
        if row is not None and row.flops:
            products[found.name] = row
        elif found.operands and pointwise(e, found):
            waiting += found.operands
        else:
            return None
    return products.popitem()[1] if len(products) == 1 else None


def _outer(inner: Computation, fusion: Instruction, name: str) -> str:
    """The operand of a fusion that a value within it is."""
    found = handed(inner, name)
    given = found is not None and found.opcode == "parameter" and fusion.opcode == "fusion"
    return fusion.operands[int(found.literal)] if given and found is not None else name


def whole_sorts(e: Evidence) -> Iterator[Finding]:
    """Sorts of which only the first few are read."""
    for where, group in by_source(e, _sorted_for_few(e)).items():
        share = max(_first_of(e, r) for r in group)
        rows = [r for r in e.timeline.rows if _beside_sort(e, r, where)]
        yield Finding(
            rule="whole sort",
            seconds=sum(map(spent, rows)) - sum(_read_once(e, r) for r in group),
            where=where,
            what=(
                f"{sum(elements(_found(e, r)) * r.count for r in group):,.0f} numbers are sorted, "
                f"and only {100 * share:.2g} % of them are read"
            ),
            remedy=(
                "jax.lax.top_k(x, k), or jax.lax.approx_max_k(x, k) where a few may be missed: "
                "both read the array once"
            ),
        )


def sorting(e: Evidence) -> set[str]:
    """The ids of whole sorts, and of what is laid out for them."""
    lines = {e.where(r.op) for r in _sorted_for_few(e)}
    rows = (r for r in e.timeline.rows if lines)
    return {r.op.op.id for r in rows if any(_beside_sort(e, r, line) for line in lines)}


def _sorted_for_few(e: Evidence) -> list[OpRow]:
    return [r for r in e.timeline.rows if _sorts(e, r) and _first_of(e, r) <= FEW]


def _sorts(e: Evidence, row: OpRow) -> bool:
    return row.op.opcode == "sort" or (
        row.op.opcode == "fusion" and any(i.opcode == "sort" for _, i in steps(e, row))
    )


def _beside_sort(e: Evidence, row: OpRow, where: str) -> bool:
    """A sort, the places that it carries along, or a copy of either: all on its line. What widens
    the numbers that are sorted stays without a sort."""
    plain = not row.flops and row.op.op.collective is None and row.op.op.stream == "compute"
    return plain and e.where(row.op) == where and not _widens(e, row)


def _widens(e: Evidence, row: OpRow) -> bool:
    computation, found = e.located(row.op)
    made = None if found is None else next(arrays(found.shape), None)
    if found is None or made is None:
        return False
    given = (a for name in found.operands for a in arrays(computation.shape_of(name)))
    return any(a.dims == made.dims and a.bytes < made.bytes for a in given)


def _found(e: Evidence, row: OpRow) -> Instruction:
    return e.module.computation(row.op.computation).names[row.op.name]


def _first_of(e: Evidence, row: OpRow) -> float:
    """The share of what was sorted that anything reads."""
    computation, found = e.module.computation(row.op.computation), _found(e, row)
    taken = max(slices_of(e, computation, found.name), default=1.0)
    return taken / max(elements(found), 1)


def _read_once(e: Evidence, row: OpRow) -> float:
    """Seconds in which the first operand of a sort is read once."""
    first = next(arrays(_found(e, row).shape))
    return first.bytes * row.count / e.bandwidth


def both_branches(e: Evidence) -> Iterator[Finding]:
    """Two products of which a single flag takes one."""
    pairs = [pair for r in e.timeline.rows for pair in _chosen(e, r)]
    for where, same in grouped(pairs, lambda pair: e.where(pair[0].op)).items():
        yield Finding(
            rule="both branches",
            seconds=sum(min(spent(one), spent(other)) for one, other in same),
            where=where,
            what=(
                f"{format_flops(sum(r.flops * r.count for pair in same for r in pair))} per step "
                "compute two results, and one flag selects one"
            ),
            remedy=(
                "choose before the matmul, x @ jnp.where(flag, w, v), or let jax.lax.cond(flag, f, "
                "g) run one; jnp.where, and cond under jax.vmap over the flag, run both"
            ),
        )


def _chosen(e: Evidence, row: OpRow) -> Iterator[tuple[OpRow, OpRow]]:
    """The two products of which an op takes one by one flag; it may make one of them itself."""
    computation, whole = e.module.computation(row.op.computation), _found(e, row)
    for c, i in steps(e, row):
        if i.opcode != "select" or elements(i) != elements(whole):
            continue
        flag = handed(c, i.operands[0])
        one_flag = flag is not None and flag.opcode == "broadcast"
        if not one_flag or flag is None or elements(c.names[flag.operands[0]]) > 1:
            continue
        if constant(c, flag.name):
            continue
        given = [_outer(c, whole, _cast_of(c, n)) for n in i.operands[1:]]
        rows = [product_behind(e, computation, n) for n in given]
        made = [r for r in rows if r is not None and r is not row]
        if made and row.flops:
            yield row, made[0]
            return
        if len(made) == 2 and made[0] is not made[1]:
            yield made[0], made[1]
            return


def _cast_of(computation: Computation, name: str) -> str:
    """What a value is in another dtype, where it is."""
    found = handed(computation, name)
    return found.operands[0] if found is not None and found.opcode == "convert" else name


def double_precision(e: Evidence) -> Iterator[Finding]:
    """Numbers of 64 bits, which a TPU adds and multiplies as pairs of 32."""
    marked = {
        i.op_name for c in e.module.computations.values() for i in c.instructions if _emulates(i)
    }
    rows = [r for r in e.timeline.rows if marked and _of(e, r, marked)]
    group = [r for r in rows if spent(r) > 0]
    if group:
        first = max(group, key=spent)
        yield Finding(
            rule="double precision",
            seconds=sum(_beyond(e, r) for r in group),
            where=e.where(first.op),
            what=(
                f"{len(group)} ops compute in 64 bits, each number as a pair of two and each "
                "operation as tens of others"
            ),
            remedy=(
                "compute in float32: x.astype(jnp.float32) here, or leave jax_enable_x64 off; a "
                "NumPy float64 or a Python float under x64 widens the other operand"
            ),
        )


def _emulates(found: Instruction) -> bool:
    """Part of an operation on pairs: a test for infinity that the program did not write."""
    asked = found.op_name.endswith(("/is_finite", "/isfinite"))
    return found.opcode == "is-finite" and bool(found.op_name) and not asked


def _of(e: Evidence, row: OpRow, names: set[str]) -> bool:
    return any(i.op_name in names for _, i in steps(e, row))


def _beyond(e: Evidence, row: OpRow) -> float:
    """Seconds per step of an op beyond its products."""
    math = row.peak.get(MATH, 0.0) / e.piece.chip.efficiency.matmul
    return max(row.seconds - math, 0.0) * row.count


DRAWS = ("_uniform", "_bernoulli", "_normal", "_gumbel", "_randint", "_categorical", "random_bits")
"""Functions of `jax.random` as they are named in a program."""


def drawn_everywhere(e: Evidence) -> Iterator[Finding]:
    """Random numbers that are drawn whole by every device, or in an order that is exchanged."""
    rows = [r for r in e.timeline.rows if any(f"({d})" in _named(e, r) for d in DRAWS)]
    for where, group in by_source(e, rows).items():
        sent = [r for r in group if r.op.op.collective is not None and not e.small(r)]
        whole = [r for r in group if r.op.opcode == "rng-bit-generator" and _cut_after(e, r)]
        if sent:
            yield _drawn(
                where,
                sum(spent(r) for r in group if not r.flops),
                "are drawn in an order that no sharding keeps, and exchanged "
                f"{sum(r.count for r in sent):g} times",
                "jax.config.update('jax_threefry_partitionable', True): each device draws its own",
            )
        elif whole:
            n = e.mesh.size
            yield _drawn(
                where,
                sum(spent(r) for r in whole) * (1 - 1 / n),
                f"are drawn by the hardware's generator, all of them on each of {n} devices",
                "draw inside jax.shard_map, with the device's index folded into the key, or set "
                "xla_tpu_spmd_rng_bit_generator_unsafe=true",
            )


def _drawn(where: str, seconds: float, what: str, remedy: str) -> Finding:
    return Finding(
        rule="random numbers",
        seconds=seconds,
        where=where,
        what=f"random numbers {what}",
        remedy=remedy,
    )


def _named(e: Evidence, row: OpRow) -> str:
    return row.op.op_name or _found(e, row).op_name


def _cut_after(e: Evidence, row: OpRow) -> bool:
    """Whether a device takes a piece of what it draws."""
    computation, found = e.module.computation(row.op.computation), _found(e, row)
    waiting, seen = [found.name], set()
    while waiting and len(seen) < FARTHEST:
        name = waiting.pop(0)
        for reader in e.users(computation, name):
            if reader.name in seen:
                continue
            seen.add(reader.name)
            within = [i for _, i in inside(e.module, computation, reader)]
            if any(i.opcode == "dynamic-slice" for i in within):
                return True
            if not any(multiplies(i) for i in within):
                waiting.append(reader.name)
    return False


def stored_masks(e: Evidence) -> Iterator[Finding]:
    """Masks or biases of tokens by tokens that come from memory, to be added to scores."""
    found = {(r.op.computation, r.op.name): m for r in e.timeline.rows if (m := _mask(e, r))}
    for where, group in by_source(e, (e.named[key] for key in found)).items():
        given = [found[r.op.computation, r.op.name] for r in group]
        masks = {a.number: a for m in given for a in m.arguments}
        copies = [r for r in e.timeline.rows if _copies(e, r, set(masks))]
        size = sum(a.bytes for a in masks.values())
        written = {r.op.op.id: r for m in given for r in m.repeated}
        again = sum(m.read * r.count for r, m in zip(group, given, strict=True)) / e.bandwidth
        read = max(sum(map(spent, copies)), 0 if written else size / e.bandwidth)
        yield Finding(
            rule="stored mask",
            seconds=read + sum(map(spent, written.values())) + again,
            where=next((e.where(r.op) for r in written.values()), where),
            what=(
                f"'{next(iter(masks.values())).name}', {format_bytes(size)}, is a mask of tokens "
                "by tokens, read from memory for every score"
                + (", and written there again for each head" if written else "")
            ),
            remedy=(
                "compare positions and segments where the scores are masked: jnp.where(at[:, None] "
                ">= at, scores, -inf) with at = jnp.arange(T), or is_causal=True and segment_ids "
                "of the attention function"
            ),
        )


def masking(e: Evidence) -> set[str]:
    """The ids of ops that add or select by a stored mask, of those that repeat it over heads, and
    of copies of it."""
    found = [(r, m) for r in e.timeline.rows if (m := _mask(e, r))]
    numbers = {a.number for _, m in found for a in m.arguments}
    copies = {r.op.op.id for r in e.timeline.rows if numbers and _copies(e, r, numbers)}
    return {r.op.op.id for one, m in found for r in (one, *m.repeated)} | copies


TOKENS = 512
"""The least side of what is taken for a mask of tokens by tokens."""


@dataclass(frozen=True, slots=True)
class _Mask:
    """What an op adds or selects by: `arguments` of tokens by tokens, the ops that wrote them
    `repeated` over heads, and the bytes that it then reads of those."""

    arguments: list[Argument]
    repeated: list[OpRow]
    read: float


def _mask(e: Evidence, row: OpRow) -> _Mask | None:
    """The arguments of tokens by tokens that an op adds or selects by, repeated over heads in it or
    before it."""
    computation, whole = e.module.computation(row.op.computation), _found(e, row)
    if row.op.op.stream != "compute":
        return None
    numbers: set[int] = set()
    repeated: dict[str, OpRow] = {}
    read = 0.0
    for c, i in steps(e, row):
        if i.opcode not in ("add", "select") or len(dims := next(arrays(i.shape)).dims) < 3:
            continue
        if dims[-1] < TOKENS or dims[-2] < TOKENS:
            continue
        for name in i.operands:
            outer, maker = _repeated(e, computation, whole, c, name)
            outer_is = computation.find(outer)
            if outer_is is None or elements(outer_is) < TOKENS**2:
                continue
            found = e.pieces_of(computation.name, outer)
            numbers |= found
            made = e.named.get((computation.name, maker.name)) if maker is not None else None
            if found and made is not None and maker is not None:
                repeated[made.op.op.id] = made
                read += sum(a.bytes for a in arrays(maker.shape))
    masks = [a for a in e.arguments if a.number in numbers]
    return _Mask(masks, list(repeated.values()), read) if masks else None


def _repeated(
    e: Evidence, computation: Computation, whole: Instruction, inner: Computation, name: str
) -> tuple[str, Instruction | None]:
    """The value that an operand within an op repeats, and the op before it that does so; "" where
    nothing is repeated."""
    given = handed(inner, name)
    if given is not None and given.opcode == "broadcast":
        dims = next(arrays(given.shape)).dims
        return (_outer(inner, whole, given.operands[0]) if len(dims) > 3 else ""), None
    if given is None or given.opcode != "parameter" or whole.opcode != "fusion":
        return "", None
    maker = handed(computation, whole.operands[int(given.literal)])
    body = e.module.computation(maker.called[0]) if maker and maker.opcode == "fusion" else None
    last = handed(body, body.root.name) if body is not None else None
    if maker is None or body is None or last is None or last.opcode != "broadcast":
        return "", None
    return _outer(body, maker, last.operands[0]), maker


def _copies(e: Evidence, row: OpRow, numbers: set[int]) -> bool:
    own = row.op.op.op_class == "copy" and row.op.op.stream == "compute"
    return own and bool(numbers & e.pieces_of(row.op.computation, row.op.name))


RULES: Sequence[Rule] = (
    empty_rows,
    whole_sorts,
    both_branches,
    double_precision,
    drawn_everywhere,
    stored_masks,
)
