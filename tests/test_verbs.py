"""Python and the command line ask the same: every option of every command is a keyword."""

import inspect

import click
import pytest
from tests.apps.commands import answered
from tests.apps.test_files import ALL

import shardwise as sw
from shardwise.apps.cli import main
from shardwise.errors import BadRequest
from shardwise.plans.train import mesh_text

pytestmark = pytest.mark.usefixtures("answers_kept")

OUTPUT = {
    "as_json": "prints the document that `answer.result` is part of",
    "csv_path": "writes the rows of `answer.table()`",
    "plot_path": "writes a picture",
    "trace_path": "writes the pipeline of `answer.best` as a trace",
    "animate_path": "writes or prints a picture",
    "html_path": "writes a page",
    "draw": "prints a picture",
    "force": "is about files that are overwritten",
    "show_detail": "prints a section of the answer",
    "show_why": "prints a section of the answer",
    "show_stages": "prints a section of the answer",
    "show_book": "prints a section of the answer",
}
"""Options that only say where output goes, or in which form."""
FILES = {
    ("plan", "train", "plan_path"): "writes `answer.best.plan`",
    ("plan", "serve", "plan_path"): "writes `answer.best.plan`",
    ("plan", "sweep", "plan_path"): "writes the plan of `answer.chosen`",
    ("plan", "show", "plan_path"): "writes `answer.best.plan`",
    ("export", "file"): "writes `answer.text`",
    ("check", "file"): "writes `answer.text`",
    ("compile", "out"): "writes a report of the answer",
    ("explain", "graph"): "writes the graph of the answer",
    ("explain", "save"): "writes `answer.kept`",
    ("calibrate", "file"): "writes `answer.files`",
    ("simulate", "steps_path"): "writes the steps that were kept as a trace",
    ("simulate", "perfetto_until"): "says where that trace ends",
}
"""The same, where the name means something else elsewhere."""
SCREENS = {
    "serve": "runs until it is stopped",
    "ui": "runs until it is stopped",
    "generate": "prints text as it comes; `runtime.engine` has it for Python",
    "chat": "is a conversation",
}
"""Commands without an answer, and why."""
VERBS = {path: "_".join(path) for path in ALL if path[0] not in SCREENS}
VERBS["roofline",] = "matmul_roofline"  # the package has a folder `roofline`


def keywords(path):
    return inspect.signature(getattr(sw, VERBS[path])).parameters


def asked(path):
    """The options and arguments of a command that do not only say where output goes."""
    names = [p.name for p in ALL[path].params if p.expose_value]
    return [n for n in names if n not in OUTPUT and (*path, n) not in FILES]


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_every_option_is_a_keyword(path):
    """And every keyword an option."""
    assert set(asked(path)) == set(keywords(path))


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_an_option_that_is_left_out_is_the_keyword_that_is_left_out(path):
    """With the same default, so that both answer the same."""
    found = keywords(path)
    for option in ALL[path].params:
        if option.name not in found or option.required:
            continue
        default, other = ALL[path].make_context("it", [], resilient_parsing=True), ""
        default, other = default.params[option.name], found[option.name].default
        assert str(default) == str(other) or (not default and not other), option.name


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_help_says_what_each_keyword_means(path):
    """As its option does; what stands by place is in the first text. A name that ends in _ is
    quoted, so that the docs do not take it for a link."""
    said = (getattr(sw, VERBS[path]).__doc__ or "").splitlines()
    places = {p.name for p in ALL[path].params if isinstance(p, click.Argument)}
    for name in set(keywords(path)) - places:
        shown = f"`{name}`" if name.endswith("_") else name
        assert any(line.startswith(f"{shown}: ") for line in said), name


def test_help_names_keywords_and_not_flags():
    assert "mfu: Take this share of peak in place of the expected time (with tokens)." in (
        sw.plan_train.__doc__ or ""
    )
    assert "pins: Fix a mesh degree. Or a mapping." in (sw.plan_train.__doc__ or "")


def test_the_lists_of_outputs_hold_what_is_there():
    names = {p.name for command in ALL.values() for p in command.params}
    assert set(OUTPUT) <= names
    assert all(path[-1] in {p.name for p in ALL[path[:-1]].params} for path in FILES)


JOB = {"batch": "32seq", "seq": 2048, "remat": "block", "pins": {"stage": 1}}
WORDS = ("plan", "train", "--model", "llama-3-8b", "--on", "v5e:4x4", "--batch", "32seq")
WORDS += ("--seq", "2048", "--remat", "block", "--pin", "stage=1")


def test_an_answer_prints_as_the_command_does():
    """The command adds what to type next, and which options say more."""
    found = sw.plan_train("llama-3-8b", "v5e:4x4", **JOB, tokens="1T")
    page = str(found).splitlines()
    printed = answered(*WORDS, "--tokens", "1T")[0].splitlines()
    assert printed[: len(page)] == page
    assert len(printed) <= len(page) + 5  # two lines of a command, and three around them
    assert repr(found) == str(found)
    assert found.table()[0]["mesh"] == mesh_text(found.best.plan.mesh)
    assert found.result["run"]["usd"] > 0


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (lambda: sw.hw_show("v5e"), ("hw", "show", "v5e")),
        (lambda: sw.model_show("gpt2", seq="4k"), ("model", "show", "gpt2", "--seq", "4k")),
        (
            lambda: sw.matmul_roofline(on="v5e", matmul=(240, 8192, 32768)),
            ("roofline", "--on", "v5e", "--matmul", "240x8192x32768"),
        ),
        (
            lambda: sw.shard("A[I_X, J]", dims={"I": 8, "J": 4}, mesh={"X": 2}),
            ("shard", "A[I_X, J]", "--dims", "I=8,J=4", "--mesh", "X=2"),
        ),
        (lambda: sw.plan_show("audit:megatron-16b"), ("plan", "show", "audit:megatron-16b")),
        (lambda: sw.book_show("5.3.3.limit"), ("book", "show", "5.3.3.limit")),
        (
            lambda: sw.book_rule("mixed_limit", on="v5p", sets={"d_ff": [8192, 16384]}),
            ("book", "rule", "mixed_limit", "--on", "v5p", "--set", "d_ff=8192,16384"),
        ),
    ],
)
def test_words_and_values_ask_the_same(verb, words):
    """But for the lines of what to type next."""
    found = verb()
    printed = answered(*words)[0].partition("\n  more: ")[0].partition("\n\n  next: ")[0]
    assert printed.removesuffix("\n") == str(found)
    assert found.table()


def test_numbers_are_texts_or_numbers():
    small = {**JOB, "seq": "2Ki"}
    first = sw.plan_train("llama-3-8b", "v5e:4x4", **JOB, max_hbm=14e9, top="1")
    second = sw.plan_train("llama-3-8b", "v5e:4x4", **small, max_hbm="14GB", top=1)
    assert first.table() == second.table()
    assert len(first.table()) == 2


def test_a_plan_is_a_file_a_name_or_a_value():
    plan = sw.load_plan("audit:megatron-16b")
    named = sw.plan_show("audit:megatron-16b").result
    assert sw.plan_show(plan).result == {**named, "measured": None}
    found = sw.plan_diff(plan, plan, sets={"remat": "none"})
    assert found.result["changed"] == {}
    assert "shard_optimizer" not in sw.export(plan, to="jax").text


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"remat": "blok"}, "unknown value of remat 'blok'; did you mean 'block'?"),
        ({"pins": {"tensro": 2}}, "did you mean 'tensor'?"),
        ({"zero": 3}, "zero is 3; it must be a whole number of at least 0 and at most 2"),
        ({"top": "many"}, "top is 'many'; it must be a whole number"),
        ({"mfu": "40%"}, "mfu changes only the days of a run; give tokens too"),
    ],
)
def test_python_is_refused_as_the_command_is(keywords, said):
    with pytest.raises(BadRequest) as refusal:
        sw.plan_train("llama-3-8b", "v5e:4x4", **JOB | keywords)
    assert said in str(refusal.value)


def test_keywords_that_there_are_not_and_that_are_missing_are_told():
    asked = {"batch": "64seq", "seq": 4096}
    with pytest.raises(BadRequest, match="keyword of plan_train 'remt'; did you mean 'remat'"):
        sw.plan_train("llama-3-8b", "v5e:4x4", remt="none", **asked)
    with pytest.raises(BadRequest, match=r"plan_train: missing a required .*'on'"):
        sw.plan_train("llama-3-8b", **asked)


def test_errors_name_an_option_in_the_words_of_who_asked(capsys):
    given = ["plan", "train", "--model", "llama-3-8b", "--on", "v5p:2x2x2", "--seq", "4096"]
    with pytest.raises(SystemExit):
        main([*given, "--batch", "17"])
    assert "write --batch 17seq" in capsys.readouterr().err
    with pytest.raises(BadRequest, match="write batch=17seq"):
        sw.plan_train("llama-3-8b", "v5p:2x2x2", batch="17", seq=4096)
