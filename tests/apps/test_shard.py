"""`shardwise shard` for one array: the document, the tables and the refusals."""

import csv
import json

import pytest

from shardwise.apps.cli.shard import shard
from shardwise.errors import BadRequest

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
    )


def test_a_long_table_is_cut_and_says_so(capsys):
    run("A[I_X]", "--dims", "I=64", "--mesh", "X=64")
    assert "and 32 more devices (--json or --csv lists them)" in capsys.readouterr().out


def test_a_huge_mesh_lists_the_first_devices(capsys):
    run("A[I_X]", "--dims", "I=1Mi", "--mesh", "X=1048576,Y=1000000", "--json")
    doc = json.loads(capsys.readouterr().out)
    assert len(doc["result"]["devices"]) == 65_536
    assert doc["warnings"] == ["the first 65,536 of 1,048,576,000,000 devices are listed"]


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
            r"a product starts at column 11 .* give one array, such as A\[I_X, J\]",
        ),
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
        ((*QUIZ, "--dtype", "int9"), "unknown dtype 'int9'; did you mean"),
    ],
)
def test_refusals(args, message):
    with pytest.raises(BadRequest, match=message) as caught:
        run(*args)
    assert caught.value.exit_code == 2
