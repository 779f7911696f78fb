"""`shardwise compile` and `shardwise explain`: what they refuse, print and exit with.

Programs that were compiled before stand in for the compiler;
`tests/commands/program/test_compiling.py` goes through it.
"""

import csv
import gzip
import json
from pathlib import Path

import pytest

from shardwise.apps.cli import main
from shardwise.commands.program import compiling as workflow
from shardwise.plans import ServePlan, save_plan
from shardwise.profiler.ahead import Buffer, CompiledProgram

DATA = Path(__file__).parents[1] / "profiler" / "explain" / "data"
INDEX = json.loads((DATA / "index.json").read_text())
KEPT = Path(__file__).parents[1] / "kept"


def run(capsys, *args):
    """(code, stdout, stderr) of a command."""
    code = 0
    try:
        main(list(map(str, args)))
    except SystemExit as end:
        code = int(end.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def kept(label, **changes):
    """A program of the corpus as a compile gives it."""
    row = INDEX[label]
    with gzip.open(DATA / f"{label}.hlo.gz", "rt") as file:
        hlo = file.read()
    fields = {
        "key": "k",
        "slice": row["on"],
        "platform": "tpu",
        "devices": 8,
        "mesh": row["mesh"],
        "options": {},
        "versions": row["versions"],
        "seconds": {"lower": 0.1, "compile": 2.5, "process": 4.0, "cpu": 3.0},
        "process_peak_bytes": 2**30,
        "fits": row["fits"],
        "refusal": "" if row["fits"] else "RESOURCE_EXHAUSTED: Ran out of memory",
        "needed_bytes": 2**30,
        "capacity_bytes": 15.75 * 2**30,
        "memory": {"peak": 2**30, "arguments": 2**29, "outputs": 0, "code": 2**20},
        "buffers": tuple(Buffer(**b) for b in row["buffers"]),
        "flops_once": 1.0,
        "cached": False,
        "hlo": hlo,
    }
    return CompiledProgram(**{**fields, **changes})


@pytest.fixture
def compiler(monkeypatch):
    """Gives what `label` names, whatever is asked for, and notes what was."""
    asked = []

    def stand_in(label, **changes):
        def compile_ahead(target, builder, arguments, **more):
            asked.append((target, builder, arguments, more))
            return kept(label, **changes)

        monkeypatch.setattr(workflow, "compile_ahead", compile_ahead)
        return asked

    return stand_in


ARGS = ("mycode:mlp", "--args", "mycode:args", "--on", "v5e:2x4", "--mesh", "data=4,tensor=2")


def test_a_compiled_function_is_a_table(capsys, compiler):
    asked = compiler("good_mlp.a.clean")
    code, out, _ = run(capsys, "compile", *ARGS, "--option", "xla_a=true", "--timeout", 7)
    assert code == 0
    assert "mycode:mlp on v5e:2x4, data=4 x tensor=2: fits" in out
    assert "compiled in 2.5 s, process 1 GiB (1.07 GB)" in out
    for row in ("peak memory", "FLOPs per step", "step time, expected", "all_reduce over tensor"):
        assert row in out
    target, _, arguments, more = asked[0]
    assert len(target.coordinates) == 8
    assert arguments["mesh"] == {"data": 4, "tensor": 2}
    assert more["options"] == {"xla_a": "true"}
    assert more["limits"].seconds == 7


def test_a_compiled_function_is_a_document(capsys, compiler, tmp_path):
    compiler("good_mlp.a.clean")
    code, out, err = run(capsys, "compile", *ARGS, "--json", "--out", tmp_path / "report")
    assert (code, err) == (0, "")
    (program,) = json.loads(out)["result"]["programs"]
    # 2,048 tokens by 4,096 by 4,096 and back, twice 2 m k n.
    assert program["flops"]["compiled"] == 2 * 2 * 2048 * 4096 * 4096
    assert program["fits"]
    assert program["step_seconds"]["compiled"]["expected"] > 0
    (row,) = program["collectives"]
    assert (row["kind"], row["axes"], row["predicted"]) == ("all_reduce", ["tensor"], None)
    assert row["compiled"] == {"count": 1.0, "bytes": 2048 * 4096 * 2.0}
    names = {path.name for path in (tmp_path / "report").iterdir()}
    files = ("hlo.txt", "buffers.csv", "ops.csv", "trace.json.gz")
    assert names == {"compile.json", *(f"mycode.mlp.{name}" for name in files)}
    check_report(tmp_path / "report", program["step_seconds"]["compiled"]["expected"])


def test_a_serving_plan_shows_both_phases_on_one_page(capsys, compiler, tmp_path):
    """Each with what it works on; what lies in memory stands behind --detail."""
    path = tmp_path / "plan.yaml"
    cut = {"slice": "v5e:2x4", "mesh": {"data": 4, "tensor": 2}, "box": (2, 4)}
    load = {"batch": 64, "input_length": 3000, "output_length": 128, "prefill_chunk": 1024}
    save_plan(ServePlan(model="llama-3-8b", model_hash="", **cut, **load), path)
    compiler("good_mlp.a.clean")
    code, out, _ = run(capsys, "compile", path)
    assert code == 0
    assert "decode of 64 sequences on v5e:2x4" in out
    assert "prefill of 1,000 tokens of a prompt on v5e:2x4" in out
    assert len(out.splitlines()) <= 30
    assert "more lines" not in out
    assert "memory as compiled" not in out
    _, out, _ = run(capsys, "compile", path, "--detail")
    assert out.count("memory as compiled") == 2
    _, out, _ = run(capsys, "compile", path, "--json")
    first, second = json.loads(out)["result"]["programs"]
    assert (first["sequences"], first["tokens"]) == (64, 64)
    assert (second["sequences"], second["tokens"]) == (1, 1000)


def check_report(folder, seconds):
    """Each track of the trace is in order, and the ops of the table are the step."""
    trace = json.loads(gzip.decompress((folder / "mycode.mlp.trace.json.gz").read_bytes()))
    ends = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["cat"] != "loops":
            assert event["ts"] >= ends.get(event["tid"], 0.0)
            ends[event["tid"]] = event["ts"] + event["dur"]
    assert max(ends.values()) == pytest.approx(1e6 * seconds, rel=1e-2)
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert {"compute", "net:tensor"} <= names
    with (folder / "mycode.mlp.ops.csv").open() as file:
        rows = list(csv.DictReader(file))
    busy = sum(float(r["seconds_per_step"]) for r in rows if r["stream"] == "compute")
    assert 0 < busy <= seconds
    assert {r["collective"] for r in rows} == {"", "all_reduce"}


def test_a_plot_has_the_memory_over_the_schedule(capsys, compiler, tmp_path):
    compiler("missing_remat.a.clean", occupancy=(("a", 2**29), ("b", 2**30), ("c", 2**28)))
    path = tmp_path / "memory.svg"
    code, out, _ = run(capsys, "compile", *ARGS, "--plot", path)
    assert code == 0
    assert f"Plot in {path}" in out
    assert "</svg>" in path.read_text()


@pytest.mark.parametrize("ending", ["svg", "dot"])
def test_a_graph_has_the_dearest_ops(capsys, compiler, tmp_path, ending):
    compiler("ping_pong.a.fault")
    path = tmp_path / f"ops.{ending}"
    code, out, _ = run(capsys, "explain", *ARGS, "--graph", path)
    assert code == 0
    assert f"Graph in {path}" in out
    assert path.read_text().count("all-to-all, ") == 2


def test_a_graph_of_another_ending_is_refused(capsys, compiler, tmp_path):
    compiler("ping_pong.a.fault")
    code, _, err = run(capsys, "explain", *ARGS, "--graph", tmp_path / "ops.pdf")
    assert code == 2
    assert ".svg" in err
    assert ".dot" in err


def test_why_a_step_takes_so_long_is_on_the_page_with_lines(capsys, compiler):
    compiler("bad_padding.a.clean")
    table = run(capsys, "explain", *ARGS)[1].partition("why it takes so long")[2]
    assert "floor: its ops at peak rates" in table
    assert "scripts/explain_programs.py:" in table.partition("\n\n")[0]
    found = json.loads(run(capsys, "explain", *ARGS, "--json")[1])["result"]
    rest = [*found["causes"], *found["unknown"]]
    total = found["floor_seconds"] + sum(part["seconds"] for part in rest)
    assert total == pytest.approx(found["step_seconds"]["expected"])
    assert all(c["where"].startswith("scripts/explain_programs.py:") for c in found["causes"])


def test_memory_in_detail_adds_up_to_the_peak(capsys, compiler):
    memory = {"arguments": 600, "outputs": 100, "aliased": 60, "temporaries": 300, "code": 20}
    compiler("good_mlp.a.clean", memory={**memory, "peak": 1000}, needed_bytes=1000, buffers=())
    out = run(capsys, "compile", *ARGS, "--detail")[1]
    rows = [line.split("  ") for line in out.partition("memory as compiled")[2].splitlines()]
    table = {row[1].strip(): row[-1].strip() for row in rows if len(row) > 2}
    assert table["outputs that are not arguments"] == "40 B"
    assert table["padding and program code"] == "640 B"
    assert table["peak"] == "1 kB"


def test_what_does_not_fit_ends_with_code_3_and_its_buffers(capsys, compiler):
    compiler("missing_remat.a.fault", fits=False, needed_bytes=2**35)
    code, out, err = run(capsys, "compile", *ARGS, "--json")
    assert code == 3
    assert json.loads(out)["result"]["programs"][0]["fits"] is False
    assert "mycode:mlp does not fit v5e:2x4: 32 GiB (34.4 GB) per device" in err
    assert "temporary bf16[32," in err
    assert "explain_programs.py:" in err
    assert "donate arguments" in err


def test_an_explanation_prints_lines_scopes_arguments_and_findings(capsys, compiler):
    compiler("gather_in_decode.a.fault")
    code, out, _ = run(capsys, "explain", *ARGS, "--detail")
    assert code == 0
    for text in (
        "waiting for networks",
        "by source line",
        "by scope",
        "up[I, J_data, K_tensor] bf16",
        "gathered weights, ",
        " without it",
        "move the tokens (tensor parallelism)",
    ):
        assert text in " ".join(out.split())


def test_an_explanation_is_a_document(capsys, compiler):
    compiler("gather_in_decode.a.fault")
    code, out, _ = run(capsys, "explain", *ARGS, "--json")
    assert code == 0
    result = json.loads(out)["result"]
    first = result["findings"][0]
    assert first["rule"] == "gathered weights"
    assert first["microseconds"] == pytest.approx(first["seconds"] * 1e6)
    total = sum(line["seconds"] for line in result["lines"])
    assert total == pytest.approx(result["step_seconds"]["expected"], rel=0.02)


def test_a_program_without_faults_says_so(capsys, compiler):
    compiler("good_mlp.a.clean")
    assert "No findings" in run(capsys, "explain", *ARGS)[1]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            ("mycode:mlp",),
            "lacks --args; give --args MODULE:NAME, a function that returns them, such as jax.Sh",
        ),
        (("mycode:mlp", "--args", "mycode:args"), "function 'mycode:mlp' lacks --on"),
        ((*ARGS[:5], "--mesh", "data=3"), "mesh data=3 does not fill 'v5e:2x4', which has 8"),
        ((*ARGS, "--set", "remat=block"), "--set and --phase are for plans"),
        ((*ARGS, "--option", "word"), "--option 'word' is not NAME=VALUE"),
        ((*ARGS, "--timeout", "0"), "--timeout is 0.0; it must be a number above 0"),
        ((*ARGS, "--memory", "lots"), "--memory"),
        (("nowhere.yaml",), "cannot read the plan 'nowhere.yaml'"),
        (("nowhere.yaml", "--args", "a:b"), "--args is of functions; the plan 'nowhere.yaml'"),
        (("mycode:mlp", "--args", "a:b", "--on", "mi300x:8"), "no compiler that runs without"),
    ],
)
@pytest.mark.parametrize("command", ["compile", "explain"])
def test_requests_that_make_no_sense_are_refused(capsys, command, args, words):
    code, out, err = run(capsys, command, *args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert "Traceback" not in err


def test_one_op_is_followed_from_jax_to_the_schedule(capsys, tmp_path, monkeypatch):
    """As text, in the document and in the report; the texts are those that a compile kept."""
    texts, index = KEPT / "decode_mlp", json.loads((KEPT / "index.json").read_text())
    row = next(row for row in index["rows"] if row["name"] == "decode_mlp")

    def compile_ahead(*_, limits, **__):
        if limits.stages is not None:
            (limits.stages / "k.json.gz").write_bytes(Path(f"{texts}.json.gz").read_bytes())
        hlo = gzip.decompress(Path(f"{texts}.hlo.gz").read_bytes()).decode()
        return kept("good_mlp.a.clean", hlo=hlo, slice=row["slice"], mesh=row["mesh"], buffers=())

    monkeypatch.setattr(workflow, "compile_ahead", compile_ahead)
    asked = ("compile", "mycode:mlp", "--args", "mycode:args", "--on", row["slice"])
    asked = (*asked, "--mesh", "fsdp=4,tensor=2")
    code, page, _ = run(capsys, *asked, "--stages", "--out", tmp_path / "report")
    assert code == 0
    assert page.startswith("jit(decode_mlp)/mlp/dot_general (kept_programs.py:")
    assert "stablehlo.dot_general" in page
    report = (tmp_path / "report" / "mycode.mlp.stages.txt").read_text()
    assert (
        "+ convolution bf16[16,14336]{1,0:T(8,128)(2,1)}, fused with broadcast, maximum" in report
    )
    for name in ("jaxpr", "stablehlo", "given.hlo"):
        assert (tmp_path / "report" / f"mycode.mlp.{name}.txt").read_text()
    code, out, _ = run(capsys, *asked, "--stages", "mlp", "--json")
    (program,) = json.loads(out)["result"]["programs"]
    assert program["stages"]["op"] == "jit(decode_mlp)/mlp/dot_general"
    assert next(c["kinds"] for c in program["stages"]["changes"]) == ["given"]
    code, _, said = run(capsys, *asked, "--stages", "softmax")
    assert code == 2
    assert "--stages 'softmax' names no op of the program" in said
