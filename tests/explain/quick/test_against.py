"""Two programs beside each other: a fault of the corpus and its cured twin, line by line."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.apps.commands import run

from shardwise.commands.base.inputs import Hardware
from shardwise.commands.program.against import (
    KeptProgram,
    against,
    against_page,
    kept_program,
    load_program,
    save_program,
    slower,
)
from shardwise.commands.program.explaining import placed
from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.profiler.explain import explain_program
from shardwise.profiler.explain.against import paired
from shardwise.profiler.explain.finding import Finding
from shardwise.sharding import Mesh

CORPUS = Path(__file__).parents[1] / "corpus/data"
ON, MESH = "v5e:2x4", Mesh.parse("data=4,tensor=2")


def program(kind):
    """A kept program and its explanation."""
    with gzip.open(CORPUS / f"there_and_back.{kind}.hlo.gz", "rt") as file:
        hlo = file.read()
    explanation = explain_program(hlo, parse_slice(ON), MESH)
    compiled = {"slice": ON, "partitioned": False, "versions": {"jax": kind}, "fits": True}
    made = SimpleNamespace(
        phase=kind,
        work=SimpleNamespace(mesh=MESH),
        compiled=SimpleNamespace(hlo=hlo, buffers=(), **compiled),
    )
    return kept_program(made, explanation), explanation


@pytest.fixture(scope="module")
def both():
    (fault, _), (twin, cured) = program("fault"), program("twin")
    return fault, twin, against(fault, twin, cured, Hardware())


def test_what_went_and_what_it_saves(both):
    found = both[2]
    assert found.after < found.before
    assert found.costs == pytest.approx(found.after / found.before - 1)
    assert "ping-pong" in [f.rule for f in found.went]
    assert found.came == []
    exchanged = [c for c in found.collectives if c.kind == "all_to_all"]
    assert exchanged
    assert all(c.bytes_after == 0 < c.bytes_before and c.costs < 0 for c in exchanged)
    assert found.versions == ["jax fault -> twin"]
    page = "\n".join(map(str, against_page(found)))
    assert page.startswith("against fault: ")
    assert "% shorter; jax fault -> twin" in page
    assert "gone: ping-pong" in page


def test_lines_add_up_to_what_their_seconds_differ_by(both):
    fault, twin, found = both
    seconds = [
        sum(line.seconds for line in explain_program(p.hlo, parse_slice(ON), MESH).lines)
        for p in (fault, twin)
    ]
    assert sum(c.costs for c in found.lines) == pytest.approx(seconds[1] - seconds[0])


def test_a_kept_program_is_read_as_it_was_written(both, tmp_path):
    path = tmp_path / "before.json"
    save_program(path, both[0])
    assert load_program(path) == KeptProgram.of(both[0], buffers=[])


@pytest.mark.parametrize("text", ["{}", "[1]", '{"hlo": 1}'])
def test_another_file_is_no_kept_program(text, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(BadRequest, match=r"is not a file of `shardwise explain --save FILE`"):
        load_program(path)


def test_a_partitioned_program_stands_beside_no_compiled_one(both):
    fault, twin, _ = both
    other = KeptProgram.of(fault, partitioned=True)
    with pytest.raises(BadRequest, match="was partitioned and this one is compiled; give --quick"):
        against(other, twin, program("twin")[1], Hardware())


def test_a_step_that_takes_too_much_longer_is_told(both):
    found = both[2]
    assert slower(found, "3%") == ""
    worse = type(found).of(found, costs=0.041)
    assert "4.1 % more than 'fault'" in slower(worse, "3%")
    assert slower(worse, "5%") == slower(worse, "0.05") == ""
    with pytest.raises(BadRequest, match="--fail-over is 'x'"):
        slower(worse, "x")


def test_programs_of_different_slices_are_said_to_be(both):
    _, twin, same = both
    assert same.places == []
    other = KeptProgram.of(both[0], slice="v5p:2x2x2", mesh={"data": 8})
    found = against(other, twin, program("twin")[1], Hardware())
    assert found.places == [
        "mesh data=8 -> data=4,tensor=2",
        "slice v5p:2x2x2 -> v5e:2x4",
    ]
    page = " ".join("\n".join(map(str, against_page(found))).split())
    assert "for different machines (mesh data=8 -> data=4,tensor=2; slice v5p:2x2x2 ->" in page
    with pytest.raises(BadRequest, match=r"'fault' is for another \(slice v5p:2x2x2 -> v5e:2x4"):
        slower(found, "3%")


def test_lines_are_aligned_by_their_text_wherever_they_stand():
    before = {"a.py:3": "x = f(x)", "a.py:4": "y = g(x) @ w", "a.py:9": "return y", "mlp": ""}
    after = {"b.py:13": "x = f(x)", "b.py:15": "y = g(x) @ w.T", "b.py:16": "z = 1", "mlp": ""}
    assert dict(paired(before, after)) == {
        "mlp": "mlp",
        "a.py:3": "b.py:13",
        "a.py:4": "b.py:15",
        "a.py:9": "",
        "": "b.py:16",
    }


def test_a_share_without_another_program_is_refused(capsys):
    code, _, err = run(capsys, "explain", "a:b", "--args", "a:c", "--on", ON, "--fail-over", "3%")
    assert code == 2
    assert "--fail-over compares two programs; name the other one with --against" in " ".join(
        err.split()
    )


SOURCE = """import jax, jax.numpy as jnp
def before(x, w):
    return x @ w
def after(x, w):
    return x.astype(jnp.float32) @ w.astype(jnp.float32) @ w.astype(jnp.float32)
def args(mesh):
    at = jax.NamedSharding(mesh, jax.P(None, "y"))
    return tuple(jax.ShapeDtypeStruct((512, 512), jnp.bfloat16, sharding=at) for _ in range(2))
"""


@pytest.mark.slow
def test_the_command_ends_with_code_one_where_a_step_became_slower(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "turned.py").write_text(SOURCE)
    rest = ["--args", "turned:args", "--on", ON, "--quick"]
    code, out, _ = run(capsys, "explain", "turned:before", *rest, "--save", "k.json")
    assert (code, "Program in k.json" in out) == (0, True)
    more = ("--against", "k.json", "--fail-over", "3%", "--json")
    code, out, err = run(capsys, "explain", "turned:after", *rest, *more)
    assert code == 1
    assert json.loads(out)["result"]["against"]["costs"] > 0.03
    assert "% more than 'turned:before'" in " ".join(err.split())


def test_paths_in_what_a_finding_says_are_those_seen_from_here():
    text = f"64 MB are gathered that {Path.cwd()}/model.py:3 has gathered before"
    found = Finding(
        rule="gathered twice",
        seconds=1e-3,
        where=f"{Path.cwd()}/model.py:8",
        what=text,
        remedy="gather once",
    )
    shown = placed(found)
    assert shown.where == "model.py:8"
    assert shown.what == "64 MB are gathered that model.py:3 has gathered before"
