"""Programs on a real compiler: both styles run, and their collectives side by side."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from shardwise.commands.shard.run import Counted, run_all, run_program, to_source
from shardwise.errors import BadRequest
from shardwise.profiler import run_source
from shardwise.sharding import Layout, Mesh
from shardwise.sharding.steps import Program, ShardStep


def step(kind, before, after, axes="", dim="", to_dim=""):
    inputs = tuple(map(Layout.parse, before.split(" * ")))
    output = Layout.parse(after)
    return ShardStep(
        kind=kind, inputs=inputs, output=output, axes=tuple(axes), dim=dim, to_dim=to_dim
    )


def program(*steps, dtype="f32", mesh="X=2,Y=2,Z=2", **sizes):
    sizes = {"I": 16, "J": 8, "K": 8} | sizes
    return Program(mesh=Mesh.parse(mesh), sizes=sizes, dtype=dtype, steps=steps)


LONG = program(
    step("all_gather", "A[I_XY, J_Z]", "A[I_Y, J_Z]", "X", "I"),
    step("einsum", "A[I_Y, J_Z] * B[J_Z, K]", "C[I_Y, K]{U_Z}"),
    step("reduce_scatter", "C[I_Y, K]{U_Z}", "C[I_Y, K_Z]", "Z", "K"),
    step("all_to_all", "C[I_Y, K_Z]", "C[I_YZ, K]", "Z", "K", "I"),
    step("slice", "C[I_YZ, K]", "C[I_YZ, K_X]", "X", "K"),
)
SUMS = program(
    step("einsum", "A[I_X, J]{U_YZ} * B[J, K]", "C[I_X, K]{U_YZ}"),
    step("all_reduce", "C[I_X, K]{U_YZ}", "C[I_X, K]{U_Z}", "Y"),
    dtype="bf16",
)
MOVED = program(  # JAX cannot see that the copies of a moved block are copies
    step("permute", "A[I_X, J]", "A[I_Y, J]", "XY"),
    step("all_gather", "A[I_Y, J]", "A[I, J]", "Y", "I"),
    step("einsum", "A[I, J] * B[J, K_Z]", "C[I, K_Z]"),
)
SCATTERED = program(
    step("einsum", "A[I, J_X] * B[J_X, K]", "C[I, K]{U_X}"),
    step("reduce_scatter", "C[I, K]{U_X}", "C[I_X, K]", "X", "I"),
    mesh="X=8",
)


@pytest.fixture(scope="module")
def runs():
    long, sums, moved, scattered = run_all([LONG, SUMS, MOVED, SCATTERED])
    return {"long": long, "sums": sums, "moved": moved, "scattered": scattered}


@pytest.mark.parametrize("name", ["long", "sums", "moved", "scattered"])
def test_both_programs_equal_the_dense_product_and_its_gradient(runs, name):
    for style, run in runs[name].programs.items():
        assert run.equal
        gradient = None if style == "explicit" else 0.0
        assert (run.error, run.gradient_error) == (0.0, gradient)


def test_three_styles_run_where_explicit_has_a_word_for_all(runs):
    styles = {name: tuple(run.programs) for name, run in runs.items()}
    three = ("shard_map", "jit", "explicit")
    assert styles == {"long": three, "sums": three[:2], "moved": three, "scattered": three}
    assert any(note.startswith("explicit: not run") for note in runs["sums"].notes)


def test_what_explicit_mode_says_to_an_ambiguous_product(runs):
    """Dims that are cut and added up may be reduced or left; a free product is typed by itself."""
    assert runs["scattered"].ambiguous.startswith("ShardingTypeError: ")
    assert "ambiguous how the output should be sharded" in runs["scattered"].ambiguous
    assert runs["scattered"].notes[-1].endswith(runs["scattered"].ambiguous)
    assert runs["moved"].ambiguous == ""


@pytest.mark.parametrize("name", ["long", "sums", "moved", "scattered"])
def test_the_shard_map_program_has_the_predicted_collectives(runs, name):
    assert runs[name].as_predicted
    for row in runs[name].collectives:
        assert row.predicted == row.shard_map


def test_rows_and_notes_name_what_xla_chose_instead(runs):
    rows = {(r.kind, r.axes): r for r in runs["scattered"].collectives}
    assert rows["reduce_scatter", ("X",)].predicted == Counted(count=1, bytes=512.0)
    assert rows["all_reduce", ("X",)].jit == Counted(count=1, bytes=512.0)
    note, _ = runs["scattered"].notes
    assert "an all-reduce and a slice replace the reduce-scatter over X" in note


def test_widened_floats_are_shown_at_the_programs_dtype(runs):
    rows = {(r.kind, r.axes): r for r in runs["sums"].collectives}
    # C[I_X, K] is [8, 8] in bf16; the CPU sends float32.
    assert rows["all_reduce", ("Y",)].shard_map == Counted(count=1, bytes=128.0)
    assert [c.bytes for c in runs["sums"].programs["shard_map"].compiled] == [256.0]
    notes = " ".join(runs["sums"].notes)
    assert "bytes are shown at bf16" in notes
    assert "jit: cannot express the partial sums" in notes


def test_sources_run_as_they_stand():
    sources = [to_source(p, f) for p in (LONG, SUMS) for f in ("jax", "explicit")]
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(run_source, sources))
    assert ["shard_map: largest error 0" in s for s in said] == [True, False, True, False]
    assert ["jit: largest error 0" in s for s in said] == [True, False, True, False]
    assert ["explicit: largest error 0" in s for s in said] == [False, True, False, True]


def test_too_large_programs_are_refused():
    gather = step("all_gather", "A[I_X, J]", "A[I, J]", "X", "I")
    with pytest.raises(BadRequest, match="has 4,096 devices; running takes at most 64"):
        run_program(program(gather, mesh="X=4096", I=4096))
    with pytest.raises(BadRequest, match="unknown program form 'torch'"):
        to_source(LONG, "torch")


def test_large_programs_run_in_small():
    steps = (
        step("all_gather", "A[I, J_X]", "A[I, J]", "X", "J"),
        step("einsum", "A[I, J] * B[J, K_XY]", "C[I, K_XY]"),
    )
    run = run_program(program(*steps, mesh="X=2,Y=4", I=2**15, J=2**15, K=2**16), gradients=False)
    assert run.run_sizes == {"I": 64, "J": 64, "K": 64}
    assert run.as_predicted
    assert run.programs["jit"].equal
    assert run.collectives[0].shard_map == Counted(count=1, bytes=4 * 2.0**30)
    assert run.notes[0] == "compiled at the sizes given; values compared at I=64, J=64, K=64"
