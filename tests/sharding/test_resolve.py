"""The resolver: its programs compute the dense einsum, and none is cheaper than its best."""

import random
from itertools import permutations, product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import on_drawn
from tests.tiers import spread
from tests.work import calls

from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.hardware import parse_slice
from shardwise.hardware import place as hardware_place
from shardwise.roofline import seconds
from shardwise.sharding import (
    Dim,
    Einsum,
    Layout,
    Mesh,
    Program,
    ShardStep,
    block,
    compute_shardings,
    count,
    group_bytes,
    padded_sizes,
    reshard,
    resolve,
    wire_bytes,
)
from shardwise.sharding.count import collective_op
from shardwise.sharding.exchange import exchange_of
from shardwise.sharding.reshard import wire

# A machine of blocks: one local array per device, moved as each collective defines it.


def place(array, layout, sizes, mesh, rng):
    """Local arrays of a laid-out array; over unreduced axes random parts that sum to it."""
    parts = prod(mesh[axis] for axis in layout.unreduced)
    split = [rng.integers(-4, 5, array.shape) for _ in range(parts - 1)]
    split.append(array - sum(split, np.zeros_like(array)))
    whole = Layout(name=layout.name, dims=layout.dims)
    held = {}
    for device in mesh.devices():
        index = index_of(layout.unreduced, mesh, device)
        held[device] = split[index][block(whole, sizes, mesh, device)]
    return held


def index_of(axes, mesh, device):
    at, index = dict(zip(mesh, device, strict=True)), 0
    for axis in axes:
        index = index * mesh[axis] + at[axis]
    return index


def group_of(axes, mesh, device):
    """The devices that differ from one along these axes only, in the axes' order."""
    at, found = dict(zip(mesh, device, strict=True)), []
    for places in product(*(range(mesh[axis]) for axis in axes)):
        found.append(tuple((at | dict(zip(axes, places, strict=True))).values()))
    return found


def run_step(step, held, sizes, mesh):
    if step.kind == "einsum":
        text = ",".join("".join(a.letters) for a in step.inputs)
        text += "->" + "".join(step.output.letters)
        return {d: np.einsum(text, *(held[a][d] for a in step.inputs)) for d in mesh.devices()}
    (before,) = step.inputs
    local, made = held[before], {}
    for device in mesh.devices():
        group = group_of(step.axes, mesh, device)
        own, n = index_of(step.axes, mesh, device), len(group)
        dim = before.letters.index(step.dim) if step.dim else 0
        if step.kind == "all_gather":
            made[device] = np.concatenate([local[d] for d in group], dim)
        elif step.kind == "slice":
            made[device] = np.split(local[device], n, dim)[own]
        elif step.kind == "all_reduce":
            made[device] = sum(local[d] for d in group)
        elif step.kind == "reduce_scatter":
            made[device] = np.split(sum(local[d] for d in group), n, dim)[own]
        elif step.kind == "all_to_all":
            to = before.letters.index(step.to_dim)
            made[device] = np.concatenate([np.split(local[d], n, to)[own] for d in group], dim)
        else:
            assert step.kind == "permute"
            whole = [Layout(name="", dims=a.dims) for a in (before, step.output)]
            wanted = block(whole[1], sizes, mesh, device)
            made[device] = next(
                local[d] for d in group if block(whole[0], sizes, mesh, d) == wanted
            )
    return made


def run(program, arrays, rng):
    """Final local arrays; every array must be in the layout that its step reads."""
    sizes, mesh = program.sizes, program.mesh
    held = {a: place(value, a, sizes, mesh, rng) for a, value in arrays.items()}
    for step in program.steps:
        held[step.output] = run_step(step, held, sizes, mesh)
    return held[program.output] if program.steps else next(iter(held.values()))


def assert_is(local, layout, dense, sizes, mesh):
    whole = Layout(name="", dims=layout.dims)
    for device in mesh.devices():
        got = sum(local[d] for d in group_of(layout.unreduced, mesh, device))
        assert np.array_equal(got, dense[block(whole, sizes, mesh, device)])


def dense_of(einsum, values):
    """NumPy's answer, product by product as the chain is read."""
    running = values[0]
    for step, value in zip(einsum.products(), values[1:], strict=True):
        left, right = ("".join(a.letters) for a in step.operands)
        running = np.einsum(f"{left},{right}->{''.join(step.result.letters)}", running, value)
    return running


def some_layout(draw, name, letters, mesh, open_sums=False):
    """A random legal layout: each axis on one letter, idle or, where asked, unreduced."""
    cuts, unreduced = dict.fromkeys(letters, ()), []
    for axis in draw(st.permutations(list(mesh))):
        where = draw(st.sampled_from([*letters, "", *(["U"] if open_sums else [])]))
        if where == "U":
            unreduced.append(axis)
        elif where:
            cuts[where] += (axis,)
    dims = tuple(Dim(x, cuts[x]) for x in letters)
    return Layout(name=name, dims=dims, unreduced=tuple(unreduced))


FORMS = (
    *("IJ,JK->IK", "IJ,KJ->IK", "BIJ,BJK->BIK", "BIJ,JK->BIK", "IJ,I->J", "I,K->IK", "IJ,IJ->IJ"),
    *("ABIJ,BJKL->ABIL", "EBD,EDF->EBF", "IJ,JK,KL->IL", "BD,DF,FD->BD", "BI,BI->B"),
)
MESHES = ("X=2", "X=3", "X=4", "X=2,Y=2", "X=4,Y=2", "X=2,Y=3", "X=2,Y=2,Z=2")


@st.composite
def einsums(draw):
    mesh = Mesh.parse(draw(st.sampled_from(MESHES)))
    form = draw(st.sampled_from(FORMS))
    inputs, result = form.split("->")
    letters = sorted({x for x in form if x.isalpha()})
    sizes = {x: mesh.size * draw(st.sampled_from([1, 2])) for x in letters}
    operands = [
        some_layout(draw, name, x, mesh, open_sums=draw(st.booleans()))
        for name, x in zip("PQRS", inputs.split(","), strict=False)
    ]
    wanted = some_layout(draw, "Z", result, mesh)
    einsum = Einsum(operands=tuple(operands), result=wanted)
    return (einsum.freed() if draw(st.booleans()) else einsum), mesh, sizes


@on_drawn(50, einsums(), st.integers(0, 2**32 - 1))
def test_every_strategy_computes_the_einsum(case, seed):
    einsum, mesh, sizes = case
    rng = np.random.default_rng(seed)
    values = [rng.integers(-4, 5, [sizes[x] for x in a.letters]) for a in einsum.operands]
    dense = dense_of(einsum, values)
    found = resolve(einsum, mesh, sizes, top=10_000)
    pick = random.Random(seed).sample(found.strategies, min(8, len(found.strategies)))
    costs = [s.cost for s in found.strategies]
    assert costs == sorted(costs) or np.allclose(costs, sorted(costs), rtol=1e-6)
    for strategy in (found.best, *pick):
        arrays = dict(zip(einsum.operands, values, strict=True))
        assert strategy.inputs == einsum.operands
        assert strategy.cost == pytest.approx(strategy.wire_bytes)
        got = run(strategy.program, arrays, rng)
        assert_is(got, strategy.result, dense, sizes, mesh)
        assert strategy.result == strategy.program.output
        if not einsum.free:
            assert strategy.result == einsum.result


def by_hand(einsum, way, mesh, sizes):
    """The book's recipe for a compute sharding: gather what must go, multiply, reduce, gather."""
    steps = []
    for i, operand in enumerate(einsum.operands):
        steps += gathered_to(operand, way.needs(einsum, i).dims)
    node = way.makes(einsum)
    dims = tuple(map(Dim, einsum.result.letters, node.dims))
    made = Layout(name="Z", dims=dims, unreduced=node.unreduced)
    if made.unreduced:
        reduced = Layout(name="Z", dims=dims)
        steps.append(
            ShardStep(kind="all_reduce", inputs=(made,), output=reduced, axes=made.unreduced)
        )
        made = reduced
    steps += gathered_to(made, [dim.axes for dim in einsum.result.dims])
    program = Program(mesh=mesh, sizes=sizes, dtype="bf16", steps=tuple(steps))
    return sum(wire_bytes(op, mesh) for op in count(program).ops)


def gathered_to(layout, cuts):
    """Gather every dim whose axes differ from what is wanted; cutting again is free."""
    steps = []
    for dim, wanted in zip(layout.dims, cuts, strict=True):
        common = 0
        while common < min(len(dim.axes), len(wanted)) and dim.axes[common] == wanted[common]:
            common += 1
        if dim.axes[common:]:
            kept = Dim(dim.name, dim.axes[:common])
            dims = tuple(kept if d.name == dim.name else d for d in layout.dims)
            after = Layout(name=layout.name, dims=dims)
            steps.append(
                ShardStep(
                    kind="all_gather",
                    inputs=(layout,),
                    output=after,
                    axes=dim.axes[common:],
                    dim=dim.name,
                )
            )
            layout = after
    return steps


@settings(max_examples=60)
@given(einsums())
def test_no_recipe_of_the_book_is_cheaper(case):
    einsum, mesh, sizes = case
    if len(einsum.operands) > 2 or einsum.free or any(o.unreduced for o in einsum.operands):
        return
    best = resolve(einsum, mesh, sizes, top=1).best
    hand = [by_hand(einsum, way, mesh, sizes) for way in compute_shardings(einsum, mesh, sizes)]
    assert best.wire_bytes <= min(hand) * (1 + 1e-9)


# All layouts of a matrix and all single steps between them, written down a second time.


def all_layouts(mesh, letters):
    for places in product([*range(len(letters)), "idle", "U"], repeat=len(mesh)):
        axes = dict(zip(mesh, places, strict=True))
        own = [[a for a in axes if axes[a] == i] for i in range(len(letters))]
        for orders in product(*(permutations(cut) for cut in own)):
            unreduced = tuple(a for a in axes if axes[a] == "U")
            dims = tuple(map(Dim, letters, orders))
            yield Layout(name="A", dims=dims, unreduced=unreduced)


def one_step(a, b, sizes, mesh, cost):
    """The cheapest single step from layout a to layout b, or None."""
    cut = {x: (a.dim(x).axes, b.dim(x).axes) for x in a.letters}
    changed = [x for x in a.letters if cut[x][0] != cut[x][1]]
    lost = [x for x in changed if cut[x][0][: len(cut[x][1])] == cut[x][1]]
    grown = [x for x in changed if cut[x][1][: len(cut[x][0])] == cut[x][0]]
    more = {x: cut[x][1][len(cut[x][0]) :] for x in grown}
    less = {x: cut[x][0][len(cut[x][1]) :] for x in lost}
    reduced = set(a.unreduced) - set(b.unreduced)
    if set(b.unreduced) - set(a.unreduced):
        return None
    kind = None
    if reduced and not changed:
        kind, axes = "all_reduce", tuple(sorted(reduced))
    elif reduced and len(changed) == 1 and grown and set(more[grown[0]]) == reduced:
        kind, axes = "reduce_scatter", more[grown[0]]
    elif reduced:
        return None
    elif len(changed) == 1 and lost:
        kind, axes = "all_gather", less[lost[0]]
    elif len(changed) == 1 and grown and not set(more[grown[0]]) & set(a.axes):
        return 0.0
    elif len(changed) == 2 and lost and grown and less[lost[0]] == more[grown[0]]:
        kind, axes = "all_to_all", less[lost[0]]
    prices = []
    if kind is not None:
        step = ShardStep(
            kind=kind, inputs=(a,), output=b, axes=axes, dim=changed[0] if changed else ""
        )
        size = group_bytes(step, sizes, mesh, {"A": "bf16"})
        prices.append(cost(collective_op(kind, tuple(x for x in mesh if x in axes), size)))
    same = all(prod(mesh[x] for x in c[0]) == prod(mesh[x] for x in c[1]) for c in cut.values())
    if same and changed and not reduced:
        held = prod(sizes.values()) * 2 / prod(mesh[x] for x in a.axes)
        over = tuple(x for x in mesh if x in {*a.axes, *b.axes})
        cuts = ([dim.axes for dim in layout.dims] for layout in (a, b))
        prices.append(cost(collective_op("permute", over, held, exchange=exchange_of(*cuts, over))))
    return min(prices, default=None)


@pytest.mark.parametrize(
    ("text", "on"),
    spread(
        [
            *(("X=2", ""), ("X=4,Y=2", ""), ("X=2,Y=2", "")),
            *(("X=4,Y=2", "v5e:4x2"), ("X=4,Y=4", "v5e:4x4"), ("X=2,Y=4", "h100:8")),
        ],
        quick=3,
        slow=3,
        rows=True,
    ),
)
def test_the_cheapest_reshard_is_the_cheapest(text, on):
    """In the bytes that a device sends; and on a slice in seconds."""
    mesh, sizes = Mesh.parse(text), {"I": 16, "J": 16}
    cost = wire(mesh)
    if on:
        piece, sizes = parse_slice(on), {"I": 4096, "J": 4096}
        cost = seconds(piece.chip, hardware_place(piece, dict(mesh)))
    layouts = list(all_layouts(mesh, "IJ"))
    best = {(a, b): 0.0 if a == b else np.inf for a in layouts for b in layouts}
    for a, b in best:
        if a != b and (price := one_step(a, b, sizes, mesh, cost)) is not None:
            best[a, b] = price
    for via in layouts:
        for a in layouts:
            for b in layouts:
                best[a, b] = min(best[a, b], best[a, via] + best[via, b])
    for (a, b), price in best.items():
        if np.isinf(price):
            with pytest.raises(BadRequest, match=r"needs partial sums over .*, which no step"):
                reshard(a, b, mesh=mesh, sizes=sizes, dtype="bf16", cost=cost)
            continue
        steps = reshard(a, b, mesh=mesh, sizes=sizes, dtype="bf16", cost=cost)
        program = Program(mesh=mesh, sizes=sizes, dtype="bf16", steps=steps)
        got = sum(cost(op) for op in count(program).ops)
        assert got == pytest.approx(price), f"{a} -> {b}: {[str(s) for s in steps]}"
        assert (steps[0].inputs[0], steps[-1].output) == (a, b) if steps else a == b


# The book's cases, each out of the same search.


def best_steps(text, mesh="X=4", sizes=None, **options):
    sizes = sizes or dict.fromkeys("BDFIJK", 64)
    found = resolve(Einsum.parse(text), Mesh.parse(mesh), sizes, **options)
    return [str(step) for step in found.best.program.steps]


def test_case_1_no_contracted_dim_is_cut():
    assert best_steps("A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]", "X=4,Y=4") == [
        "C[I_X, K_Y] = A[I_X, J] * B[J, K_Y]"
    ]


def test_case_2_one_contracted_dim_is_cut():
    assert best_steps("A[I, J_X] * B[J, K] -> C[I, K]") == [
        "A[I, J] = AllGather_X(A[I, J_X])",
        "C[I, K] = A[I, J] * B[J, K]",
    ]


def test_case_3_both_contracted_dims_are_cut():
    assert best_steps("A[I, J_X] * B[J_X, K] -> C[I, K]") == [
        "C[I, K]{U_X} = A[I, J_X] * B[J_X, K]",
        "C[I, K] = AllReduce_X(C[I, K]{U_X})",
    ]
    assert best_steps("A[I, J_X] * B[J_X, K] -> C[I, K_X]") == [
        "C[I, K]{U_X} = A[I, J_X] * B[J_X, K]",
        "C[I, K_X] = ReduceScatter_X(C[I, K]{U_X}, K)",
    ]


def test_case_4_one_axis_on_both():
    for wanted, gathered in (("C[I, K_X]", "A[I, J]"), ("C[I_X, K]", "B[J, K]")):
        steps = best_steps(f"A[I_X, J] * B[J, K_X] -> {wanted}")
        assert steps[0].startswith(f"{gathered} = AllGather_X(")
        assert len(steps) == 2


def test_gather_before_or_after_the_product():
    """A[I_X, J] * B -> C[I, K]: whichever array is smaller (book 3.2)."""
    sizes = {"I": 64, "J": 16, "K": 256}
    text = "A[I_X, J] * B[J, K] -> C[I, K]"
    assert best_steps(text, sizes=sizes)[0] == "A[I, J] = AllGather_X(A[I_X, J])"
    assert best_steps(text, sizes=sizes | {"K": 4})[-1] == "C[I, K] = AllGather_X(C[I_X, K])"


def test_partial_gather_and_all_to_all():
    assert best_steps("A[I_XY, J] -> A[I_X, J]", "X=4,Y=2") == [
        "A[I_X, J] = AllGather_Y(A[I_XY, J])"
    ]
    assert best_steps("A[I_XY, J] -> A[I_Y, J]", "X=4,Y=2") == [
        "A[I_YX, J] = Permute_XY(A[I_XY, J])",
        "A[I_Y, J] = AllGather_X(A[I_YX, J])",
    ]
    assert best_steps("A[I_X, J] -> A[I, J_X]") == ["A[I, J_X] = AllToAll_X(A[I_X, J], I->J)"]
    assert best_steps("A[I_X, J] -> A[I_X, J]") == []


def test_exercise_9_cutting_the_other_operand_is_free():
    """Slice B, multiply, reduce-scatter: cheaper than a gather of A where A is the larger."""
    sizes = {"I": 64, "J": 1024, "K": 16}
    text = "A[I, J_X] * B[J, K] -> C[I, K_X]"
    assert best_steps(text, sizes=sizes) == [
        "B[J_X, K] = Slice_X(B[J, K])",
        "C[I, K]{U_X} = A[I, J_X] * B[J_X, K]",
        "C[I, K_X] = ReduceScatter_X(C[I, K]{U_X}, K)",
    ]
    assert best_steps(text, sizes=sizes | {"J": 16, "K": 1024})[0] == (
        "A[I, J] = AllGather_X(A[I, J_X])"
    )


def test_open_sums_pass_through_a_product():
    text = "A[I, J]{U_X} * B[J, K] -> C[I, K]"
    assert best_steps(text, sizes={"I": 8, "J": 64, "K": 8}) == [
        "C[I, K]{U_X} = A[I, J]{U_X} * B[J, K]",
        "C[I, K] = AllReduce_X(C[I, K]{U_X})",
    ]
    assert best_steps("A[I, J_X] * B[J_X, K] -> C[I, K]{U_X}") == [
        "C[I, K]{U_X} = A[I, J_X] * B[J_X, K]"
    ]


def test_a_batch_dim_is_cut_together():
    assert best_steps("A[B_X, I, J] * W[B, J, K] -> C[B_X, I, K]") == [
        "W[B_X, J, K] = Slice_X(W[B, J, K])",
        "C[B_X, I, K] = A[B_X, I, J] * W[B_X, J, K]",
    ]


def test_a_chain_is_solved_jointly():
    """Alone, the second product would gather Tmp; together, Tmp stays cut and Out is reduced."""
    text = "In[B, D_X] * W_in[D, F_X] * W_out[F_X, D] -> Out[B, D_X]"
    assert best_steps(text, sizes={"B": 16, "D": 256, "F": 1024}) == [
        "In[B, D] = AllGather_X(In[B, D_X])",
        "Tmp[B, F_X] = In[B, D] * W_in[D, F_X]",
        "Out[B, D]{U_X} = Tmp[B, F_X] * W_out[F_X, D]",
        "Out[B, D_X] = ReduceScatter_X(Out[B, D]{U_X}, D)",
    ]


def test_memory_decides_how_weights_are_stored():
    sizes = {"B": 64, "D": 256, "F": 256}
    text = "x[B, D] * W[D, F] -> y[B, F]"
    weight = 256 * 256 * 2
    free = resolve(Einsum.parse(text), Mesh.parse("X=4"), sizes, free_inputs=("W",))
    assert free.best.wire_bytes == 0
    assert free.best.peak_bytes >= weight
    tight = resolve(
        Einsum.parse(text), Mesh.parse("X=4"), sizes, free_inputs=("W",), max_bytes=weight
    )
    assert tight.best.peak_bytes <= weight
    assert str(tight.best.inputs[1]) != "W[D, F]"
    with pytest.raises(NoFeasiblePlan, match=r"fits 1 kB per device; the smallest .* takes"):
        resolve(Einsum.parse(text), Mesh.parse("X=4"), sizes, max_bytes=1000)


@pytest.mark.parametrize("limit", [9_000, 12_000, 20_000, 40_000])
def test_a_free_input_is_stored_as_the_best_given_one(limit):
    """Choosing the stored layout equals trying each of them under the same limit."""
    mesh, sizes = Mesh.parse("X=2,Y=2"), {"B": 16, "D": 64, "F": 128}
    given = [w for w in all_layouts(mesh, "DF") if not w.unreduced]
    costs = []
    for layout in given:
        dims = tuple(Dim(d.name, d.axes) for d in layout.dims)
        weight = Layout(name="W", dims=dims)
        x = Layout.parse("x[B_X, D]")
        einsum = Einsum(operands=(x, weight), result=Layout.parse("y[B_X, F]"))
        try:
            best = resolve(einsum, mesh, sizes, max_bytes=limit, top=1).best
        except NoFeasiblePlan:
            continue
        assert best.peak_bytes <= limit
        costs.append(best.cost)
    einsum = Einsum.parse("x[B_X, D] * W[D, F] -> y[B_X, F]")
    free = resolve(einsum, mesh, sizes, free_inputs=("W",), max_bytes=limit, top=1).best
    assert free.peak_bytes <= limit
    assert free.cost == pytest.approx(min(costs))


def test_uneven_dims_are_padded_in_sight():
    einsum, mesh = Einsum.parse("A[I_X, J] * B[J_Y, K] -> C[I, K_X]"), Mesh.parse("X=4,Y=3")
    padded = padded_sizes(einsum, {"I": 6, "J": 8, "K": 8}, mesh)
    assert padded.sizes == {"I": 8, "J": 9, "K": 8}
    assert padded.notes == (
        "I padded from 6 to 8, as its blocks must be equal",
        "J padded from 8 to 9, as its blocks must be equal",
    )
    with pytest.raises(BadRequest, match=r"dim 'I' of size 6 .* so pad to 8"):
        resolve(einsum, mesh, {"I": 6, "J": 9, "K": 8})


def test_three_axes_and_six_letters_take_few_calls():
    mesh, sizes = Mesh.parse("X=2,Y=4,Z=8"), dict.fromkeys("BIJKLM", 64)
    text = "A[B_X, I_Y, M, J] * W[B, J_Z, K, L] -> C[B_X, I, K_Y, L]"
    einsum = Einsum.parse(text)
    assert resolve(einsum, mesh, sizes).enumerated > 400
    assert calls(lambda: resolve(einsum, mesh, sizes)) < 450_000
