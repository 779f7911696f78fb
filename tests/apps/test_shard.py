"""`shardwise shard`: one array, products, chains and reshards; documents, tables and refusals."""

import csv
import json

import pytest
from tests.apps.commands import over

import shardwise as sw
from shardwise.apps.cli.shard import shard
from shardwise.commands.shard.command import Sharded, ShardedArray
from shardwise.commands.shard.result import TimedStrategy
from shardwise.errors import BadRequest, NoFeasiblePlan

QUIZ = ("A[I_XY, J]", "--dims", "I=128,J=2048", "--mesh", "X=2,Y=8,Z=2", "--dtype", "int8")


def run(*args):
    shard.main(args=list(args), standalone_mode=False)


def result_of(capsys, *args):
    run(*args, "--json")
    return json.loads(capsys.readouterr().out)["result"]


def test_the_books_pop_quiz(capsys):
    result = result_of(capsys, *QUIZ)
    assert result["local_shapes"] == {"A": [8, 2048]}
    assert result["bytes_per_device"] == 16384
    assert result["bytes_total"] == 512 * 1024
    assert (result["blocks"], result["copies"]) == (16, 2)
    assert result["spec"] == [["X", "Y"], None]
    assert len(result["devices"]) == 32
    assert result["devices"][-1] == {"at": [1, 7, 1], "block": [[120, 128], [0, 2048]]}


def test_the_tables(capsys):
    run("C[Iₓ, K]{U_Y}", "--dims", "I=8,K=4", "--mesh", "X=2,Y=2")
    assert capsys.readouterr().out == (
        "C[I_X, K]{U_Y} on mesh X=2,Y=2 (4 devices)\n"
        "                     value\n"
        "  -----------------  ----------\n"
        "  global shape       bf16[8, 4]\n"
        "  local shape        bf16[4, 4]\n"
        "  blocks x copies    2 x 1\n"
        "  bytes per device   32 B\n"
        "  bytes in total     128 B\n"
        "  partial sums over  Y\n"
        "\n"
        "Who holds what\n"
        "  X  Y    I    K\n"
        "  -  -  ---  ---\n"
        "  0  0  0:4  0:4\n"
        "  0  1  0:4  0:4\n"
        "  1  0  4:8  0:4\n"
        "  1  1  4:8  0:4\n"
        "  more: --detail  --top N\n"
    )


def test_a_long_table_is_cut_and_says_so(capsys):
    run("A[I_X]", "--dims", "I=64", "--mesh", "X=64")
    assert "and 52 more devices (--detail, --json or --csv" in capsys.readouterr().out


@pytest.mark.slow
def test_a_huge_mesh_lists_the_first_devices(capsys):
    run("A[I_X]", "--dims", "I=1Mi", "--mesh", "X=1048576,Y=1000000", "--json")
    doc = json.loads(capsys.readouterr().out)
    assert len(doc["result"]["devices"]) == 65_536
    assert doc["notes"] == ["the first 65,536 of 1,048,576,000,000 devices are listed"]


def test_csv(capsys, tmp_path):
    path = tmp_path / "blocks.csv"
    run(*QUIZ, "--csv", str(path))
    rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    assert rows[0] == ["X", "Y", "Z", "I", "J"]
    assert rows[-1] == ["1", "7", "1", "120:128", "0:2048"]
    assert len(rows) == 33


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("A[B_X, D_X]", "--dims", "B=8,D=8", "--mesh", "X=2"),
            "mesh axis 'X' cuts both B and D in 'A.B_X, D_X.'; an axis may cut one dimension",
        ),
        (
            ("A[I_X, J] * B[J, K]", "--dims", "I=8", "--mesh", "X=2"),
            r"dim 'J' of 'A\[I_X, J\]' has no size; give every dim one",
        ),
        ((*QUIZ, "--on", "v5e:4x4"), "--on does nothing for a single array; give a product"),
        ((*QUIZ, "--max-hbm", "1GB"), "--max-hbm does nothing for a single array"),
        ((*QUIZ, "--store", "dA[I]"), "--store and --no-parameter belong to --backward"),
        (
            ("A[I_X]", "--dims", "I=9", "--mesh", "X=2"),
            "dim 'I' of size 9 .* blocks must be equal, so pad to 10",
        ),
        (
            ("A[I_tensr]", "--dims", "I=8", "--mesh", "tensor=2"),
            "unknown mesh axis 'tensr'; did you mean 'tensor'",
        ),
        (("A[I]", "--dims", "I=8,J=4", "--mesh", "X=2"), "unknown dim 'J'; known: I"),
        (("A[I]", "--dims", "I=8", "--mesh", "X=0"), "mesh axis 'X' has degree 0"),
        (over(QUIZ, "--dtype", "int9"), "unknown dtype 'int9'; did you mean"),
    ],
)
def test_refusals(args, message):
    with pytest.raises(BadRequest, match=message) as caught:
        run(*args)
    assert caught.value.exit_code == 2


FSDP_TP = "A[I_X, J] * B[J_X, K_Y] -> C[I_X, K_Y]"
SQUARE = ("--dims", "I=8192,J=8192,K=32768", "--mesh", "X=4,Y=4")
SMALL = ("--dims", "I=8,J=8,K=8", "--mesh", "X=4")


def test_a_product_by_bytes(capsys):
    result = result_of(capsys, FSDP_TP, *SQUARE)
    assert result["steps"] == [
        "B[J, K_Y] = AllGather_X(B[J_X, K_Y])",
        "C[I_X, K_Y] = A[I_X, J] * B[J, K_Y]",
    ]
    assert result["local_shapes"] == {"A": [2048, 8192], "B": [2048, 8192], "C": [2048, 8192]}
    assert result["collectives"] == [
        {
            "step": 1,
            "kind": "all_gather",
            "axes": ["X"],
            "array": "B",
            "dim": "J",
            "to_dim": None,
            "bytes": 8192 * 8192 * 2,
        }
    ]
    assert result["ranked_by"] == "bytes on the wire"
    sent = [s["wire_bytes_per_device"] for s in result["strategies"]]
    assert sent == sorted(sent)
    assert sent[0] == 0.75 * 8192 * 8192 * 2
    assert "seconds" not in result["strategies"][0]
    assert "--on" in result["why"][0]


def test_a_product_by_time(capsys):
    result = result_of(capsys, FSDP_TP, *SQUARE, "--on", "v5e:4x4", "--top", "3")
    assert result["slice"] == "v5e:4x4"
    assert result["ranked_by"] == "expected seconds"
    assert len(result["strategies"]) == 3
    for strategy in result["strategies"]:
        times = strategy["seconds"]
        assert times["lower"] <= times["expected"] <= times["upper"]
    assert result["strategies"][0]["collective_matmul"] == 1
    assert result["enumerated"] == 19
    assert result["obstacles"][0].startswith("the contracted dim J is sharded differently")


def test_the_answer_for_a_person(capsys):
    run("A[I, J_X] * B[J_X, K]", "--dims", "I=8,J=9,K=8", "--mesh", "X=4", "--top", "2")
    out, err = capsys.readouterr()
    assert out == (
        "A[I, J_X] * B[J_X, K] -> C[I, K], result free; mesh X=4, bf16\n"
        "\n"
        "  1. C[I, K]{U_X} = A[I, J_X] * B[J_X, K]\n"
        "  2. C[I_X, K] = ReduceScatter_X(C[I, K]{U_X}, I)\n"
        "\n"
        "  array  layout           whole  per device  bytes\n"
        "  -----  ---------  -----------  ----------  -----\n"
        "  A      A[I, J_X]  bf16[8, 12]  bf16[8, 3]   48 B\n"
        "  B      B[J_X, K]  bf16[12, 8]  bf16[3, 8]   48 B\n"
        "  C      C[I_X, K]   bf16[8, 8]  bf16[2, 8]   32 B\n"
        "\n"
        "Best of 4 legal strategies, by bytes on the wire\n"
        "     strategy                       bytes sent      FLOPs  peak bytes\n"
        "  -  -----------------------------  ----------  ---------  ----------\n"
        "  1  ReduceScatter_X(C)                   96 B  384 FLOPs       256 B\n"
        "  2  AllToAll_X(A), AllGather_X(B)       180 B  384 FLOPs       368 B\n"
        "  ranked by the bytes that one device sends; give a slice with --on to rank by time\n"
        "  next best sends 84 B more, 1.88x: AllToAll_X(A), AllGather_X(B)\n"
        "  more: --detail  --top N\n"
    )
    assert err == "note: J padded from 9 to 12, as its blocks must be equal\n"


def test_the_result_may_be_asked_for_otherwise(capsys):
    text = "A[I, J_X] * B[J_X, K] -> C[I, K]"
    assert "AllReduce_X" in result_of(capsys, text, *SMALL)["steps"][-1]
    assert "ReduceScatter_X" in result_of(capsys, text, *SMALL, "--result", "free")["steps"][-1]
    wanted = result_of(capsys, text, *SMALL, "--result", "C[I, K_X]")
    assert wanted["layouts"]["C"] == "C[I, K_X]"


def test_a_reshard_and_nothing_to_do(capsys):
    text = ("--dims", "I=64,J=8", "--mesh", "X=4,Y=2")
    result = result_of(capsys, "A[I_XY, J] -> A[I_Y, J]", *text)
    assert [c["kind"] for c in result["collectives"]] == ["permute", "all_gather"]
    run("A[I_X, J] -> A[I_X, J]", *text)
    assert "nothing to do: the array already has this layout" in capsys.readouterr().out


def test_a_chain_under_a_memory_limit(capsys):
    """Exercise 3.7: 300 MB per chip leave tensor parallelism."""
    chain = "In[B, D_XY] * W_in[D, F] * W_out[F, D] -> Out[B, D_XY]"
    where = ("--dims", "B=128,D=8192,F=32768", "--mesh", "X=2,Y=2", "--on", "v5e:2x2")
    free = ("--free", "W_in", "--free", "W_out", "--max-hbm", "300MB", "--constants", "book")
    result = result_of(capsys, chain, *where, *free)
    assert result["peak_bytes_per_device"] < 300e6
    plain = "AllGather_XY(In), ReduceScatter_XY(Out)"
    assert plain in [s["summary"] for s in result["strategies"]]
    assert result["strategies"][0]["bound_by"] == "HBM"


def test_the_backward_pass(capsys):
    text = "In[B_X, D] * W[D_X, F] -> Out[B_X, F]"
    result = result_of(capsys, text, "--dims", "B=8,D=8,F=8", "--mesh", "X=4", "--backward")
    assert "  3. dW[D_X, F] = ReduceScatter_X(dW[D, F]{U_X})" in result["backward"][7]
    run(
        "In[B, D] * W[D, F_X] -> Tmp[B, F_X]; relu(Tmp[B, F_X]) -> Out[B, F_X]",
        *("--dims", "B=8,D=8,F=8", "--mesh", "X=4", "--backward"),
    )
    assert capsys.readouterr().out.startswith("Forward: need to compute Loss[B]")


def test_source_and_run(capsys):
    text = "A[I, J_X] * B[J_X, K] -> C[I, K]"
    run(text, *SMALL, "--to", "jax")
    compile(capsys.readouterr().out, "program.py", "exec")
    result = result_of(capsys, text, *SMALL, "--run")["run"]
    assert result["as_predicted"]
    assert result["programs"]["shard_map"]["equal"]
    assert result["programs"]["jit"]["equal"]
    assert result["collectives"][0]["predicted"] == {"count": 1, "bytes": 128}


def test_partial_sums_are_run_in_two_styles(capsys):
    text = "A[I, J_X] * B[J_X, K] -> C[I, K]{U_X}"
    result = result_of(capsys, text, *SMALL, "--run")["run"]
    assert [*result["programs"]] == ["shard_map", "jit"]
    assert any(note.startswith("explicit: not run") for note in result["notes"])


def test_strategies_as_csv(capsys, tmp_path):
    path = tmp_path / "strategies.csv"
    run(FSDP_TP, *SQUARE, "--csv", str(path))
    rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    assert rows[0] == ["", "strategy", "bytes sent", "FLOPs", "peak bytes"]
    assert len(rows) == 6


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((FSDP_TP, *SQUARE, "--on", "v5e:2x2"), "the mesh needs 16 chips and v5e:2x2 has 4 chips"),
        ((FSDP_TP, *SQUARE, "--top", "0"), "--top 0 shows nothing; give 1 or more"),
        ((FSDP_TP, *SQUARE, "--free", "W"), "unknown array 'W'; known: A, B"),
        ((FSDP_TP, *SQUARE, "--set", "chip.hbm_bandwidth=1e12"), "name the slice with --on"),
        ((FSDP_TP, *SQUARE, "--result", "C[I_X, L]"), "unknown dim 'L'"),
        ((FSDP_TP, *SQUARE, "--to", "jax", "--run"), "--to prints a program and nothing else"),
        (("A[I] -> A[I]", "--dims", "I=8", "--mesh", "X=2", "--run"), "needs no step"),
        (
            ("A[I_X, J] * B[J, K_X] -> C[I_X, K_X]", *SMALL),
            r"mesh axis 'X' cuts both I and K in 'C\[I_X, K_X\]'; an axis may cut one dimension",
        ),
        (
            ("C[I, K] -> C[I, K]{U_X}", "--dims", "I=8,K=8", "--mesh", "X=4"),
            r"'C\[I, K\]\{U_X\}' needs partial sums over X, which no step here makes; steps",
        ),
        (("A[I, J] -> A[I]", *SMALL), "loses J; a reshard keeps every dim"),
        (("A[I] * B[I]", "--dims", "I=8", "--mesh", "X=2"), "the operands share every letter"),
    ],
)
def test_refusals_of_products(args, message):
    with pytest.raises(BadRequest, match=message):
        run(*args)


def test_nothing_fits(capsys):
    with pytest.raises(NoFeasiblePlan, match=r"fits 1 kB per device; the smallest .* takes"):
        run("A[I, J_X] * B[J, K] -> C[I, K]", *SQUARE, "--max-hbm", "1kB")


def test_pictures(capsys, tmp_path):
    run("A[I_X, J]", "--dims", "I=8,J=4", "--mesh", "X=2", "--draw")
    assert "A[I_X, J] on mesh X=2: blocks of [4, 4]" in capsys.readouterr().out
    path = tmp_path / "map.svg"
    run("A[I_X, J]", "--dims", "I=8,J=4", "--mesh", "X=2", "--plot", str(path))
    assert path.read_text(encoding="utf-8").startswith("<?xml")
    page = tmp_path / "moves.html"
    run(FSDP_TP, *SQUARE, "--on", "v5e:4x4", "--animate", str(page), "--draw")
    assert "<html" in page.read_text(encoding="utf-8")
    assert "B[J_X, K_Y] on mesh X=4,Y=4" in capsys.readouterr().out
    run(FSDP_TP, *SQUARE, "--on", "v5e:4x4", "--animate", "-")
    assert "round 1 of 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((FSDP_TP, *SQUARE, "--animate", "a.html"), "say of which slice with --on SLICE"),
        ((FSDP_TP, *SQUARE, "--plot", "a.png"), "the answer has 3 arrays; --plot shows one array"),
        ((*QUIZ, "--animate", "a.html"), "--animate does nothing for a single array"),
        ((*QUIZ, "--draw", "--json"), "--draw prints a picture; leave out --json"),
    ],
)
def test_refusals_of_pictures(args, message):
    with pytest.raises(BadRequest, match=message):
        run(*args)


def test_a_reshard_to_the_same_name_shows_both_layouts(capsys):
    """The source keeps its name and its own shape, the result gets a prime."""
    result = result_of(capsys, "A[I_XY] -> A[I_X]", "--dims", "I=1024", "--mesh", "X=4,Y=2")
    assert result["layouts"] == {"A": "A[I_XY]", "A'": "A[I_X]"}
    assert result["local_shapes"] == {"A": [128], "A'": [256]}


def test_what_is_not_local_names_the_source(capsys):
    result = result_of(capsys, "A[I_X] -> B[I]", "--dims", "I=64", "--mesh", "X=4")
    assert result["obstacles"] == ["the array is A[I_X], B[I] is wanted"]


def test_equal_strategies_rank_by_memory(capsys):
    """Without communication either way, B is best stored in pieces."""
    wanted = ("A[I_X, J] * B[J, K_X]", "--dims", "I=256,J=512,K=1024", "--mesh", "X=4,Y=2")
    first, second, *_ = result_of(capsys, *wanted, "--free", "B")["strategies"]
    assert first["wire_bytes_per_device"] == second["wire_bytes_per_device"] == 0
    assert first["peak_bytes_per_device"] < second["peak_bytes_per_device"]


def test_constants_without_a_slice_are_refused():
    with pytest.raises(BadRequest, match="name the slice with --on"):
        run("A[I_X] -> A[I]", "--dims", "I=64", "--mesh", "X=4", "--constants", "book")


def test_a_mesh_may_use_part_of_a_slice(capsys):
    run("A[I_X] -> A[I]", "--dims", "I=1024", "--mesh", "X=4", "--on", "v5e:4x4")
    captured = capsys.readouterr()
    assert "X=4: x[2] y[2], lines" in captured.out
    assert "the mesh uses 4 chips of v5e:4x4, 12 idle" in captured.err


SUM = ("A[I,J]{U_X} -> A[I,J]", "--dims", "I=8192,J=8192", "--mesh")
WHOLE = 8192 * 8192 * 2


@pytest.mark.parametrize(
    ("on", "chips", "sent"),
    [
        ("h100:8", 8, WHOLE),  # the switch adds up: V, where a ring sends 2 V 7/8
        ("h100:8", 2, WHOLE),
        # Inside two nodes the switches add up, over the NICs V/8 goes round a ring of two.
        ("2*h100:8", 16, WHOLE + 2 * WHOLE / 8 / 2),
        ("a100:8", 8, 2 * WHOLE * 7 / 8),
        ("v5e:4x4", 16, 2 * WHOLE * 15 / 16),
    ],
)
def test_bytes_sent_are_those_of_the_priced_algorithm(capsys, on, chips, sent):
    row = result_of(capsys, *SUM, f"X={chips}", "--on", on)["strategies"][0]
    assert row["summary"] == "AllReduce_X(A)"
    assert row["wire_bytes_per_device"] == pytest.approx(sent)


def test_book_constants_derate_nothing_behind_switches(capsys):
    """What is measured on switches (the ramp of small messages, SHARP's gain, the steps of a ring)
    is not in the book's formulas: above the bandwidth only hops are left, 20 us a node at most."""
    for on, chips, hops in (("h100:8", 8, 1e-5), ("2*h100:8", 16, 5e-5)):
        args = (*SUM, f"X={chips}", "--on", on, "--constants", "book")
        found = result_of(capsys, *args)["strategies"][0]["seconds"]
        assert found["lower"] <= found["expected"] <= found["lower"] + hops


def test_dependent_collectives_add_up(capsys):
    """A reduce-scatter over X, then a gather over Y of what it made: neither hides the other."""
    result = result_of(
        capsys,
        *("A[I,J]{U_X} -> A[I,J_X]", "--dims", "I=8192,J=8192"),
        *("--mesh", "X=4,Y=4", "--on", "v5e:4x4"),
    )
    best, one_step = result["strategies"]
    assert best["summary"] == "ReduceScatter_X(A), AllGather_Y(A)"
    assert one_step["summary"] == "ReduceScatter_X(A)"
    assert best["seconds"]["expected"] == pytest.approx(2 * 599e-6, rel=1e-3)
    assert best["seconds"]["lower"] == pytest.approx(503e-6, rel=1e-3)


@pytest.mark.parametrize("more", [(), ("--on", "v5e:2x2"), ("--draw",), ("--to", "explicit")])
def test_a_product_may_keep_no_dim(capsys, more):
    run("x[P_X] * y[P] -> z[]", "--dims", "P=1024", "--mesh", "X=4", *more)
    assert "z[]" in capsys.readouterr().out


@pytest.mark.parametrize("expression", ["A[I,J]{U_X} -> A[I,J]", "A[I,J_X] * B[J_X,K] -> C[I,K]"])
@pytest.mark.parametrize("slice_", [("--on", "v5e:4x4"), ()])
def test_one_step_to_the_result_is_a_strategy(capsys, expression, slice_):
    """Without the idle axis' help an all-reduce is one step; and no two rows read alike."""
    dims = "I=8192,J=8192" + (",K=8192" if "K" in expression else "")
    given = (expression, "--dims", dims, "--mesh", "X=4,Y=4", *slice_, "--top", "40")
    result = result_of(capsys, *given)
    summaries = [row["summary"] for row in result["strategies"]]
    assert len(summaries) == len(set(summaries))
    name = expression.split("-> ")[1][0]
    assert f"AllReduce_X({name})" in summaries
    assert result["enumerated"] >= len([s for s in summaries if "matmul" not in s])


def test_a_transpose_is_priced_by_what_moves(capsys):
    """Blocks pass 1,024 links of every axis' 512: no routing beats two a link (23.3 us)."""
    result = result_of(
        capsys,
        *("A[I_X,J_Y] -> A[I_Y,J_X]", "--dims", "I=8192,J=8192", "--mesh", "X=16,Y=16"),
        *("--on", "v5e:16x16", "--constants", "book"),
    )
    rows = {row["summary"]: row["seconds"] for row in result["strategies"]}
    assert min(row["lower"] for row in rows.values()) >= 23.3e-6
    assert rows["Permute_XY(A)"]["lower"] == pytest.approx(23.3e-6, rel=1e-3)


def test_the_animation_moves_only_what_moves(capsys):
    run(
        *("A[I_X,J_Y] -> A[I_Y,J_X]", "--dims", "I=8,J=8", "--mesh", "X=2,Y=2"),
        *("--on", "v5e:2x2", "--animate", "-"),
    )
    shown = capsys.readouterr().out
    moves = [line.split()[:3] for line in shown.splitlines() if ", 8 B" in line and "->" in line]
    ways = [f"{src} {dst}" for src, _, dst in moves]
    assert ways == ["0,1 1,1", "1,0 0,0", "1,1 1,0", "0,0 0,1"]


# What waits for hops ------------------------------------------------------------------------------


def test_a_small_collective_waits_for_hops(capsys):
    """Twelve hops of 1 us over two lines of four, there and back, for a kilobyte (book ch. 3.2)."""
    product = ("A[I, J_X] * B[J_X, K] -> C[I, K]", "--mesh", "X=16", "--on", "v5e:4x4")
    small = result_of(capsys, *product, "--dims", "I=8,J=1024,K=64")["collectives"][0]
    assert small["bound_by"] == "latency"
    assert small["latency_seconds"] == pytest.approx(12e-6)
    large = result_of(capsys, *product, "--dims", "I=8192,J=1024,K=8192")["collectives"]
    assert {row["bound_by"] for row in large} == {"bandwidth"}
    for row in (small, *large):
        turn = row["bytes"] * row["latency_seconds"] / row["bandwidth_seconds"]
        assert row["turning_bytes"] == pytest.approx(turn)
    run(*product, "--dims", "I=8,J=1024,K=64")
    assert "step 2 waits for hops: 12 µs for" in capsys.readouterr().out


def test_python_reads_fields():
    """Times are there on a slice alone; of an array are blocks, of a product strategies."""
    product, sizes = "A[I, J_X] * B[J_X, K] -> C[I, K]", "I=8,J=8,K=8"
    timed = sw.shard(product, dims=sizes, mesh="X=4", on="v5e:2x2")
    assert isinstance(timed, Sharded)
    assert all(isinstance(one, TimedStrategy) for one in timed.strategies)
    assert [one.bound_by for one in timed.collectives] == ["latency"]
    plain = sw.shard(product, dims=sizes, mesh="X=4")
    assert not any(isinstance(one, TimedStrategy) for one in plain.strategies)
    assert "bound_by" not in plain.result["collectives"][0]
    held = sw.shard("A[I_X, J]", dims="I=8,J=4", mesh="X=2")
    assert isinstance(held, ShardedArray)
    assert held.devices[1].block == [(4, 8), (0, 4)]
