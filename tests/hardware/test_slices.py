"""Slices: what is legal, how it is spelt, what Cloud names mean."""

import math
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardwise.errors import BadRequest
from shardwise.hardware.catalogue import load_chip
from shardwise.hardware.cloud_names import cloud_names
from shardwise.hardware.network import FullMesh, Torus
from shardwise.hardware.shapes import is_legal, legal_shapes
from shardwise.hardware.slices import (
    Slice,
    describe,
    domain_of,
    enough,
    parse_slice,
    read_slice,
    read_target,
    slices_of,
)

TORI = ("v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x")
SWITCHED = ("h100", "a100", "b200", "gb200", "mi300x")


@pytest.mark.parametrize(
    ("text", "canonical", "chips"),
    [
        ("v5p:16x20x28", "v5p:16x20x28", 8960),
        ("v5e:4x4", "v5e:4x4", 16),
        ("v5e:8x4", "v5e:8x4", 32),
        ("4*v5p:16x16x16", "4*v5p:16x16x16", 16384),
        ("1*v5e:2x2", "v5e:2x2", 4),
        ("h100:8", "h100:8", 8),
        ("h100:3", "h100:3", 3),
        ("128*h100:8", "128*h100:8", 1024),
        ("h100:1024", "128*h100:8", 1024),
        ("4*gb200:64", "4*gb200:64", 256),
        ("gb200:144", "2*gb200:72", 144),
        (" ironwood:4x4x8 ", "tpu7x:4x4x8", 128),
        ("H100-SXM:8", "h100:8", 8),
    ],
)
def test_spellings(text, canonical, chips):
    piece = parse_slice(text)
    assert (str(piece), piece.chips) == (canonical, chips)


# MaxText's table of names (AI-Hypercomputer/maxtext@19142c2, accelerator_to_spec_map.py).
MAXTEXT = {
    "v4-8": ("2x2x1", 4, False),
    "v4-384": ("4x4x12", 192, True),
    "v4-1024": ("8x8x8", 512, True),
    "v4-4096": ("8x16x16", 2048, True),
    "v5p-8": ("2x2x1", 4, False),
    "v5p-64": ("2x4x4", 32, False),
    "v5p-128": ("4x4x4", 64, True),
    "v5p-3712": ("4x4x116", 1856, True),
    "v5p-5760": ("12x12x20", 2880, True),
    "v5p-8960": ("8x20x28", 4480, True),
    "v5p-12288": ("16x16x24", 6144, True),
    "v5p-13824": ("12x24x24", 6912, True),
    "v5p-17920": ("16x20x28", 8960, True),
    "tpu7x-8": ("2x2x1", 8, False),
    "tpu7x-128": ("4x4x4", 128, True),
    "tpu7x-256": ("4x4x8", 256, True),
    "v5litepod-1": ("1x1", 1, False),
    "v5litepod-16": ("4x4", 16, False),
    "v6e-8": ("2x4", 8, False),
    "v6e-32": ("4x8", 32, False),
}


@pytest.mark.parametrize("name", MAXTEXT)
def test_cloud_names_mean_what_maxtext_says(name):
    shape, devices, wraps = MAXTEXT[name]
    piece = parse_slice(name)
    assert str(piece).split(":")[1] == shape
    assert piece.devices == devices
    assert all(piece.wraps) == any(piece.wraps) == wraps


def test_a_v5e_axis_wraps_iff_it_is_16():
    assert parse_slice("v5litepod-128").wraps == (False, True)
    assert parse_slice("v6e-256").wraps == (True, True)


def test_an_ambiguous_cloud_name_is_read_as_the_most_cube_like_shape_and_says_so():
    spelling = read_slice("v5p-1024")
    assert str(spelling.slice) == "v5p:8x8x8"
    (note,) = spelling.notes
    assert note == (
        "v5p-1024 counts TensorCores: 512 chips, shape 8x8x8, the most cube-like of the possible "
        "shapes (also 4x8x16, 4x4x32)"
    )
    assert str(parse_slice("2*v5p-256")) == "2*v5p:4x4x8"


def test_an_ambiguous_v7x_name_needs_a_topology():
    with pytest.raises(BadRequest, match="has 2 topologies of 256 chips") as refused:
        parse_slice("v7x-512")
    assert "'tpu7x:4x8x8', 'tpu7x:4x4x16'" in str(refused.value)


@pytest.mark.parametrize("chip_id", TORI)
def test_cloud_names_of_a_slice_lead_back_to_its_chips(chip_id):
    for piece in slices_of(load_chip(chip_id))[:6]:
        for name in cloud_names(chip_id, piece.chips):
            assert parse_slice(name).chips == piece.chips


def test_what_a_slice_is():
    assert describe(parse_slice("v5p-128")) == (
        "v5p:4x4x4 = 64 chips, 128 TensorCores, 64 JAX devices, 16 hosts, wraps xyz"
    )
    tpu7x = parse_slice("tpu7x-8")
    assert (tpu7x.chips, tpu7x.cores, tpu7x.devices, tpu7x.hosts) == (4, 8, 8, 1)
    v3 = parse_slice("v3-8")
    assert (v3.chips, v3.cores, v3.devices) == (4, 8, 8)
    assert describe(parse_slice("2*h100:8")).endswith("16 JAX devices, 2 hosts, switched")
    assert describe(parse_slice("mi300x:8")).endswith("full mesh")
    assert describe(parse_slice("h100:1")).endswith("1 host, no fast network in use")
    assert parse_slice("4*gb200:64").hosts == 64


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("v5p:4x4", ["not a slice of v5p", "2x2x1, 2x2x2, 2x2x4, 2x4x4", "'v5p:2x4x4'"]),
        ("v5p:16x20x27", ["three multiples of 4", "'v5p:16x20x28'"]),
        ("v5p:16x20x32", ["at most 8960 chips (the pod 16x20x28)", "'v5p:16x20x28'"]),
        ("v5p:1x2x2", ["nearest: 'v5p:2x2x1'"]),
        ("v5p:8960", ["nearest: 'v5p:16x20x28'"]),
        ("v5e:3x5", ["8x16 or 16x16, in either order", "nearest: 'v5e:4x4'"]),
        ("v5e:16x32", ["not a slice of v5e", "'v5e:16x16'"]),
        ("v3:2x4", ["one at most twice the other"]),
        ("h100:12", ["12 is not a multiple of 8", "'2*h100:6'", "'2*h100:8'"]),
        ("2*h100:16", ["at most 8 chips in one domain", "'4*h100:8'"]),
        ("h100:2x4", ["h100 is switched, not a torus", "'h100:8'"]),
        ("0*h100:8", ["count 0 must be 1 or more"]),
        ("-2*v5p:4x4x4", ["count -2 must be 1 or more"]),
        ("v5p:0x4x4", ["a size of 0 is not a slice"]),
        ("v5p:-4x4x4", ["COUNT*CHIP:SHAPE"]),
        ("v5p:4x4x", ["COUNT*CHIP:SHAPE", "'v5p:16x20x28'"]),
        ("3**h100:8", ["COUNT*CHIP:SHAPE"]),
        ("", ["COUNT*CHIP:SHAPE"]),
        ("v5e", ["has no shape", "'v5e:16x16'"]),
        ("v5q:4x4x4", ["unknown chip 'v5q'", "v5p"]),
        ("v5p-7", ["counts TensorCores, 2 per chip", "3.5 chips", "'v5p-8'"]),
        ("v5e-12", ["counts chips, 1 per chip", "'v5e-8'"]),
        ("99999999999*h100:8", ["make sense"]),
    ],
)
def test_refusals(text, words):
    with pytest.raises(BadRequest) as refused:
        parse_slice(text)
    for word in words:
        assert word in str(refused.value)


def test_a_bare_chip_is_a_target_but_no_slice():
    assert read_target("v5e") == load_chip("v5e")
    target = read_target("v5litepod-16")
    assert str(target.slice) == "v5e:4x4"


def test_a_slice_cannot_be_made_illegal():
    with pytest.raises(BadRequest, match="not a slice of v5e"):
        replace(parse_slice("v5e:4x4"), shape=(4, 5))
    with pytest.raises(BadRequest, match="joins 1 to 8 chips"):
        replace(parse_slice("h100:8"), shape=(16,))
    with pytest.raises(BadRequest, match="a count is 1 or more"):
        replace(parse_slice("h100:8"), count=0)


def test_slices_to_choose_from_are_listed_smallest_first():
    flat = ["1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"]
    assert [str(s) for s in slices_of(load_chip("v5e"))] == [f"v5e:{shape}" for shape in flat]
    assert [s.chips for s in slices_of(load_chip("h100"), domains=4)] == [1, 2, 4, 8, 16, 32]
    assert [s.chips for s in slices_of(load_chip("gb200"))] == [1, 2, 4, 8, 16, 32, 64, 72]
    v5p = [s.chips for s in slices_of(load_chip("v5p"))]
    assert v5p[:6] == [4, 8, 16, 32, 64, 128]
    assert v5p == sorted(set(v5p))
    assert v5p[-1] == 8960


def test_a_torus_cut_from_a_larger_one_does_not_wrap():
    assert parse_slice("trn2:4x4").wraps == (True, True)
    assert parse_slice("trn2:2x4").wraps == (False, True)
    assert parse_slice("v2:16x16").wraps == (True, True)
    assert parse_slice("v2:16x8").wraps == (True, False)


@st.composite
def slices(draw):
    chip = load_chip(draw(st.sampled_from(TORI + SWITCHED)))
    count = draw(st.integers(1, 500))
    if isinstance(chip.network, Torus):
        shape = draw(st.sampled_from(legal_shapes(chip.network)))
        turned = draw(st.permutations(shape))
        if is_legal(chip.network, tuple(turned)):
            shape = tuple(turned)
        return Slice(chip=chip, count=count, shape=shape)
    return Slice(chip=chip, count=count, shape=(draw(st.integers(1, domain_of(chip))),))


@given(slices())
def test_a_slice_reads_back_as_itself(piece):
    assert parse_slice(str(piece)) == piece


@given(slices())
def test_sizes_agree(piece):
    assert piece.chips == piece.count * math.prod(piece.shape)
    assert piece.devices == piece.chips * piece.chip.jax_devices_per_chip
    assert piece.hosts >= piece.count
    assert len(piece.wraps) == len(piece.shape)
    if not isinstance(piece.chip.network, Torus):
        assert not any(piece.wraps)


@given(st.text(max_size=12), st.sampled_from(["", "v5p:", "h100:", "2*", "v5e-"]))
@example("\x1f0", "v5p:")  # white space to `str.strip`, none to `int`
def test_any_text_is_a_slice_or_a_bad_request(text, before):
    with suppress(BadRequest):
        assert parse_slice(before + text).chips >= 1


def test_a_full_mesh_has_a_domain():
    chip = load_chip("mi300x")
    assert isinstance(chip.network, FullMesh)
    assert domain_of(chip) == 8


@pytest.mark.parametrize(
    ("chip", "chips", "said"),
    [
        ("v5e", 1, "use v5e:1x1 (1 chip) or more"),
        ("v5e", 257, "use 2*v5e:16x16 (512 chips) or more"),
        ("v5p", 40, "use v5p:4x4x4 (64 chips) or more"),
        ("h100", 8, "use h100:8 (8 chips) or more"),
        ("h100", 17, "use 4*h100:8 (32 chips) or more"),
        (
            "cpu",
            2,
            "cpu can be used up to cpu:1 (1 chip), because the catalogue has no network between",
        ),
        ("l4", 3, "use l4:4 (4 chips) or more"),
        ("v3", 5000, "v3 can be used up to v3:32x32 (1,024 chips)"),
        ("h100", 10**8, "the model needs more than 10,000,000 chips of h100: use a smaller model"),
    ],
)
def test_enough_is_a_slice_that_exists_or_says_why_there_is_none(chip, chips, said):
    text = enough(load_chip(chip), chips)
    assert text.startswith(said)
    if text.startswith("use "):
        assert parse_slice(text.split()[1]).chips >= chips


def test_enough_follows_a_network_that_the_user_gives():
    given = ("data_centre.chip_oneway=1e9", "data_centre.hop_seconds=2e-5")
    assert enough(load_chip("cpu", set_=given), 3) == "use 4*cpu:1 (4 chips) or more"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("h100x8", "h100:8"),
        ("8xH100", "h100:8"),
        ("8 x h100", "h100:8"),
        ("8*h100", "h100:8"),
        ("16*h100", "2*h100:8"),
        ("mi300x-8", "mi300x:8"),
        ("8xa100-80gb", "a100:8"),
        ("a100-40gb-8", "a100-40gb:8"),
        ("gb200x72", "gb200:72"),
        ("16xv5e", "v5e:4x4"),
        ("tpu-v5e-16", "v5e:4x4"),
        ("tpu-v5p-128", "v5p:4x4x4"),
    ],
)
def test_a_number_of_chips_without_a_colon(typed, meant):
    spelling = read_slice(typed)
    assert str(spelling.slice) == meant
    assert read_target(typed) == spelling
    assert any(typed.removeprefix("tpu-") in note for note in spelling.notes)


def test_names_with_a_number_stay_names():
    assert read_target("a100-40gb").id == "a100-40gb"
    assert read_target("rtx-4090").id == "rtx4090"
    assert str(read_slice("v5p-128").slice) == "v5p:4x4x4"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("512xv5p", "no shape; write 'v5p:8x8x8' or "),
        ("7xv5e", "no shape; write 'v5e:"),
        ("12xh100", "write '2\\*h100:6' or "),
        ("h10x8", "unknown chip 'h10x8'; did you mean .*'h100'"),
    ],
)
def test_a_number_of_chips_that_is_no_slice(typed, said):
    with pytest.raises(BadRequest, match=said):
        read_target(typed)
