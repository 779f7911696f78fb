"""What XLA's partitioner tells of a step in seconds, beside what the chip's compiler made of it.

`train_7b.py` is a train step of 7B parameters; `data/` has its text behind the partitioner and the
collectives that libtpu compiled it to.
"""

import gzip
import json
import os
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from shardwise.commands.base.answer import TextTable
from shardwise.commands.program.explain import _partitioned_page
from shardwise.commands.program.explaining import explained_program
from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.profiler.explain import explain_program
from shardwise.sharding import Mesh, wire_bytes
from shardwise.work import Collective, Op

DATA = Path(__file__).parent / "data"
TPU = json.loads((DATA / "train_7b.json").read_text())
MESH = Mesh.parse(TPU["mesh"])
CPU_SECONDS = 15
CORPUS = tomllib.loads((DATA.parents[1] / "corpus/corpus.toml").read_text())


@cache
def kept():
    with gzip.open(DATA / "train_7b.hlo.gz", "rt") as file:
        return explain_program(file.read(), parse_slice(TPU["on"]), MESH, partitioned=True)


def by_axis(rows):
    """Bytes that a device sends, by the axes of the collectives."""
    found = Counter()
    for kind, axes, size in rows:
        wire = Collective(kind=kind, axes=tuple(axes), bytes=size)
        op = Op(id="", name="", phase="", component="", op_class="collective", collective=wire)
        found[tuple(axes)] += float(wire_bytes(op, dict(MESH)))
    return found


def test_the_bytes_on_each_axis_are_those_of_the_chips_compiler():
    quick = by_axis((c.kind, c.axes, c.bytes) for c in kept().collectives)
    chip = by_axis((c["kind"], c["axes"], c["bytes"]) for c in TPU["collectives"])
    assert quick.keys() == chip.keys()
    assert quick["tensor",] == pytest.approx(chip["tensor",], rel=0.001)
    assert quick["fsdp",] == pytest.approx(chip["fsdp",], rel=0.1)  # permutes beside products


def test_sums_that_a_compiler_joins_are_counted_once():
    text = (DATA.parent / "train_7b.py").read_text().splitlines()
    line = 1 + next(n for n, words in enumerate(text) if "q, k, v = " in words)
    here = (c for c in kept().collectives if c.where.endswith(f"train_7b.py:{line}"))
    (sums,) = (c for c in here if c.kind == "all_reduce")
    assert (sums.axes, sums.runs) == (("tensor",), 32)  # of queries, keys and values together


def test_gradients_of_cut_weights_are_scattered():
    kinds = {c.kind for c in kept().collectives if c.axes == ("fsdp",) and c.bytes > 1e8}
    assert kinds == {"all_gather", "reduce_scatter", "all_to_all"}


def test_only_what_must_be_done_takes_time():
    t = kept().timeline
    busy = [row for row in t.rows if row.seconds]
    assert all(row.flops or row.op.op.collective for row in busy)
    (found,) = kept().findings
    assert found.rule == "undonated state"


def test_what_is_given_away_counts_as_donated():
    with gzip.open(DATA / "train_7b.hlo.gz", "rt") as file:
        text = file.read()
    given = ", ".join(f"({n}, {{}})" for n in range(36))
    text = text.replace(
        "HloModule jit_train, ", f"HloModule jit_train, buffer_donor={{ {given} }}, "
    )
    assert explain_program(text, parse_slice(TPU["on"]), MESH, partitioned=True).findings == ()


def test_a_state_that_comes_back_wider_is_named_without_a_compile():
    text = """HloModule jit_step, entry_computation_layout={(bf16[1024,1024])->f32[1024,1024]}

ENTRY main {
  w = bf16[1024,1024] parameter(0), metadata={op_name="params[\'w\']"}
  wide = f32[1024,1024] convert(w)
  ROOT new = f32[1024,1024] multiply(wide, wide), metadata={source_file="mine.py" source_line=3}
}
"""
    told = explain_program(text, parse_slice("v6e:1x1"), partitioned=True)
    (found,) = told.findings
    assert (found.rule, found.frees) == ("state of another dtype", 2**22)
    assert "comes in as bf16 and goes out as f32" in found.what
    page = _partitioned_page(explained_program("m:f", "v6e:1x1", told, partitioned=True), ())
    tables = [part for part in page if isinstance(part, TextTable)]
    assert [table.header[0] for table in tables] == ["by source line"]


def of_corpus(name, hlo):
    """Rules that a program of the corpus breaks, as the partitioner alone tells it; the dearest
    first."""
    row = CORPUS[name]
    piece, mesh = parse_slice(row["on"]), Mesh.parse(row["mesh"])
    found = explain_program(hlo, piece, mesh, partitioned=True).findings
    return list(dict.fromkeys(f.rule for f in found))


def test_half_of_the_corpus_is_named_without_a_compile_and_no_twin():
    with gzip.open(DATA / "corpus.json.gz", "rt") as file:
        texts = {tuple(name.split(".")): hlo for name, hlo in json.load(file).items()}
    told = {(name, kind): of_corpus(name, hlo) for (name, kind), hlo in texts.items()}
    faults = {name for name, kind in told if kind == "fault"}
    assert len(faults) >= 40
    named = {name for name in faults if CORPUS[name]["rule"] in told[name, "fault"][:2]}
    assert len(named) >= len(faults) / 2, faults - named
    assert not [name for name in faults if CORPUS[name]["rule"] in told[name, "twin"]]
    clean = [rules for (name, _), rules in told.items() if name not in faults]
    assert clean
    assert not any(clean)


def test_a_constraint_to_a_whole_array_is_told_by_its_own_line():
    with gzip.open(DATA / "corpus.json.gz", "rt") as file:
        texts = json.load(file)
    program = (DATA.parents[1] / "corpus/wholes.py").read_text().splitlines()
    line = 1 + next(n for n, words in enumerate(program) if "lay(logits, " in words)
    row = CORPUS["constrained_whole"]
    piece, mesh = parse_slice(row["on"]), Mesh.parse(row["mesh"])
    fault, twin = (
        explain_program(texts[f"constrained_whole.{kind}"], piece, mesh, partitioned=True)
        for kind in ("fault", "twin")
    )
    (found,) = fault.findings
    assert (found.rule, found.where) == (
        "whole by a constraint",
        f"tests/explain/corpus/wholes.py:{line}",
    )
    saved = fault.timeline.expected - twin.timeline.expected
    assert found.seconds == pytest.approx(saved, rel=0.15)
    assert twin.findings == ()


def test_options_for_the_chips_compiler_are_refused():
    import shardwise as sw

    with pytest.raises(BadRequest, match="is for the chip's compiler, and"):
        sw.explain("a:b", "a:c", on="v5e:2x4", quick=True, xla=("xla_a=1",))


@pytest.mark.slow
def test_a_step_of_7b_is_partitioned_within_fifteen_seconds_of_cpu(monkeypatch):
    import shardwise as sw

    monkeypatch.chdir(Path(__file__).parent)
    started = sum(os.times()[:4])
    asked = {"on": TPU["on"], "mesh": TPU["mesh"], "quick": True}
    found = sw.explain("train_7b:train", "train_7b:args", **asked)
    assert sum(os.times()[:4]) - started < CPU_SECONDS
    have = {(c.kind, c.axes): c.bytes for c in found.collectives}
    assert have == {(c.kind, c.axes): c.bytes for c in kept().collectives}
    assert "needs the chip's compiler" in str(found)
