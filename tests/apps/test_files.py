"""Files that commands write: none over an input, or over another without --force; refused early."""

import sys

import click
import pytest
from tests.apps.commands import answered, refused, run

import shardwise as sw
from shardwise.apps.cli import COMMANDS, cli
from shardwise.apps.cli.options import OutputFile, OutputFolder

PLAN = ("plan", "train", "--model", "llama-3-8b", "--on", "v5e:4x4", "--batch", "64seq")
PLAN += ("--seq", "4096")
ARRAY = ("shard", "A[I_X]", "--dims", "I=8", "--mesh", "X=2")


def commands(command=None, path=()):
    """Every command of the command line with its words."""
    if command is None:
        for name in COMMANDS:
            yield from commands(cli.get_command(click.Context(cli), name), (name,))
    elif isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from commands(command.get_command(click.Context(command), name), (*path, name))
    else:
        yield path, command


ALL = dict(commands())
WRITERS = {
    path: command
    for path, command in ALL.items()
    if any(isinstance(p.type, OutputFile | OutputFolder) for p in command.params)
}


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_force_belongs_to_the_commands_that_write_and_to_no_other(path):
    forces = [p for p in ALL[path].params if "--force" in p.opts]
    assert len(forces) == (path in WRITERS)
    assert len({p.help for p in forces} | {"Overwrite files"}) <= 2


def test_these_write():
    assert {" ".join(path) for path in WRITERS} == {
        *("plan train", "plan serve", "plan show", "plan sweep", "simulate", "validate"),
        *("book figure", "book show", "book rule", "book errata"),
        *("shard", "compile", "explain", "profile", "calibrate", "export", "roofline"),
        "check",
        *("hw list", "hw diff", "model list", "model diff", "bench serve", "report"),
    }


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The text of a plan file."""
    path = tmp_path_factory.mktemp("planned") / "p.yaml"
    answered(*PLAN, "--remat", "block", "--pin", "stage=1", "-o", path)
    return path.read_text()


@pytest.fixture
def plan(planned, tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(planned)
    return path


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (("--model", "m/config.json", "-o", "m/config.json"), "m/config.json"),
        (("--model", "m", "-o", "m/config.json"), "m/config.json"),
        (("--model", "m/config.json", "--csv", "m/config.json"), "m/config.json"),
        (("--model", "llama-3-8b", "--against", "p.yaml", "-o", "p.yaml"), "p.yaml"),
        (("--model", "llama-3-8b", "--hw", "lab.toml", "-o", "lab.toml"), "lab.toml"),
    ],
)
def test_a_plan_never_overwrites_what_it_reads(plan, tmp_path, capsys, monkeypatch, given, read):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    (tmp_path / "lab.toml").write_text('id = "lab"\nbase = "v5e"\n')
    before = (tmp_path / read).read_bytes()
    flags = ("--on", "v5e:4x4", "--batch", "64seq", "--seq", "512", "--force")
    assert "is an input of the command" in refused(capsys, ["plan", "train", *given, *flags])
    assert (tmp_path / read).read_bytes() == before


@pytest.mark.parametrize("force", [(), ("--force",)], ids=["", "force"])
def test_an_export_never_overwrites_its_plan(plan, capsys, force):
    before = plan.read_bytes()
    message = refused(capsys, ["export", plan, "--to", "maxtext", "-o", plan, *force])
    assert message == f"-o '{plan}' is an input of the command; name another file"
    assert plan.read_bytes() == before


def test_a_dash_is_a_file_nowhere_but_where_it_is_said(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = refused(capsys, [*PLAN, "-o", "-"])
    assert "is '-'; it takes the name of a file" in said
    assert not list(tmp_path.iterdir())


def test_a_file_that_exists_is_replaced_with_force_alone(capsys, tmp_path):
    path = tmp_path / "a.csv"
    assert run(capsys, *ARRAY, "--csv", path)[0] == 0
    ours = path.read_bytes()
    message = refused(capsys, [*ARRAY, "--csv", path])
    assert message == f"--csv '{path}' exists; name another file, or overwrite it with --force"
    path.write_text("my own notes")
    assert refused(capsys, [*ARRAY, "--csv", path]) == message
    assert path.read_text() == "my own notes"
    assert run(capsys, *ARRAY, "--csv", path, "--force")[0] == 0
    assert path.read_bytes() == ours


def test_two_outputs_are_two_files(capsys, tmp_path):
    path = tmp_path / "a"
    assert "both name" in refused(capsys, [*PLAN, "-o", path, "--csv", path])
    assert not path.exists()


@pytest.fixture
def no_work(monkeypatch):
    """Whatever computes an answer fails the test."""

    def fail(*_, **__):
        raise AssertionError("the work has begun")

    for name in (
        "commands.plan_serve.serve.ServePlanRequest.answer",
        "commands.plan_serve.simulate.simulate_plan",
        "commands.plan_train.train.TrainPlanRequest.answer",
        "commands.plan_file.show.PlanShowRequest.answer",
        "commands.plan_train.sweep.SweepRequest.answer",
        "commands.tables.validate.ValidateRequest.answer",
        "commands.tables.book_figure.FigureRequest.answer",
        "commands.shard.command.ShardRequest.answer",
        "commands.plan_file.export.ExportRequest.answer",
        "commands.program.compile.CompileRequest.answer",
        "commands.program.profile.ProfileRequest.answer",
        "commands.tables.hw.ChipListRequest.answer",
        "commands.tables.hw.ChipDiffRequest.answer",
        "commands.tables.model.ModelListRequest.answer",
        "commands.tables.model.ModelDiffRequest.answer",
    ):
        monkeypatch.setattr(f"shardwise.{name}", fail)


SERVE = ("plan", "serve", "--model", "llama-3-8b", "--on", "v5e:4x4", "--input", "9", "--output")
SWEEP = ("plan", "sweep", "--model", "llama-3-8b", "--on", "v5e:4x4", "--batch", "64seq")
PRODUCT = ("shard", "A[I_X, J] * B[J, K]", "--dims", "I=8,J=8,K=8", "--mesh", "X=2")
FILES = {
    "-o": ([*PLAN], [*SERVE, "9"], ["export", "{plan}", "--to", "maxtext"]),
    "--csv": (
        [*PLAN],
        [*SERVE, "9"],
        [*SWEEP, "--seq", "4096"],
        [*ARRAY],
        [*PRODUCT],
        ["simulate", "{plan}", "--rate", "1"],
        ["validate"],
        ["book", "figure", "3.1"],
        ["hw", "list"],
        ["hw", "diff", "v5e", "v5p"],
        ["model", "list"],
        ["model", "diff", "llama-3-8b", "llama-3-70b"],
    ),
    "--plot": (
        [*PLAN],
        [*SERVE, "9"],
        [*SWEEP, "--seq", "4096"],
        [*ARRAY],
        ["plan", "show", "{plan}"],
        ["simulate", "{plan}", "--rate", "1"],
        ["validate"],
        ["book", "figure", "3.1"],
    ),
    "--perfetto": (
        ["simulate", "{plan}", "--rate", "1"],
        [*PLAN],
        ["plan", "show", "{plan}"],
    ),
    "--animate": ([*PRODUCT, "--on", "v5e:2x1"],),
    "--out": (["compile", "{plan}"], ["profile", "{plan}"]),
}
CASES = [(flag, tuple(words)) for flag, some in FILES.items() for words in some]


@pytest.mark.parametrize(
    ("flag", "words"), CASES, ids=lambda v: v if isinstance(v, str) else " ".join(v[:2])
)
def test_places_are_looked_at_before_the_work(no_work, capsys, tmp_path, flag, words):
    plan = tmp_path / "sub" / "p.yaml"
    plan.parent.mkdir()
    plan.write_text("kind: serve\n")
    words = [str(plan) if w == "{plan}" else w for w in words]
    ending = {"--plot": ".png", "--perfetto": ".json.gz"}.get(flag, "")
    if flag == "--out":
        (tmp_path / "thesis.txt").write_text("")
        assert "holds 'thesis.txt'" in refused(capsys, [*words, flag, tmp_path])
        assert "an input of the command" in refused(capsys, [*words, flag, plan.parent])
        return
    nowhere = tmp_path / "nowhere" / f"a{ending}"
    assert "does not exist; give another" in refused(capsys, [*words, flag, nowhere])
    mine = tmp_path / f"mine{ending}"
    mine.write_text("mine")
    assert "exists; name another file" in refused(capsys, [*words, flag, mine])
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("words", FILES["--plot"], ids=" ".join)
def test_a_missing_matplotlib_is_said_before_the_work(
    no_work, capsys, tmp_path, monkeypatch, words
):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    message = refused(capsys, [*words, "--plot", tmp_path / "a.svg"], code=5)
    assert "--plot needs matplotlib" in message


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ttft", "1s", "--check", "200%"], "--check '200%' is outside 0..100%"),
        (["--ttft", "1s", "--check", "x"], "--check 'x' is not a share"),
        (["--perfetto-until", "60s"], "name it with --perfetto"),
        (["--perfetto", "{new}.json", "--perfetto-until", "soon"], "soon"),
    ],
)
def test_simulate_refuses_before_it_simulates(no_work, capsys, tmp_path, words, said):
    plan = tmp_path / "p.yaml"
    words = [w.replace("{new}", str(tmp_path / "new")) for w in words]
    assert said in refused(capsys, ["simulate", plan, "--rate", "1", *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--animate", "-", "--to", "jax"], "leave out --to"),
        (["--draw", "--json"], "leave out --json"),
        (["--animate", "-"], "say of which slice with --on"),
        (["--plot", "a.png"], "the answer has 3 arrays; --plot shows one array"),
    ],
)
def test_pictures_of_products_are_refused_before_the_search(
    no_work, capsys, tmp_path, monkeypatch, words, said
):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, [*PRODUCT, *words])


def test_the_library_writes_without_asking(plan, tmp_path):
    path = tmp_path / "other.yaml"
    path.write_text("mine")
    loaded = sw.load_plan(plan)
    sw.save_plan(loaded, path)
    assert sw.load_plan(path) == loaded
