"""The proof of the closed forms: exact == counted >= bound, for every kind, size and topology.

`roofline.collectives` is given links, the executor the devices and the cables behind them; neither
reads the other. The bound comes from cuts alone.
"""

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.sharding.bounds import lower_bound

from shardwise.hardware import AxisLinks, Part, Slice, load_chip, parse_slice, place
from shardwise.roofline.collectives import collective_seconds
from shardwise.sharding.simulate import fabric_of, simulate
from shardwise.sharding.simulate.fabric import AxisPiece, Fabric, Physical, Unit, torus
from shardwise.sharding.simulate.schedule import grain

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute")
LINK, HOP = 2.0, 3.0
UNUSED = Part(size=1, oneway=0.0, ring=False, hop_seconds=0.0, stride=1)
kinds = st.sampled_from(KINDS)


def volume(kind, fabric, elements):
    """V of `work.Collective` for blocks of that many int32."""
    n = fabric.size
    return 4 * elements * {"all_to_all": n * n, "permute": 1}.get(kind, n)


def prove(kind, fabric, links, *, both_ways=True, latency=True):
    """exact == counted >= bound; the form's own bound in between."""
    elements = grain(fabric)
    trace = simulate(kind, fabric, elements)
    size = volume(kind, fabric, elements)
    form = collective_seconds(kind, size, links, both_ways=both_ways)
    assert trace.bandwidth_seconds == pytest.approx(form.bandwidth, rel=1e-12)
    if latency:
        assert trace.latency_seconds == pytest.approx(form.latency, rel=1e-12)
    least = lower_bound(kind, fabric, size)
    assert form.bandwidth >= least * (1 - 1e-12)
    best = collective_seconds(kind, size, links, mode="bound", both_ways=both_ways).bandwidth
    assert form.bandwidth >= best * (1 - 1e-12)
    rough = collective_seconds(kind, size, links, mode="asymptotic", both_ways=both_ways).bandwidth
    assert rough >= form.bandwidth * (1 - 1e-12)
    return trace, form, least


def axis_links(parts, kind="torus", **more):
    """One mesh axis over parts of the fast network alone, a device per chip."""
    given_ = {"within": UNUSED, "outer": UNUSED, "devices_per_chip": 1} | more
    return AxisLinks(
        size=math.prod(p.size for p in parts),
        parts=tuple(parts),
        kind=kind,
        sharp=False,
        ramp_bytes=0.0,
        **given_,
    )


@st.composite
def split_tori(draw):
    """(sizes, wraps, pieces): a torus whose axes are cut in pieces, some of them in the group."""
    sizes, wraps, pieces = [], [], []
    room = 24
    for axis in "xyz"[: draw(st.integers(1, 3))]:
        stride = 1
        for _ in range(draw(st.integers(1, 3))):
            size = draw(st.integers(1, min(9 if stride == 1 else 4, room)))
            room //= size
            if size > 1 and draw(st.integers(0, 3)):
                pieces.append((axis, size, stride))
            stride *= size
        sizes.append(stride)
        wraps.append(stride > 2 and draw(st.booleans()))
    return tuple(sizes), tuple(wraps), tuple(pieces)


def torus_links(sizes, wraps, pieces):
    """Each piece as a mesh axis of its own: the closed forms have to join and to share links."""
    links = []
    for axis, size, stride in pieces:
        parts = [replace(UNUSED, oneway=LINK, hop_seconds=HOP) for _ in sizes]
        at = "xyz".index(axis)
        parts[at] = Part(
            size=size,
            oneway=LINK / stride,
            ring=wraps[at] and size * stride == sizes[at],
            hop_seconds=HOP * stride,
            stride=stride,
        )
        links.append(axis_links(parts))
    return links


def with_rates(fabric):
    axes = tuple(replace(axis, rate=LINK, hop_seconds=HOP) for axis in fabric.axes)
    return replace(fabric, axes=axes)


class TestTori:
    @given(split_tori(), kinds, st.randoms())
    @settings(max_examples=60)
    @example(((8,), (True,), (("x", 4, 2),)), "all_gather", None)
    @example(((16,), (False,), (("x", 2, 1), ("x", 4, 4))), "all_gather", None)
    @example(((8, 3), (True, False), (("x", 2, 1), ("x", 2, 4), ("y", 3, 1))), "all_gather", None)
    def test_exact_is_what_is_counted(self, case, kind, random):
        sizes, wraps, pieces = case
        fabric = with_rates(
            torus(
                sizes,
                wraps=wraps,
                group=[AxisPiece(axis=a, size=n, stride=s) for a, n, s in pieces],
            )
        )
        links = torus_links(*case)
        if random is not None:
            random.shuffle(links)
        prove(kind, fabric, links)

    @given(split_tori(), kinds)
    @settings(max_examples=30)
    def test_one_way(self, case, kind):
        sizes, wraps, pieces = case
        group = [AxisPiece(axis=a, size=n, stride=s) for a, n, s in pieces]
        fabric = with_rates(torus(sizes, wraps=wraps, group=group, one_way=True))
        prove(kind, fabric, torus_links(*case), both_ways=False)

    @pytest.mark.slow
    @given(
        st.lists(st.tuples(st.integers(2, 6), st.booleans()), min_size=1, max_size=3),
        st.sampled_from(("all_gather", "reduce_scatter", "all_to_all")),
    )
    @settings(max_examples=20)
    def test_no_algorithm_is_faster_on_whole_axes(self, axes, kind):
        """Unequal sides and rings beside lines included: the bound from cuts is reached."""
        while math.prod(n for n, _ in axes) > 40:
            axes = axes[:-1]
        sizes = tuple(n for n, _ in axes)
        wraps = tuple(w and n > 2 for n, w in axes)
        pieces = tuple((a, n, 1) for a, n in zip("xyz", sizes, strict=False))
        fabric = with_rates(torus(sizes, wraps=wraps))
        _, form, least = prove(kind, fabric, torus_links(sizes, wraps, pieces))
        if kind == "all_to_all" and any(w for w in wraps):
            return  # a ring's bound counts hops over links, which no cut does for odd sizes
        assert form.bandwidth == pytest.approx(least)

    @given(st.lists(st.tuples(st.integers(2, 5), st.booleans()), min_size=1, max_size=3))
    @settings(max_examples=15)
    def test_the_bound_of_an_all_reduce_is_reached_on_one_line(self, axes):
        """Pipelined, the two halves of an all-reduce share the links: V each way on a line."""
        while math.prod(n for n, _ in axes) > 30:
            axes = axes[:-1]
        sizes, wraps = [n for n, _ in axes], [w and n > 2 for n, w in axes]
        pieces = tuple((a, n, 1) for a, n in zip("xyz", sizes, strict=False))
        fabric = with_rates(torus(sizes, wraps=wraps))
        links = torus_links(sizes, wraps, pieces)
        trace, _, least = prove("all_reduce", fabric, links)
        size = volume("all_reduce", fabric, grain(fabric))
        best = collective_seconds("all_reduce", size, links, mode="bound").bandwidth
        assert best == pytest.approx(least)
        pipelined = trace.busiest[1] / LINK
        assert pipelined >= best * (1 - 1e-12)
        if len(sizes) == 1:
            assert pipelined == pytest.approx(best)


class TestDomains:
    @given(st.sampled_from(("switch", "full_mesh")), st.integers(2, 12), kinds)
    @settings(max_examples=60)
    def test_one_domain(self, name, n, kind):
        axis = Physical(name="domain", kind=name, size=n, rate=LINK, hop_seconds=HOP)
        fabric = Fabric(axes=(axis,), group=(AxisPiece(axis="domain", size=n),))
        part = Part(size=n, oneway=LINK, ring=False, hop_seconds=HOP, stride=1)
        links = axis_links([part], kind="switched" if name == "switch" else "full_mesh")
        _, form, least = prove(kind, fabric, [links])
        if kind != "permute":
            assert form.bandwidth == pytest.approx(least)

    @pytest.mark.parametrize("n", [2, 3, 5, 8])
    def test_switches_that_reduce(self, n):
        axis = Physical(
            name="domain", kind="switch", size=n, rate=LINK, hop_seconds=HOP, reduces=True
        )
        fabric = Fabric(axes=(axis,), group=(AxisPiece(axis="domain", size=n),))
        part = Part(size=n, oneway=LINK, ring=False, hop_seconds=HOP, stride=1)
        links = replace(axis_links([part], kind="switched"), sharp=True)
        _, form, least = prove("all_reduce", fabric, [links])
        assert form.bandwidth == pytest.approx(least)


@st.composite
def placed(draw):
    """A mesh that `hardware.place` laid on a slice: split axes, networks, chips of two devices."""
    text = draw(
        st.sampled_from(
            (
                *("v5e:4x4", "v5e:2x4", "2*v5e:2x2", "3*v5e:2x2", "v4:4x4x4", "v5p:2x2x4"),
                *("tpu7x:2x2x1", "2*tpu7x:2x2x1", "tpu7x:2x2x4", "trn2:4x4", "trn2:2x4"),
                *("h100:8", "3*h100:4", "4*h100:8", "mi300x:8", "2*mi300x:4", "mi250x:8"),
            )
        )
    )
    piece = parse_slice(text, _chip)
    degrees = {"a": 1, "b": 1, "c": 1}
    left, prime = piece.devices, 2
    while left > 1:
        while left % prime == 0:
            degrees[draw(st.sampled_from(sorted(degrees)))] *= prime
            left //= prime
        prime += 1
    finish = draw(st.booleans())
    names = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
    return text, degrees, finish, names


def _chip(name):
    """A chip of the catalogue; where it lacks the rate between the devices of a chip, some rate."""
    chip = load_chip(name)
    return replace(chip, device_link_oneway=chip.device_link_oneway or 1e12)


class TestPlacedMeshes:
    @given(placed(), kinds)
    @settings(max_examples=40)
    def test_exact_is_what_is_counted(self, case, kind):
        text, degrees, finish, names = case
        here = place(parse_slice(text, _chip), degrees, finish=finish)
        fabric = fabric_of(here, names)
        links = [replace(here.axes[name], sharp=False) for name in names]
        fabric = replace(fabric, axes=tuple(replace(axis, reduces=False) for axis in fabric.axes))
        if fabric.size > 32 or len(fabric.devices) > 64:
            return
        prove(kind, fabric, links)

    @pytest.mark.parametrize("nodes", [2, 4, 6, 8])
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_tree_of_leaves_is_bound_by_its_nics(self, kind, nodes):
        """A spine that does not taper never counts, as the catalogue's does not."""
        chip = load_chip("h100")
        levels = (
            chip.network.levels[0],
            replace(
                chip.network.levels[1], chips=16, unit_oneway=16 * chip.data_centre.chip_oneway
            ),
        )
        chip = replace(chip, network=replace(chip.network, levels=levels, sharp=False))
        here = place(Slice(chip=chip, count=nodes, shape=(2,)), {"x": nodes * 2})
        axes = tuple(
            replace(axis, units=(Unit(name="leaf", networks=2, rate=8 * 2 * 50e9),))
            if axis.kind == "tree"
            else axis
            for axis in fabric_of(here, ["x"]).axes
        )
        fabric = replace(fabric_of(here, ["x"]), axes=axes)
        # A doubling per level: as many rounds as over all nodes at once if their number is 2^k.
        prove(kind, fabric, [here.axes["x"]], latency=nodes & (nodes - 1) == 0)


class TestLimits:
    """(N-1)/N, half-blocks and latency: what the asymptotic forms drop, and that it vanishes."""

    @pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"])
    @pytest.mark.parametrize("closed", [True, False])
    @pytest.mark.parametrize("both_ways", [True, False])
    def test_exact_over_asymptotic_goes_to_one(self, kind, closed, both_ways):
        ratios = []
        for n in (3, 4, 16, 17, 256, 257, 4096):
            part = Part(size=n, oneway=LINK, ring=closed, hop_seconds=HOP, stride=1)
            exact, rough = (
                collective_seconds(
                    kind, 1e9, [axis_links([part])], mode=mode, both_ways=both_ways
                ).bandwidth
                for mode in ("exact", "asymptotic")
            )
            ratios.append(exact / rough)
        assert all(r <= 1 + 1e-12 for r in ratios)
        assert ratios[-1] == pytest.approx(1, rel=1e-3)
        if kind == "all_to_all" and (both_ways or not closed):
            # floor(n^2/4) / (n^2/4): nothing is dropped at even sizes.
            assert ratios[1] == pytest.approx(1)
            assert ratios[0] == pytest.approx(8 / 9)
        else:
            assert ratios[1] == pytest.approx(3 / 4)

    @given(st.integers(2, 40), st.booleans())
    def test_hops(self, n, closed):
        part = Part(size=n, oneway=LINK, ring=closed, hop_seconds=HOP, stride=1)
        latency = collective_seconds("all_gather", 1.0, [axis_links([part])]).latency
        assert latency == (n // 2 if closed else n - 1) * HOP
