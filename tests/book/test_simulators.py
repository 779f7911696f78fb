"""The machines of the book: what they compute is right, and what they take is the closed form."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import strategies as st
from tests.apps.commands import answer, refused, run
from tests.drawn import on_drawn
from tests.tiers import spread

from shardwise.book import figure, figure_settings
from shardwise.book.figure_index import FIGURES
from shardwise.book.rules.serving import step_seconds
from shardwise.book.simulators import batching, collective, hbm, pipeline, systolic
from shardwise.book.simulators.copies import copied_seconds, run_copies
from shardwise.book.simulators.systolic import array_cycles, run_array
from shardwise.errors import BadRequest

SIMULATORS = [name for name, entry in FIGURES.items() if entry.steps]

# The systolic array -------------------------------------------------------------------------------

dims = st.integers(1, 13)


@on_drawn(400, st.integers(1, 6), dims, dims, dims, st.integers(0, 99))
def test_the_array_computes_the_product(side, rows, inner, columns, seed):
    """Every cell that has work works, once per product; the cycles are the closed form's."""
    draw = np.random.default_rng(seed)
    x, w = draw.integers(-9, 10, (rows, inner)), draw.integers(-9, 10, (inner, columns))
    run = run_array(x.astype(float), w.astype(float), side)
    assert np.array_equal(run.product, x @ w)
    assert run.busy.sum() == rows * inner * columns
    tiles = math.ceil(inner / side) * math.ceil(columns / side)
    assert run.cycles == array_cycles(rows, tiles, side)


def test_the_cadence_of_the_book():
    """bf16[8, 128] @ bf16[128, 128] every 8 cycles once the weights are there (ch. 2.1), and 128
    cycles for other weights, so that 128 rows leave no bubble between tiles."""
    one = systolic(side=128, rows=16, inner=128, columns=128).readings
    assert one["cycles_per_8_rows"] == 8
    assert one["bubble_cycles"] == 128 + 127
    few = systolic(side=32, rows=8, inner=64, columns=32).readings
    many = systolic(side=32, rows=32, inner=64, columns=32).readings
    assert (few["steady_utilisation"], many["steady_utilisation"]) == (0.25, 1)


@pytest.mark.parametrize(("inner", "columns", "share"), [(64, 128, 0.5), (64, 64, 0.25)])
def test_dims_below_the_side_are_wasted(inner, columns, share):
    """Half of one dim: half of the array."""
    found = systolic(side=128, rows=128, inner=inner, columns=columns).readings
    assert found["steady_utilisation"] == share


@pytest.mark.slow
def test_an_array_of_256_needs_twice_the_dims():
    """What fills an array of 128 fills a quarter of that of v6e, and a larger one makes 4 times the
    FLOPs per cycle (app. B)."""
    wide = systolic(side=256, rows=64, inner=128, columns=128)
    assert wide.readings["steady_utilisation"] == 0.25 * 64 / 256
    assert wide.notes[0] == "inner is padded from 128 to whole tiles of 256: 50% is work"


def test_many_rows_hide_the_bubble():
    short, long = (systolic(side=16, rows=n, inner=16, columns=16).readings for n in (16, 1600))
    assert short["utilisation"] < 0.3
    assert long["utilisation"] > 0.97


def test_weights_and_activations_come_in_skewed():
    """Column j starts a cycle after column j - 1, row i after row i - 1."""
    frames = systolic(side=3, rows=3, inner=3, columns=3).frames
    first = {}
    for frame in frames:
        for cell in frame.cells:
            if cell.kind == "working":
                first.setdefault((cell.x, cell.y), frame.at)
    assert first == {(x, y): 3 + x + y for x in range(3) for y in range(3)}
    out = [(f.at, c.x) for f in frames for c in f.cells if c.kind == "result"]
    assert out[:3] == [(5, 0), (6, 0), (6, 1)]


# Copies -------------------------------------------------------------------------------------------

seconds = st.floats(0.0, 10.0, allow_subnormal=False)


@on_drawn(800, seconds, seconds, seconds, st.integers(1, 40), st.integers(1, 4))
def test_copies_are_in_order_and_within_bounds(load, compute, store, chunks, buffers):
    copies = run_copies(load, compute, store, chunks, buffers)
    total = max(c.end for c in copies)
    bounds = max(load + store, compute), load + compute + store
    assert bounds[0] * (1 - 1e-9) <= total <= bounds[1] * (1 + 1e-9)
    at = {(c.row, c.chunk): c for c in copies}
    tiny = 1e-9
    for n in range(chunks):
        assert at["load", n].end <= at["compute", n].start + tiny
        assert at["compute", n].end <= at["store", n].start + tiny
        if n >= buffers:
            assert at["compute", n - buffers].end <= at["load", n].start + tiny
    engine = sorted((c for c in copies if c.row != "compute"), key=lambda c: (c.start, c.end))
    assert all(a.end <= b.start + tiny for a, b in pairwise(engine))


@on_drawn(400, seconds, seconds, seconds)
def test_time_tends_to_the_larger(load, compute, store):
    """With two buffers one chunk of the smaller over max(load + store, compute); with one buffer
    load and compute one after the other."""
    smaller, larger = sorted((load + store, compute))
    for chunks in (16, 512):
        over = copied_seconds(load, compute, store, chunks, 2) - larger
        assert over <= smaller / chunks + 1e-9
    assert copied_seconds(load, compute, store, chunks, 1) >= load + compute - 1e-9


def test_hbm_uses_the_books_constants():
    found = hbm(read=8.2e11, flops=1.97e14, chunks=1000).readings
    assert found["load_seconds"] == pytest.approx(1)
    assert found["compute_seconds"] == pytest.approx(1)
    assert found["seconds"] == pytest.approx(1, rel=2e-3)
    assert hbm(buffers=1).readings["seconds"] == pytest.approx(hbm().readings["sum_seconds"])


# Collectives --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "network", "shape", "bytes"),
    [
        ("all_gather", "one_way", "8", 7 / 8),
        ("all_gather", "ring", "8", 7 / 16),
        ("all_gather", "line", "8", 7 / 8),
        ("reduce_scatter", "ring", "8", 7 / 16),
        ("all_reduce", "ring", "8", 7 / 8),
        ("all_to_all", "ring", "8", 1 / 8),
        ("all_gather", "ring", "4x4", 15 / 64),
        ("all_reduce", "sharp", "8", 1.0),
        ("all_gather", "full_mesh", "8", 1 / 8),
    ],
)
def test_the_busiest_link_is_the_closed_form(kind, network, shape, bytes):
    """Shares of V: (N-1)/N one way, half of that both ways, a quarter of a gather's V for an
    all-to-all, all links of a torus at once."""
    found = collective(kind=kind, network=network, shape=shape, bytes=1e9).readings
    assert found["busiest_link_bytes"] == pytest.approx(bytes * 1e9)


def test_a_switch_that_adds_up_is_a_place():
    """Every move is between two places; half of an all-reduce's go up to the switch."""
    found = collective(kind="all_reduce", network="sharp", shape="4")
    kinds = [cell.kind for cell in found.places]
    assert kinds == ["device"] * 4 + ["switch"] * 4
    ends = [(kinds[m.source], kinds[m.target]) for f in found.frames for m in f.moves]
    assert set(ends) == {("device", "switch"), ("switch", "device")}


def test_frames_hold_every_transfer():
    found = collective(kind="all_gather", network="tree", shape="4x2")
    moved = sum(move.bytes for frame in found.frames for move in frame.moves)
    assert moved == pytest.approx(7 * 8e6)
    assert len(found.frames) == found.readings["rounds"] + 1
    assert {(cell.x, cell.y) for cell in found.places} == {(x, y) for x in (0, 1) for y in range(4)}


# Pipelines and batches ----------------------------------------------------------------------------


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (4, 8), (8, 32)])
def test_the_bubble_of_the_book(stages, microbatches):
    found = pipeline(stages=stages, microbatches=microbatches).readings
    assert found["bubble"] == pytest.approx((stages - 1) / (microbatches + stages - 1))
    assert found["plain_bubble"] == pytest.approx(found["bubble"])


def test_gradients_are_reduced_at_the_end():
    """The GPU chapter's figure: the bubble and then the reduction of data parallelism."""
    found = pipeline(stages=2, microbatches=2, reduction=3.0)
    assert found.readings["seconds"] == 9 + 3
    assert sorted(bar.x for bar in found.bars if bar.kind == "reduce") == [7.0, 9.0]


def test_the_split_backward_pass_idles_less():
    assert pipeline(schedule="zb_h1").readings["bubble"] < pipeline().readings["bubble"]


@pytest.mark.parametrize("policy", ["interleaved", "chunked", "static"])
@pytest.mark.parametrize("rate", [0.0, 20.0])
def test_no_slot_holds_two_requests(policy, rate):
    found = batching(policy=policy, rate=rate, requests=20, slots=3)
    by_slot: dict[float, list] = {}
    for bar in sorted(found.bars, key=lambda bar: bar.x):
        by_slot.setdefault(bar.y, []).append(bar)
    assert set(by_slot) <= set(range(3))
    for bars in by_slot.values():
        assert all(a.x + a.width <= b.x + 1e-12 for a, b in pairwise(bars))
    names = {bar.text for bar in found.bars}
    assert names == {str(n) for n in range(20)}
    for frame in found.frames:
        at = [cell.y for cell in frame.cells if cell.kind != "queue"]
        assert len(at) == len(set(at)) <= 3


def test_a_step_takes_what_the_rule_says():
    """One slot, one request: its decode steps are those of ch. 7.1.7 at each context."""
    found = batching(slots=1, requests=1, prompt=100, answer=8)
    decoding = next(bar for bar in found.bars if bar.kind == "decode")
    steps = int(found.readings["steps"]) - 1
    want = sum(
        float(
            step_seconds(
                1,
                param_bytes=70e9,
                kv_bytes=163840 * (100 + n),
                bandwidth=16 * 8.2e11,
                params=70e9,
                peak=16 * 1.97e14,
            )
        )
        for n in range(steps)
    )
    assert decoding.width == pytest.approx(want)


def test_continuous_batches_beat_static_ones():
    """Answers of unequal length leave slots idle that others could have."""
    static, chunked = (
        batching(policy=policy, requests=24, prompt=16, answer=64).readings
        for policy in ("static", "chunked")
    )
    assert chunked["tokens_per_second"] > 1.1 * static["tokens_per_second"]


# As figures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIMULATORS)
def test_the_document_is_plain_and_the_page_fits(name):
    found = answer("book", "figure", name)["result"]
    assert found["kind"] == "simulation"
    assert json.loads(json.dumps(found)) == found
    assert len(found["frames"]) > 1
    assert {"at", "label", "cells", "moves"} == set(found["frames"][0])
    for frame in found["frames"]:
        for move in frame["moves"]:
            assert max(move["source"], move["target"]) < len(found["places"])
    assert found["settings"].keys() == figure_settings(name).keys()


@pytest.mark.parametrize("name", spread(SIMULATORS, quick=[0, 2], slow=3))
def test_pages_pictures_and_tables(capsys, tmp_path, name):
    files = [tmp_path / f"a.{ending}" for ending in ("html", "png", "csv")]
    flags = [w for flag, f in zip(("--html", "--plot", "--csv"), files, strict=True)
             for w in (flag, f)]  # fmt: skip
    code, out, err = run(capsys, "book", "figure", name, *flags)
    assert code == 0, err
    assert len(out.splitlines()) <= 32
    assert max(map(len, out.splitlines())) <= 100
    page = files[0].read_text()
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert files[1].stat().st_size > 5000
    assert len(files[2].read_text().splitlines()) > 2
    code, out, _ = run(capsys, "book", "figure", name, "--detail")
    assert code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("systolic", "--set", "side=0"), "side is 0; it is a whole number from 1 to 256"),
        (("systolic", "--set", "rows=2.5"), "rows is 2.5; it is a whole number"),
        (("systolic", "--set", "side=256", "--set", "rows=4096", "--set", "inner=4096"), "at most"),
        (("hbm", "--set", "chunks=0"), "chunks is 0"),
        (("hbm", "--set", "level=disk"), "unknown memory level 'disk'"),
        (("hbm", "--set", "read=-1"), "read is -1; it is a finite number of at least 0"),
        (("collective", "--set", "network=star"), "unknown network 'star'"),
        (("collective", "--set", "kind=gather"), "unknown collective 'gather'"),
        (("collective", "--set", "shape=4by4"), "shape is '4by4'; it is sizes with x between"),
        (("collective", "--set", "shape=512x2"), "shape is '512x2'"),
        (("collective", "--set", "shape=2x2x2x2"), "a torus has up to 3 axes"),
        (("collective", "--set", "network=tree"), "a tree has nodes x devices"),
        (("pipeline", "--set", "schedule=2f2b"), "unknown pipeline schedule '2f2b'"),
        (("pipeline", "--set", "stages=100"), "stages is 100"),
        (("batching", "--set", "policy=none"), "unknown policy 'none'"),
        (("batching", "--set", "requests=500", "--set", "answer=500"), "at most 40,000"),
        (("fig.8.pareto", "--html", "a.html"), "--html shows frames, and fig.8.pareto has none"),
    ],
)
def test_refused(capsys, monkeypatch, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, ("book", "figure", *words))


def test_a_setting_out_of_range_is_refused_in_python():
    with pytest.raises(BadRequest, match="unknown setting of hbm 'chunk'; did you mean 'chunks'"):
        figure("hbm", {"chunk": 4})


def test_the_first_collective_of_a_product_as_frames():
    """`shard --animate - --json` has what the terminal shows."""
    words = ("shard", "A[I_X, J] -> A[I, J]", "--dims", "I=64,J=64", "--mesh", "X=4")
    found = answer(*words, "--on", "v5e:2x2", "--animate", "-")["result"]["animation"]
    assert found["devices"] == ["0,0", "0,1", "1,0", "1,1"]
    assert len(found["busiest"]) == len(found["rounds"]) + 1
    assert all(move["bytes"] > 0 for moves in found["rounds"] for move in moves)
