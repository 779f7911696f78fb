"""Faults that people have reported are named with what they cost, and their cured twins are not.

`corpus.toml` says who reported what, `programs.py` has the programs, `data/` their compiled texts
(`scripts/explain_corpus.py`); some rows name texts of tests/profiler/explain.
"""

import gzip
import json
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from shardwise.commands.program.explaining import placed as seen_from_here
from shardwise.hardware import parse_slice
from shardwise.profiler.ahead import Buffer
from shardwise.profiler.explain import explain_program
from shardwise.roofline.finding import Finding
from shardwise.sharding import Mesh

HERE = Path(__file__).parent
EVERY = tomllib.loads((HERE / "corpus.toml").read_text())
ROWS = {name: row for name, row in EVERY.items() if "rule" in row}
CURED = [
    *("summed_every_round", "gathered_every_round", "there_and_back", "repeated_heads"),
    *("all_experts", "small_sums", "given_back_another_way", "gathered_logits", "grown_cache"),
    *("stacked_in_the_step", "widened_weights", "drawn_in_one_order", "same_elementwise"),
    *("sorted_whole", "both_branches", "made_in_every_round", "summed_wide"),
]
CLEAN = [*(name for name in EVERY if name not in ROWS), *CURED]
"""Programs without a fault, and twins that have no other one; five more are in
tests/profiler/explain."""
INDEX = json.loads((HERE / "data/index.json").read_text())
OLDER = HERE.parents[1] / "profiler/explain/data"
OLDER_INDEX = json.loads((OLDER / "index.json").read_text())
FIRST = ("gathered_twice", "summed_whole", "equal_sum", "involuntary_remat")
"""Those that the quick tests try on GPUs."""
OF_COST, OF_STEP = 0.15, 0.05
"""How far a finding's seconds may be from what the twin saves, of those or of the step."""


def placed(name, kind):
    """The text of a program, its slice and mesh, its buffers and whether it fits."""
    row = EVERY[name]
    if older := row.get("compiled"):
        label = f"{older}.{'clean' if kind == 'twin' else kind}"
        kept = OLDER_INDEX[label]
        return OLDER / f"{label}.hlo.gz", kept["on"], Mesh(tuple(kept["mesh"].items())), kept
    label = f"{name}.{kind}"
    mesh = row["mesh"] if kind == "fault" else row.get("cured_mesh", row["mesh"])
    return HERE / f"data/{label}.hlo.gz", row["on"], Mesh.parse(mesh), INDEX[label]


@cache
def explained(name, kind):
    path, on, mesh, kept = placed(name, kind)
    with gzip.open(path, "rt") as file:
        hlo = file.read()
    buffers = [Buffer(**b) for b in kept["buffers"]]
    return explain_program(hlo, parse_slice(on), mesh, buffers=buffers, fits=kept["fits"])


def test_every_row_has_a_public_report_and_a_cure():
    for name, row in ROWS.items():
        assert row["report"].startswith("https://github.com/"), name
        assert row["seen"], name
        assert row["cured"], name
    assert len(ROWS) >= 50


@pytest.mark.parametrize("name", ROWS)
def test_a_fault_is_named_first_or_second_with_what_its_twin_saves(name):
    fault, twin = explained(name, "fault"), explained(name, "twin")
    rule, step = ROWS[name]["rule"], fault.timeline.expected
    first = list(dict.fromkeys(f.rule for f in fault.findings))[:2]
    assert rule in first
    told = sum(f.seconds for f in fault.findings if f.rule == rule)
    saved = step - twin.timeline.expected
    assert abs(told - saved) <= max(OF_COST * abs(saved), OF_STEP * step), (told, saved, step)


@pytest.mark.parametrize("name", ROWS)
def test_the_cured_twin_has_no_such_finding(name):
    assert ROWS[name]["rule"] not in {f.rule for f in explained(name, "twin").findings}


@pytest.mark.parametrize(
    "name", [n for n, row in ROWS.items() if not {"compiled", "cured_mesh"} & {*row}]
)
def test_a_finding_points_at_the_line_of_the_program(name):
    rule = ROWS[name]["rule"]
    for f in explained(name, "fault").findings:
        if f.rule == rule:
            assert f.where.startswith("tests/explain/corpus/")
            assert f.what
            assert f.remedy


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_program_has_no_finding_worth_two_percent(name):
    found = explained(name, "twin")
    assert [f for f in found.findings if f.seconds > 0.02 * found.timeline.expected] == []


@pytest.mark.slow
def test_most_of_the_time_above_floors_has_a_cause_and_a_line():
    above = known = 0.0
    for name, kind in [
        *((n, k) for n in ROWS for k in ("fault", "twin")),
        *((c, "twin") for c in CLEAN),
    ]:
        found = explained(name, kind)
        over = found.timeline.expected - found.parts.floor
        above += over
        known += over - sum(u.seconds for u in found.parts.unknown)
    print(
        f"{100 * known / above:.1f} % of {1e3 * above:.1f} ms above floors have a cause and a line"
    )
    assert known >= 0.85 * above


def test_what_a_user_cannot_change_is_told_by_the_part_that_it_is():
    path, on, mesh, _ = placed("gathered_twice", "fault")
    with gzip.open(path, "rt") as file:
        hlo = file.read()
    for ours in ("src/shardwise/runtime/step.py", "/v/lib/python3/site-packages/flax/linen/x.py"):
        text = hlo.replace("tests/explain/corpus/programs.py", ours)
        (found,) = explain_program(text, parse_slice(on), mesh).findings
        assert found.where == "step()"


def test_what_one_line_gathers_twice_is_not_told_by_a_path():
    path, on, mesh, _ = placed("gathered_twice", "fault")
    with gzip.open(path, "rt") as file:
        hlo = file.read()
    (found,) = explain_program(hlo, parse_slice(on), mesh).findings
    before = found.what.removesuffix(" has gathered before").split()[-1]
    lines = [place.rpartition(":")[2] for place in (before, found.where)]
    assert lines[0] != lines[1]
    text = hlo.replace(f" line={lines[0]} ", f" line={lines[1]} ")
    (same,) = explain_program(text, parse_slice(on), mesh).findings
    assert same.what.endswith("that the same line has gathered before")


def test_a_line_is_spelled_one_way_in_all_that_is_told_of_it():
    """As it is seen from here, or from the folder of installed packages."""
    for path, near in (
        (f"{Path.cwd()}/model/lm.py:18", "model/lm.py:18"),
        ("/v/lib/python3/site-packages/llm/lm.py:18", "llm/lm.py:18"),
    ):
        what = f"8 MB per step are gathered over data that {path} has gathered before"
        told = seen_from_here(Finding(rule="", seconds=1.0, where=path, what=what, remedy=""))
        assert told.where == near
        assert told.what == what.replace(path, near)


def test_lines_of_a_package_that_is_named_are_the_users():
    path, on, mesh, _ = placed("gathered_twice", "fault")
    with gzip.open(path, "rt") as file:
        hlo = file.read().replace("tests/explain/corpus", "/v/lib/python3/site-packages/llm/model")
    for packages, own in ((("llm",), True), (("ll", "model"), False)):
        found = explain_program(hlo, parse_slice(on), mesh, packages=packages)
        (finding,) = found.findings
        places = (finding.where, *(c.where for c in found.parts.causes))
        assert all(("/llm/model/programs.py:" in where) == own for where in places)


def test_a_cheaper_way_between_two_layouts_is_told_in_the_notation_and_as_code():
    (found,) = explained("involuntary_remat", "fault").findings
    assert found.rule == "full rematerialization"
    assert "A[I_y, J, K_x] -> A[I_y, J_x, K] -> A[I, J_{x,y}, K]" in found.remedy
    assert 'NamedSharding(mesh, P("y", "x", None))' in found.remedy
    assert 'NamedSharding(mesh, P(None, ("x", "y"), None))' in found.remedy


def test_a_state_that_is_not_donated_is_told_by_its_bytes():
    (found,) = (f for f in explained("undonated_state", "fault").findings if f.frees)
    assert found.frees == pytest.approx(6 * 4096 * 32768 * 4 / 8)
    assert "donate_argnames='state'" in found.remedy


def test_a_state_of_another_dtype_costs_memory_and_says_that_its_donation_is_unused():
    (found,) = explained("drifting_state", "fault").findings
    assert found.frees == pytest.approx(2 * 8192 * 16384 * 4 / 8)
    assert "comes in as bf16 and goes out as f32, so that its donation is not used" in found.what
    assert "new.astype(old.dtype)" in found.remedy


def test_sums_that_each_wait_for_the_network_are_counted_and_joined():
    (found,) = explained("small_sums", "fault").findings
    assert "24 exchanges (all-reduce) over data and tensor" in found.what
    assert "jax.lax.psum((a, b, c), axis)" in found.remedy


def test_what_goes_there_and_back_is_not_told_again_at_the_edge():
    assert [f.rule for f in explained("there_and_back", "fault").findings] == ["ping-pong"]


def test_sums_of_scores_are_told_in_the_notation_with_a_cut_that_needs_none():
    (found,) = explained("summed_scores", "fault").findings
    assert "8 times as much as both operands together" in found.what
    assert "A[I, J, L_tensor] * B[I, K, L_tensor] -> C[I, J, K]{U_tensor}" in found.what
    assert "A[I_tensor, J, L] * B[I_tensor, K, L] -> C[I_tensor, J, K]" in found.remedy


def test_a_whole_result_is_told_with_the_layout_of_the_argument_that_it_is_like():
    (found,) = explained("given_back_whole", "fault").findings
    assert (
        "return it in the layout of 'w', w[I, J_tensor]: out_shardings of jax.jit" in found.remedy
    )


def test_what_a_compiler_may_use_up_is_said_to_be_the_most():
    told = {name: explained(name, "fault").findings[0] for name in ("summed_wide", "gathered_wide")}
    assert {name: f.at_most for name, f in told.items()} == {
        "summed_wide": True,
        "gathered_wide": False,
    }


def test_rows_of_zeros_are_told_by_their_share():
    (found,) = explained("all_experts", "fault").findings
    assert "at most 12 % of the rows are filled" in found.what
    assert "jax.lax.ragged_dot" in found.remedy


def test_a_loop_that_the_compiler_made_is_of_the_line_that_it_is_made_for():
    """A generator's loop has no line of its own."""
    for u in explained("drawn_whole", "fault").parts.unknown:
        assert ".py:" in u.where


@pytest.mark.slow
@pytest.mark.parametrize("name", ["involuntary_remat", "equal_sum"])
def test_a_fault_compiled_anew_is_named(name, monkeypatch):
    scripts = str(HERE.parents[2] / "scripts")
    monkeypatch.syspath_prepend(scripts)
    monkeypatch.setenv("PYTHONPATH", scripts)  # of the process that compiles
    made = import_module("explain_corpus").compiled(name, True)
    _, on, mesh, _ = placed(name, "fault")
    found = explain_program(made.hlo, parse_slice(on), mesh, buffers=made.buffers)
    assert found.findings[0].rule == ROWS[name]["rule"]


GPUS = json.loads((HERE / "h100.json").read_text())
"""What `scripts/explain_gpus.py` recorded of the faults on GPUs; it kept the texts as well."""
ON_GPUS = [name for name, row in GPUS.items() if row.get("applies")]
MISSED_ON_GPUS = {"alike_matrices"}
"""Named, with 84 % of its seconds: thin products take the rest."""


def on_gpus(name, kind):
    row = ROWS[name]
    mesh = row["mesh"] if kind == "fault" else row.get("cured_mesh", row["mesh"])
    with gzip.open(HERE / f"h100/{name}.{kind}.hlo.gz", "rt") as file:
        return explain_program(file.read(), parse_slice("h100:8"), Mesh.parse(mesh))


@pytest.mark.parametrize(
    "name",
    [
        name if name in FIRST else pytest.param(name, marks=pytest.mark.slow)
        for name in ON_GPUS
        if name not in MISSED_ON_GPUS
    ],
)
def test_a_fault_on_gpus_is_named_with_what_its_twin_saves(name):
    rule, fault, twin = ROWS[name]["rule"], on_gpus(name, "fault"), on_gpus(name, "twin")
    step = fault.timeline.expected
    assert rule in list(dict.fromkeys(f.rule for f in fault.findings))[:2]
    assert rule not in {f.rule for f in twin.findings}
    told = sum(f.seconds for f in fault.findings if f.rule == rule)
    saved = step - twin.timeline.expected
    assert abs(told - saved) <= max(OF_COST * abs(saved), OF_STEP * step), (told, saved, step)


def test_a_ragged_product_that_is_written_out_for_gpus_has_empty_rows_too():
    """The fault's twin is no cure there: it multiplies every row for every expert."""
    for kind in ("fault", "twin"):
        found = on_gpus("all_experts", kind)
        told = next(f for f in found.findings if f.rule == "empty rows")
        product = max(found.timeline.rows, key=lambda row: row.flops)
        assert told.seconds >= 7 / 8 * product.per_step
        assert "a kernel for groups" in told.remedy


def test_the_record_for_gpus_is_dated_and_names_its_compiler():
    """`scripts/explain_gpus.py` made it; a row that the compiler refuses says why."""
    assert set(GPUS) <= set(ROWS)
    assert len(ON_GPUS) >= 30
    for name, row in GPUS.items():
        if "refused" in row:
            assert row["refused"], name
            continue
        assert row["rule"] == ROWS[name]["rule"], name
        assert row["date"] > "2026", name
        assert row["on"].startswith("h100:"), name
        assert row["versions"], name
        assert min(row["step"], row["told"], row["frees"]) >= 0, name
        assert not (row["applies"] and "on_gpus" in ROWS[name]), name
