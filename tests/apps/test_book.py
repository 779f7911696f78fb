"""`shardwise book` and the audit that `plan show` prints."""

import csv
import json
import subprocess
import sys

import pytest
from tests.apps.commands import run

import shardwise as sw
import shardwise.book
from shardwise.book.figure_index import figure_ids
from shardwise.commands.base.layout import WIDTH
from shardwise.commands.tables.book_quiz import BookQuiz, BookQuizChecked
from shardwise.plans.named import audit_names, plan_path


def result(capsys, *args):
    code, out, err = run(capsys, *args, "--json")
    assert code == 0, err
    return json.loads(out)["result"]


def test_list_names_every_figure_and_plan(capsys):
    entries = result(capsys, "book", "list")["entries"]
    ids = [e["id"] for e in entries]
    assert ids == [*shardwise.book.entries(), *figure_ids(), *(f"audit:{n}" for n in audit_names())]
    fifth = result(capsys, "book", "list", "--chapter", "5")["entries"]
    figures = {e["id"] for e in fifth if e["kind"] == "figure"}
    assert figures == {i for i in figure_ids() if i.startswith("fig.5.")}
    machines = [e["id"] for e in entries if e["kind"] == "simulation"]
    assert machines == ["systolic", "hbm", "collective", "pipeline", "batching"]
    assert {e["chapter"] for e in fifth} == {"5"}
    code, out, _ = run(capsys, "book", "list", "--detail")
    assert code == 0
    assert all(i in out for i in ids)


def test_list_of_a_chapter_without_entries(capsys):
    code, out, err = run(capsys, "book", "list", "--chapter", "11")
    assert (code, out) == (2, "")
    assert "chapter '11' has nothing here; there are 1, 2, 3" in err


def test_figure_as_json_table_and_csv(capsys, tmp_path):
    found = result(capsys, "book", "figure", "fig.5.ratio_curves")
    assert found["readings"]["fsdp_tokens_per_chip"] == pytest.approx(850)
    assert found["x"] == {"label": "tokens per chip", "unit": "tokens", "log": True}
    path = tmp_path / "curves.csv"
    code, out, _ = run(capsys, "book", "figure", "fig.5.ratio_curves", "--csv", path)
    assert code == 0
    assert "mixed_tokens_per_chip   108.4" in out
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["series", "tokens per chip [tokens]", "T_math / T_comms"]
    assert len(rows) == sum(len(s["x"]) for s in found["series"])
    assert float(rows[0][2]) == found["series"][0]["y"][0]


@pytest.mark.parametrize("figure_id", ["fig.5.math_comms", "fig.gpu.ragged", "fig.gpu.ar_curve"])
def test_plot(capsys, tmp_path, figure_id):
    path = tmp_path / "figure.png"
    code, _, err = run(capsys, "book", "figure", figure_id, "--plot", path)
    assert code == 0, err
    assert path.stat().st_size > 5000


def test_refusals(capsys, tmp_path):
    code, out, err = run(capsys, "book", "figure", "fig.5.ratio")
    assert (code, out) == (2, "")
    assert "unknown figure 'fig.5.ratio'; did you mean" in err
    code, _, err = run(capsys, "book", "figure", "fig.gpu.ragged", "--plot", tmp_path / "a.gif")
    assert (code, "must end in .png or .svg" in err) == (2, True)


def test_help_loads_neither_jax_nor_matplotlib():
    said = "import sys\nfrom shardwise.apps.cli import main\ntry:\n    main(['book', 'list'])\n"
    said += "except SystemExit:\n    pass\n"
    said += "assert not {'jax', 'matplotlib', 'scipy'} & set(sys.modules), 'too much loaded'\n"
    subprocess.run([sys.executable, "-c", said], check=True, capture_output=True)


# The audit of plan show -------------------------------------------------------------------------


def test_show_an_audited_plan_by_name_and_by_path(capsys):
    by_name = result(capsys, "plan", "show", "audit:megatron-70b")
    by_path = result(capsys, "plan", "show", plan_path("audit:megatron-70b"))
    assert by_name["audit"] == by_path["audit"]
    assert by_name["measured"] == by_path["measured"]
    book = ("plan", "show", "audit:megatron-70b", "--constants", "book")
    audit = result(capsys, *book)["audit"]
    assert audit["compute_bound"] is True
    assert audit["tokens_per_chip"] == 2048
    assert [v["strategy"] for v in audit["verdicts"]] == ["data", "tensor", "stage"]
    assert audit["verdicts"][0]["rule_need"] == pytest.approx(1237.5)
    assert audit["verdicts"][0]["ok"] is True


def test_the_audit_is_printed(capsys):
    code, out, _ = run(capsys, "plan", "show", "audit:deepseek-v3-2048", "--book")
    assert code == 0
    table = out[out.index("book rule") :]
    assert "data            2  30,720" in table
    assert "expert         64   2,048" in table
    assert "no" in table.splitlines()[3].split()[-1]


def test_numbers_of_the_user_reach_the_audit(capsys):
    args = ("plan", "show", "audit:megatron-32b")
    assert result(capsys, *args)["audit"]["compute_bound"] is False
    slower = ("--set", "chip.peak_flops.bf16=8e14")
    assert result(capsys, *args, *slower)["audit"]["compute_bound"] is True


def test_a_config_beside_a_plan_is_found(capsys, tmp_path):
    source = plan_path("audit:megatron-16b")
    for path in (source, source.with_suffix(".json")):
        (tmp_path / path.name).write_text(path.read_text())
    found = result(capsys, "plan", "show", tmp_path / source.name)
    assert found["audit"]["tokens_per_chip"] == 4096


def test_an_unknown_audit_lists_the_others(capsys):
    code, out, err = run(capsys, "plan", "show", "audit:megatron-71b")
    assert (code, out) == (2, "")
    assert "unknown audited plan 'megatron-71b'; did you mean" in err
    assert "'megatron-70b'" in err


# Numbers ----------------------------------------------------------------------------------------


def test_show_has_inputs_steps_and_both_editions(capsys):
    found = result(capsys, "book", "show", "5.3.3.limit")
    assert found["answer"] == pytest.approx(235.18880208)
    assert found["book"] == {"latest": 235, "first": 940}
    assert found["agrees"] is True
    assert found["erratum"] is False
    assert {i["name"]: (i["value"], i["unit"]) for i in found["inputs"]}["chip"] == ("v5p", "chip")
    assert [s["function"] for s in found["steps"]] == [
        "shardwise.book.torus_alpha",
        "shardwise.book.mixed_limit",
    ]
    assert found["steps"][1]["arguments"]["alpha"] == 2550
    code, out, _ = run(capsys, "book", "show", "5.3.3.limit", "--detail")
    assert code == 0
    assert "235 (latest edition), which agrees" in out
    assert 'limit = rule("mixed_limit")(alpha=alpha' in out


def test_show_with_other_numbers(capsys):
    found = result(capsys, "book", "show", "5.3.3.limit", "--set", "F=30000", "--set", "chip=v5e")
    alpha = 1.97e14 / 9e10
    assert found["answer"] == pytest.approx(alpha**2 / (2 * 30000))
    assert found["agrees"] is None
    several = result(capsys, "book", "show", "table.7.mha.kv", "--set", "batch=2,4")
    assert several["answer"] == [13.4e9, 26.8e9]


def test_other_inputs_than_the_question_states_are_named(capsys):
    _, out, _ = run(capsys, "book", "show", "1.1.3", "--set", "peak=1e14")
    assert "of other inputs than the question above states: peak" in out
    assert "(latest edition), of its own inputs" in out
    _, out, _ = run(capsys, "book", "show", "1.1.3")
    assert "inputs than" not in out
    assert "own inputs" not in out


def test_where_each_input_comes_from(capsys):
    code, out, _ = run(capsys, "book", "show", "1.1.3", "--set", "hbm_bw=9e11", "-v")
    assert code == 0
    lines = [line.split() for line in out[out.index("comes from") :].splitlines()]
    assert ["hbm_bw", "900000000000.0", "--set"] in lines
    assert ["dtype", "int8", "the", "book"] in lines


def test_a_question_and_its_answer_are_fields():
    asked, checked = sw.book_quiz("1.1.3"), sw.book_quiz("1.1.3", answers=240.2)
    assert isinstance(asked, BookQuiz)
    assert isinstance(checked, BookQuizChecked)
    assert (asked.numbers, checked.right) == (1, [True])
    shown = sw.book_show("1.1.3")
    assert checked.answer == shown.answer
    assert [step.name for step in shown.steps] == ["intensity", "batch"]


@pytest.mark.parametrize(
    ("entry_id", "word"),
    [("5.3.3.step", "310 ms"), ("5.3.3.step", "0.3105"), ("4.1.3", "512KiB"),
     ("gpu.quiz2.q2", "3.6TB/s"), ("deck.pp_bubble", "27.3 %")],
)  # fmt: skip
def test_an_answer_may_have_a_unit(entry_id, word):
    checked = sw.book_quiz(entry_id, answers=word)
    assert checked.right == [True], (checked.given, checked.answer)


def test_an_answer_in_another_unit_is_refused(capsys):
    code, _, said = run(capsys, "book", "quiz", "5.3.3.step", "--answer", "3 kg")
    assert code == 2
    assert "--answer is '3 kg'; it is a number in s, or one with its unit such as 310 ms" in said


def test_a_question_says_how_many_numbers_it_wants(capsys):
    code, out, _ = run(capsys, "book", "quiz", "5.1")
    assert code == 0
    assert "Answer in params. Give 4 numbers, in the order of the question." in out
    assert "book quiz 5.1 --answer NUMBER,NUMBER,NUMBER,NUMBER" in out
    code, _, said = run(capsys, "book", "quiz", "5.1", "--answer", "13e9")
    assert code == 2
    assert "--answer has 1 of the 4 numbers that '5.1' asks for, in this order" in said
    assert "Parameters of LLaMA-2 13B: MLPs, attention, vocabulary and all." in said


@pytest.mark.parametrize(
    ("question", "parts"),
    [("5.4", "5.4.1M, 5.4.10M"), ("5.2", "5.2.state"), ("5.3.2", "5.3.2.mem")],
)
def test_a_question_of_several_parts_names_them(capsys, question, parts):
    code, _, said = run(capsys, "book", "quiz", question)
    assert code == 2
    assert said.endswith(f"'{question}' of the book has parts; ask for one of them: {parts}\n")


def test_nothing_is_drawn_that_nobody_can_answer():
    entries = shardwise.book.entries()
    left_out = {name for name, one in entries.items() if not one.can_be_asked}
    assert {"10.3.seed", "9.mem"} <= left_out
    drawn = {sw.book_quiz(chapter="10", seed=seed).id for seed in range(40)}
    assert drawn
    assert not drawn & left_out


def test_commands_of_a_number_give_its_steps(capsys):
    """Each printed command of a step gives what the step gives."""
    import shlex

    for entry_id in ("8.gen_tp", "2.5.2", "gpu.quiz2.q3", "4.3", "3.6.c", "pop.3.1"):
        found = result(capsys, "book", "show", entry_id)
        values = {s["function"].rpartition(".")[2]: s["value"] for s in found["steps"]}
        assert found["commands"]
        for text in found["commands"]:
            words = shlex.split(text)[1:]
            if words.count("--set") and list(values).count(words[2]) == 1:
                given = result(capsys, *words)["value"]
                steps = [s["value"] for s in found["steps"] if s["function"].endswith(words[2])]
                assert given in steps


@pytest.mark.parametrize("entry_id", ["1.1.3", "5.3.3.limit", "8.step_4x2", "gpu.quiz5.q2.3"])
def test_python_and_command_line_agree(capsys, entry_id):
    shown = result(capsys, "book", "show", entry_id)
    assert shown["answer"] == shardwise.book.book_answer(entry_id).value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "5.3.3.limi"), "did you mean '5.3.3.limit'"),
        (("show", "1.1.3", "--set", "peak"), "--set is 'peak'; it is NAME=VALUE"),
        (
            ("show", "1.1.3", "--set", "peak=1", "--set", "peak=2"),
            "--set gives 'peak' two values, 1 and 2",
        ),
        (("show", "1.1.3", "--set", "peak=inf"), "'inf' is not a number"),
        (("show", "1.1.3", "--set", "peak=fast"), "peak is 'fast'; it is a number in FLOP/s"),
        (("show", "1.1.3", "--set", "hbm_bw=0"), "critical_intensity has no answer"),
        (("show", "1.1.3", "--edition", "second"), "unknown edition 'second'"),
        (("show", "1.1.3", "--constants", "mine"), "unknown constants 'mine'"),
        (("rule", "mixed_limi"), "did you mean 'mixed_limit'"),
        (("rule", "--on", "v5p"), "--on is for one rule"),
        (
            ("rule", "six_nd", "--on", "v5p"),
            "--on would do nothing: six_nd takes",
        ),
        (("rule", "mixed_limit", "--set", "alpha=1"), "mixed_limit needs d_ff"),
        (("rule", "x_opt", "--sweep", "d_ff=1:2"), "it is NAME=FIRST:LAST:POINTS"),
        (("rule", "x_opt", "--sweep", "d_ff=2:1:3"), "FIRST is above 0 and below LAST"),
        (("rule", "x_opt", "--plot", "a.png"), "--plot draws a sweep"),
        (("show", "1.1.3", "--set", "a=1", "b=2"), "write an option once for each value"),
        (("quiz", "--chapter", "99"), "chapter '99' has no questions"),
        (("quiz", "5.1", "--answer", "1"), "--answer has 1 of the 4 numbers that '5.1' asks for"),
        (("quiz", "1.1.3", "--answer", "many"), "--answer is 'many'; it is a number"),
        (("quiz", "head.7.appC.buffer", "--answer", "1 s"), "it is a number in bytes"),
        (("errata", "--chapter", "11"), "chapter '11' has no numbers"),
    ],
)
def test_refused(capsys, words, message):
    code, out, err = run(capsys, "book", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_the_first_edition(capsys):
    first = result(capsys, "book", "show", "1.1.3", "--edition", "first")
    assert (round(first["answer"]), first["constants"], first["agrees"]) == (243, "seed", True)
    added = result(
        capsys, "book", "rule", "mixed_limit", "--on", "v5p", "--set", "d_ff=32768",
        "--edition", "first",
    )  # fmt: skip
    assert added["value"] == pytest.approx(396.881103515625)


# Rules ------------------------------------------------------------------------------------------


def test_rules_are_listed_and_described(capsys):
    rows = result(capsys, "book", "rule")["rules"]
    assert [row["name"] for row in rows] == list(shardwise.book.RULES)
    found = result(capsys, "book", "rule", "topology_table")
    assert [a["name"] for a in found["arguments"]] == ["chip", "param_bytes", "kv_bytes"]
    assert "value" not in found


@pytest.mark.parametrize("name", shardwise.book.RULES)
def test_every_rule_describes_itself(name):
    """With its formula and what it takes, whatever that is."""
    found = shardwise.book_rule(name)
    assert found.result["formula"] in str(found)


def test_a_rule_on_a_chip_with_lists_and_a_sweep(capsys, tmp_path):
    found = result(capsys, "book", "rule", "tensor_limit", "--on", "v5p", "--set", "d_ff=2550,5100")
    assert found["value"] == [1, 2]
    node = result(capsys, "book", "rule", "data_limit", "--on", "h100")
    assert node["value"] == 2200
    words = ("book", "rule", "mixed_limit", "--on", "v5p", "--sweep", "d_ff=8192:65536:4")
    rows = result(capsys, *words)["rows"]
    assert [row["d_ff"] for row in rows] == [8192, 16384, 32768, 65536]
    assert rows[2]["mixed_limit"] == pytest.approx(99.22027587890625)
    picture, table = tmp_path / "sweep.png", tmp_path / "sweep.csv"
    code, _, err = run(capsys, *words, "--plot", picture, "--csv", table)
    assert code == 0, err
    assert picture.stat().st_size > 5000
    with table.open(newline="") as file:
        assert next(csv.reader(file)) == ["d_ff", "mixed_limit"]


def test_tables_of_the_serving_chapter(capsys):
    found = result(
        capsys, "book", "rule", "topology_table", "--on", "v5e",
        "--set", "param_bytes=70e9", "--set", "kv_bytes=1342177280",
    )  # fmt: skip
    first = found["value"][0]
    assert (first["chips"], first["free_bytes"], first["caches"]) == (8, 58e9, 43)


# Quiz and errata --------------------------------------------------------------------------------


def test_a_quiz_asks_checks_and_explains(capsys):
    asked = result(capsys, "book", "quiz", "1.1.3")
    assert "answer" not in asked
    assert asked["unit"] == "tokens"
    right = result(capsys, "book", "quiz", "1.1.3", "--answer", "241")
    assert right["right"] == [True]
    wrong = result(capsys, "book", "quiz", "1.1.3", "--answer", "300")
    assert wrong["right"] == [False]
    assert wrong["steps"][0]["formula"] == "C / W"
    code, out, _ = run(capsys, "book", "quiz", "1.1.3", "--answer", "300")
    assert code == 0
    assert "wrong  300; it is 240.244" in out


def test_the_tables_of_a_quiz_are_as_narrow_as_a_page(capsys):
    code, out, _ = run(capsys, "book", "quiz", "gpu.quiz4.q4", "--answer", "1")
    assert code == 0
    assert max(map(len, out.splitlines())) <= WIDTH


def test_a_quiz_at_a_terminal_asks(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.prompt", lambda text: "240")
    code, out, err = run(capsys, "book", "quiz", "1.1.3")
    assert code == 0, err
    assert "Answer in tokens." in out
    assert "right  240; it is 240.244" in out


def test_a_quiz_is_drawn_by_seed_and_chapter(capsys):
    drawn = [result(capsys, "book", "quiz", "--chapter", "6", "--seed", s)["id"] for s in "1123"]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1
    assert {shardwise.book.entry(i).chapter for i in drawn} == {"6"}


def test_errata_are_computed(capsys):
    found = result(capsys, "book", "errata")
    wrong = {e.id for e in shardwise.book.entries().values() if e.status == "book_wrong"}
    assert {row["id"] for row in found["errata"]} == wrong
    by = {row["id"]: row for row in found["errata"]}
    assert by["6.q4.days"]["computed"] == pytest.approx(4.7792459692)
    assert by["6.q4.days"]["printed"] == 4
    assert all(row["note"] for row in found["errata"])
    first = {row["id"] for row in result(capsys, "book", "errata", "--edition", "first")["errata"]}
    assert {"7.7.crit", "8.double_bf16", "head.4.gemma27"} <= first
    assert "1.1.3" not in first
