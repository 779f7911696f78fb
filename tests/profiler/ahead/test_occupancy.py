"""HBM over a schedule, read from XLA's dumps: shared bytes once, held bytes always."""

from hypothesis import given
from hypothesis import strategies as st

from shardwise.profiler.ahead.occupancy import hbm_peak, read_alive, read_occupancy

ASSIGNMENT = """BufferAssignment:
allocation 0: size 512, thread-local:
 value: <1 add.1 @0> (size=512,offset=0): bf16[]{:T(256)}
allocation 1: size 100, parameter 0, shape |f32[25]| at ShapeIndex {}:
 value: <2 param @0> (size=100,offset=0): f32[25]{0}
allocation 2: size 40, output shape is |f32[10]|, maybe-live-out:
 value: <3 sum @0> (size=40,offset=0): f32[10]{0}
allocation 3: size 64, preallocated-temp:
 value: <4 a @0> (size=32,offset=0): f32[8]{0}
 value: <5 b @0> (size=32,offset=32): f32[8]{0}
 value: <6 loop{1} (phi) @0> (size=32,offset=0): f32[8]{0}
 value: <7 loop{} @0> (size=0,offset=0): (f32[8]{0})
allocation 4: size 4096, color 1, preallocated-temp:
 value: <8 vmem @1> (size=4096,offset=0): f32[1024]{0:S(1)}
"""
LIVE = """HloLiveRange (max 6):
  InstructionSequence:
    0:param
    1:a
    2:b
    3:loop
    4:sum
    5:end
  BufferLiveRange:
    param{}:0-6
    a{}:1-3
    b{}:2-2
    loop{1}:3-4
    vmem{}:1-4
    sum{}:4-6
  Live ranges at 2 (peak):
    a{}: 32 bytes (cumulative: 32 bytes)
"""


def test_shared_bytes_count_once_and_held_ones_always():
    # 140 are held; a and the loop's state lie at one place, b beside them while it lives.
    assert read_occupancy(ASSIGNMENT, LIVE) == (
        ("param", 140),
        ("a", 172),
        ("b", 204),
        ("loop", 172),
        ("end", 140),
    )


def test_what_is_alive_at_the_peak_is_told_largest_first():
    alive = read_alive(ASSIGNMENT, LIVE, "")
    assert [(b.name, b.bytes, b.kind) for b in alive] == [
        ("a", 32, "temporary"),
        ("b", 32, "temporary"),
    ]
    assert read_alive(ASSIGNMENT, "", "") == ()


def test_what_lies_in_vmem_is_no_part_of_the_peak():
    occupancy = read_occupancy(ASSIGNMENT, LIVE)
    assert hbm_peak(204 + 4096, ASSIGNMENT, occupancy) == 204
    assert hbm_peak(204 + 4096 + 9, ASSIGNMENT, occupancy) == 213  # a value that has no range
    assert hbm_peak(140, ASSIGNMENT, occupancy) == 140


def test_what_a_step_offloads_is_no_part_of_the_peak():
    """A step of Llama 3 8B with 35 GiB on the host: XLA says 36.4, of HBM it uses 24.9."""
    offloaded = ASSIGNMENT.replace("color 1", "color 5")
    assert hbm_peak(4096 + 40, offloaded, read_occupancy(offloaded, LIVE)) == 204


def test_without_dumps_there_is_nothing():
    assert read_occupancy("", "") == ()
    assert read_occupancy(ASSIGNMENT, "") == ()


@st.composite
def values(draw):
    """(first, last, offset, size) of values in a program of 12 instructions."""
    first = draw(st.integers(0, 11))
    last = draw(st.integers(first, 11))
    return first, last, draw(st.integers(0, 50)), draw(st.integers(1, 20))


@given(st.lists(values(), max_size=12))
def test_it_is_what_a_map_of_every_byte_says(found):
    lines = [f"allocation 0: size {80}, preallocated-temp:"]
    ranges = []
    for i, (first, last, offset, size) in enumerate(found):
        lines.append(f" value: <{i} v{i} @0> (size={size},offset={offset}): f32[1]{{0}}")
        ranges.append(f"    v{i}{{}}:{first}-{last}")
    sequence = [f"    {i}:i{i}" for i in range(13)]
    said = dict(read_occupancy("\n".join(lines), "\n".join([*sequence, *ranges])))
    now = 0
    for i in range(13):
        now = said.get(f"i{i}", now)
        bytes_used = {b for f, to, o, s in found if f <= i <= to for b in range(o, o + s)}
        assert now == len(bytes_used)
