"""Derived programs run on fake devices: outputs, gradients and updates equal the dense ones."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import strategies as st
from tests.drawn import on_drawn
from tests.sharding.devices import Devices, call, einsum
from tests.sharding.strategies import STRATEGIES, strategy

from shardwise.sharding import Dim, Layout, Mesh
from shardwise.sharding.backward import derive
from shardwise.sharding.backward.analyse import analyse
from shardwise.sharding.backward.derive import gradient_layout
from shardwise.sharding.backward.forward import ForwardLine, forward
from shardwise.sharding.backward.infer import pairs
from shardwise.sharding.einsum import Einsum


def dense(source, values, sizes):
    """All arrays of the unsharded forward."""
    values = dict(values)
    for line in source.lines:
        inputs = [values[a.name] for a in line.inputs]
        if not line.function:
            made = einsum(line.inputs, inputs, line.output)
        elif line.function == "reshape":
            made = inputs[0].reshape([sizes[d] for d in line.output.letters])
        else:
            made = call(line.function, line.output, line.over, *inputs)
        values[line.output.name] = made
    return values


def random_values(source, sizes, seed):
    rng = np.random.default_rng(seed)
    names = [name for name in source.arrays if name not in source.made]
    return {n: rng.normal(size=[sizes[d] for d in source.arrays[n].letters]) for n in names}


def numeric_gradients(source, values, sizes, weights):
    """Central differences of loss = sum(weights * output), element by element."""

    def loss(changed):
        made = dense(source, changed, sizes)
        return sum((weights[o] * made[o]).sum() for o in source.outputs)

    gradients = {}
    for name in (*source.storage, *source.inputs):
        gradients[name] = np.zeros_like(values[name])
        for at in np.ndindex(values[name].shape):
            step = np.zeros_like(values[name])
            step[at] = 1e-5
            above = loss(values | {name: values[name] + step})
            below = loss(values | {name: values[name] - step})
            gradients[name][at] = (above - below) / 2e-5
    return gradients


def run_phase(devices, notes, *, free, keep=False):
    """Run the steps and drop what they free; with `keep`, leave out what the forward kept."""
    for note in notes:
        if keep and note.made_in:
            continue
        devices.run(note.step)
        for array in note.frees if free else ():
            if not (keep and array in note.keepable):
                del devices.held[array]


def check(source, mesh, sizes, seed=0, keep=False):
    """Forward, backward and update on devices against the dense computation."""
    derivation = derive(source, mesh, sizes)
    values = random_values(source, sizes, seed)
    whole = dense(source, values, sizes)
    devices = Devices(mesh, sizes)
    for name, value in values.items():
        devices.put(source.arrays[name], value)
    run_phase(devices, analyse(derivation, "forward"), free=True, keep=keep)
    rng = np.random.default_rng(seed + 1)
    weights = {}
    for name in source.outputs:
        np.testing.assert_allclose(devices.get(source.arrays[name]), whole[name], atol=1e-9)
        weights[name] = rng.normal(size=whole[name].shape)
    left = {a for a in devices.held if a.name in source.made} - {
        source.arrays[name] for name in source.outputs
    }
    if not keep:
        assert left <= {*derivation.saved}, "the forward leaves more than it saves"
        devices.held = {
            a: held
            for a, held in devices.held.items()
            if a in derivation.saved or a.name in source.storage
        }
    for name in source.outputs:
        devices.put(gradient_layout(source, name), weights[name])
    run_phase(devices, analyse(derivation, "backward"), free=True, keep=keep)
    gradients = numeric_gradients(source, values, sizes, weights)
    for name, gradient in gradients.items():
        got = devices.get(gradient_layout(source, name))
        np.testing.assert_allclose(got, gradient, atol=1e-5 * max(1, abs(gradient).max()))
    for name, stored in source.storage.items():
        values[f"m{name}"] = rng.normal(size=values[name].shape)
        devices.put(stored.optimizer, values[f"m{name}"])
    got_gradients = {n: devices.get(gradient_layout(source, n)) for n in source.storage}
    for step in derivation.update:
        devices.run(step)
    for name, stored in source.storage.items():
        new = call("update", None, "", values[name], got_gradients[name], values[f"m{name}"])
        np.testing.assert_allclose(devices.get(stored.parameter), new, atol=1e-9)


def sizes_for(source, mesh, draw):
    """A multiple of all axes that cut a dim anywhere; N is the product of K and M."""
    cuts = {}
    stored = [a for s in source.storage.values() for a in (s.gradient, s.optimizer)]
    for array in (*source.arrays.values(), *stored):
        for dim in array.dims:
            cuts.setdefault(dim.name, set()).update(dim.axes)
    if "M" in cuts:  # the book's second all-to-all cuts M by Z on the way
        cuts["M"].add("Z")
    sizes = {name: prod(mesh[a] for a in axes) * draw(name) for name, axes in cuts.items()}
    if "M" in sizes:
        sizes["N"] = sizes["K"] * sizes["M"]
    return sizes


MESH = Mesh.parse("X=2,Y=2,Z=2")


@pytest.mark.parametrize("keep", [False, True], ids=["again", "kept"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_equal_the_dense_step(name, keep):
    source = strategy(name).forward()
    sizes = sizes_for(source, MESH, lambda _: 1)
    check(source, MESH, {name: max(2, size) for name, size in sizes.items()}, keep=keep)


@on_drawn(60, st.data())
def test_strategies_at_random_sizes(data):
    source = strategy(data.draw(st.sampled_from(sorted(STRATEGIES)))).forward()
    mesh = Mesh(tuple((axis, data.draw(st.sampled_from([1, 2, 3]))) for axis in "XYZ"))
    sizes = sizes_for(source, mesh, lambda _: data.draw(st.sampled_from([1, 2])))
    if prod(sizes[d] for d in ("D", "N", "H") if d in sizes) > 400:
        sizes |= {"D": 2, "H": 1} if "N" in sizes else {}
    check(source, mesh, sizes, seed=data.draw(st.integers(0, 99)), keep=data.draw(st.booleans()))


def layouts(name, letters, axes, data):
    """Any layout: every axis cuts one of the dims, in any order, or none."""
    cuts = {d: [] for d in letters}
    for axis in data.draw(st.permutations(axes)):
        where = data.draw(st.sampled_from([None, *letters]))
        if where:
            cuts[where].append(axis)
    return Layout(name=name, dims=tuple(Dim(d, tuple(cuts[d])) for d in letters))


PRODUCTS = [
    ("BD", "DF", "BF"),
    ("EBD", "EDF", "EBF"),
    ("BD", "DNH", "BNH"),
    ("BNH", "NHD", "BD"),
    ("BD", "BD", "BD"),
    ("BD", "DF", "FB", "BF"),
]


@on_drawn(200, st.data())
def test_any_layouts_of_a_product(data):
    """Whatever the layouts: the step is legal and its gradients are right."""
    *reads, made = data.draw(st.sampled_from(PRODUCTS))
    axes = "XYZ" if max(map(len, reads)) == 2 else "XY"
    arrays = zip("AWG", reads, strict=False)
    inputs = tuple(layouts(name, dims, axes, data) for name, dims in arrays)
    line = ForwardLine(function="", inputs=inputs, output=layouts("C", made, axes, data))
    storage = [str(layouts(f"{kind}W", reads[1], axes, data)) for kind in "dm"]
    source = forward([line], ["W"], storage)
    mesh = Mesh(tuple((axis, 2) for axis in axes))
    check(source, mesh, dict.fromkeys("BDEFHN", mesh.size), seed=1)


CHAINS = [
    (("BD", "DF", "FG"), "BG"),
    (("BD", "DF", "FD"), "BD"),
    (("BD", "DF", "FG", "GE"), "BE"),
    (("EB", "BD", "DF"), "EF"),
]


@on_drawn(100, st.data())
def test_any_layouts_of_a_chain(data):
    """Intermediates in the layouts that `pairs` chooses."""
    reads, made = data.draw(st.sampled_from(CHAINS))
    operands = tuple(layouts(name, d, "XY", data) for name, d in zip("AVWG", reads, strict=False))
    free = data.draw(st.booleans())
    result = layouts("Out", made, "XY", data)
    source = forward(pairs(Einsum(operands=operands, result=result, free=free)), ["V", "W"])
    mesh = Mesh.parse("X=2,Y=2")
    check(source, mesh, dict.fromkeys("BDEFG", mesh.size), seed=2)


def test_attention_where_the_blocks_of_heads_differ_after_a_reshape():
    sizes = {"B": 4, "D": 2, "N": 24, "H": 1, "K": 6, "M": 4, "S": 3}
    check(strategy("kv-batch-sharded").forward(), Mesh.parse("Y=2,Z=4"), sizes)


def test_partial_sums_may_be_stored_before_the_update():
    """ZeRO-1 keeps local sums; the reduce-scatter comes with the update."""
    source = strategy("zero-1").forward()
    derivation = derive(source, MESH, {})
    assert not any(step.communicates for step in derivation.backward)
    assert [s.kind for s in derivation.update if s.communicates] == [
        "reduce_scatter",
        "all_gather",
    ] * 2


def test_tied_weights_add_their_gradients_once():
    lines = [
        "In[B_X, D] * W[D_X, F] -> Tmp[B_X, F]",
        "tanh(Tmp[B_X, F]) -> Act[B_X, F]",
        "Act[B_X, F] * W[D_X, F] -> Out[B_X, D]",
    ]
    source = forward(lines, ["W"])
    derivation = derive(source, MESH, {})
    scatters = [s for s in derivation.backward if s.kind == "reduce_scatter"]
    assert len(scatters) == 1
    check(source, MESH, {"B": 4, "D": 4, "F": 3})
    constant = replace(source, constants=frozenset({"In"}))
    assert not any(s.output.name == "dIn" for s in derive(constant, MESH, {}).backward)
