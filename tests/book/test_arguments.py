"""Every rule with every argument set to what nobody should: a value or one message, never a
traceback, a negative count or an unknown word."""

import warnings
from inspect import Parameter
from typing import Any, Literal, get_args, get_origin

import pytest
from tests.apps.commands import document, refused, run

from shardwise.book.arguments import SIGNED
from shardwise.book.questions import book_answer, entries, plain
from shardwise.book.registry import RULES
from shardwise.errors import BadRequest

NUMBERS = (-4, -1e-300, 0, 2.5, 1e18, 1e300, 10**400, float("nan"), float("inf"))
TEXTS = ("foo", "", "\0x", "h100", "v5p:4x4x4", "X=4", "bf16")
OTHERS = (True, None, [], [1, -1], [0], ["foo"], [[1]], {"a": 1}, {"a": -1})
SOME = {"Chip": "h100", "Slice": "v5e:4x4", "Mesh": "X=4,Y=4", "Layout": "A[I_X, J]"}
SOME |= {"ElementBytes": "bf16", "ModelConfig": "llama-3.2-1b", "TreeLevel": "h100:node"}
SOME |= {"str": "bf16", "bool": True}


def some(parameter: Parameter) -> Any:
    """A value that a rule may take."""
    if parameter.default is not Parameter.empty:
        return parameter.default
    kind = parameter.annotation
    origin = get_origin(kind)
    if origin is Literal:
        return get_args(kind)[0]
    if origin is dict:
        return {"I": 8}
    if origin is not None and parameter.name in ("shape", "wraps", "tile", "levels"):
        return {"tile": [8, 8, 8], "wraps": [True, True]}.get(parameter.name, [4, 4])
    return [4, 4] if origin is not None else SOME.get(getattr(kind, "__name__", ""), 8)


@pytest.fixture(scope="module")
def calls() -> dict[str, dict[str, Any]]:
    """Of each rule arguments that it takes: those of an answer of the book, where there is one."""
    found = {n: {p.name: some(p) for p in r.parameters.values()} for n, r in RULES.items()}
    for entry in entries():
        found |= {w.step.rule: dict(w.given) for w in book_answer(entry).steps}
    return found


@pytest.mark.parametrize(
    "hostile",
    [
        NUMBERS[:1],
        TEXTS[:1],
        OTHERS[:4],
        *(pytest.param(h, marks=pytest.mark.slow) for h in (NUMBERS, TEXTS, OTHERS)),
    ],
    ids=["negative", "unknown", "odd", "numbers", "texts", "others"],
)
def test_every_rule_with_every_argument_hostile(calls, hostile):
    for name, one in RULES.items():
        for parameter in one.parameters.values():
            for value in hostile:
                given = {**calls[name], parameter.name: value}
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("error")
                        answer = plain(one(**given))
                except BadRequest:
                    continue
                where = f"{name} {parameter.name}={value} gave {answer}"
                number = isinstance(value, int | float) and value is not parameter.default
                assert not (number and not value >= 0 and parameter.name not in SIGNED), where
                assert value not in TEXTS[:3], where


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fleet --on h100 --set chips=-4", "chips is -4; it must be a whole number of at least 1"),
        ("fleet --on h100 --set chips=2.5", "chips is 2.5; it must be a whole number"),
        (
            "slice_seconds --set kind=all_gather --set bytes=1 --set slice=v5e:4x4 --set mode=foo",
            "unknown mode 'foo'; known: exact, asymptotic, bound",
        ),
        (
            "step_seconds --set batch=1 --set param_bytes=1 --set kv_bytes=1 --set bandwidth=1",
            "step_seconds needs params, peak",
        ),
        (
            "step_seconds --on v5e --set batch=1 --set param_bytes=1e9 --set kv_bytes=1e6",
            "step_seconds needs params",
        ),
        ("mlp_traffic --set strategy=fsdp --set d_model=8", "depend on d_ff; give each"),
        ("tree_seconds --set bytes=1e9 --set levels=v5p", "has no switched network"),
        ("tree_seconds --set bytes=1e9 --set levels=1", "a level of a chip's switches"),
        ("bisection_oneway --set level=h100:nodes", "did you mean 'node'"),
        ("largest_replicated --on v5e --set state=3", "what `shardwise.book.state_bytes` gives"),
        ("exchange_gain --set chips=0,0", "chips is 0; it must be a whole number of at least 1"),
        ("matmul_intensity --set m=0,0 --set k=0 --set n=0 --set elements=bf16", "no answer for"),
        ("training_flops --set cfg=llama-3.2-1b --set component=foo", "unknown component 'foo'"),
    ],
)
def test_refused(capsys, line, said):
    assert said in refused(capsys, ["book", "rule", *line.split()])


def value(capsys, line):
    return document(capsys, "book", "rule", *line.split())["result"]["value"]


def test_the_switches_of_a_chip_are_named_by_it(capsys):
    assert len(value(capsys, "tree_seconds --set bytes=1e9 --set levels=h100")) == 3
    assert value(capsys, "bisection_oneway --set level=h100:node") == 1.8e12


def test_a_sweep_of_things_has_whole_ones(capsys):
    line = "book rule gather_seconds --set bytes=1e9 --set bandwidth=9e10 --sweep axes=1:3:3"
    assert [row["axes"] for row in document(capsys, *line.split())["result"]["rows"]] == [1, 2, 3]
    line = "book rule fleet --on v5e --sweep chips=1:4:20"
    assert [row["chips"] for row in document(capsys, *line.split())["result"]["rows"]] == [
        1,
        2,
        3,
        4,
    ]


def test_flops_that_nothing_is_known_of_are_not_zero(capsys):
    line = "book rule mlp_traffic --set strategy=fsdp --set d_model=8 --set d_ff=32"
    found = document(capsys, *line.split())["result"]["value"]
    assert found == {"flops": None, "weights": 2 * 2 * 8 * 32, "activations": 0}
    assert "not given" in run(capsys, *line.split())[1]


@pytest.mark.parametrize("chip", ["v5p", "h100"])
def test_names_that_the_help_of_a_chips_numbers_has(capsys, chip):
    """Of a torus and of switches."""
    about = RULES["chip_number"].about
    named = {"v5p": "network.link_oneway", "h100": "network.chip_oneway"}[chip]
    assert named in about
    line = f"book rule chip_number --set chip={chip} --set name={named}"
    assert document(capsys, *line.split())["result"]["value"] > 0


# What agrees --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "off"), [("6.q5", "off by 12.7 %"), ("8.gen_tp", "off by 13.9 %")]
)
def test_only_what_is_printed_agrees(capsys, entry, off):
    assert document(capsys, "book", "show", entry)["result"]["agrees"] is False
    out = run(capsys, "book", "show", entry)[1]
    assert off in out
    assert "agrees" not in out


def test_what_agrees_lies_within_the_digits_that_are_printed():
    """1 % at most where two digits or more are printed."""
    from shardwise.book.questions import off_by, rounds_to

    for name, entry in entries().items():
        if entry.book is None:
            continue
        got = book_answer(name).value
        printed = entry.book if isinstance(entry.book, list) else [entry.book]
        digits = min(len(f"{p:.12g}".split("e")[0].replace(".", "").strip("0")) for p in printed)
        if rounds_to(got, entry.book) and digits > 1:
            assert off_by(got, entry.book) < 0.05, name


def test_a_quiz_does_not_take_what_the_book_prints_wrongly(capsys):
    """Its tolerance was that of the book: a third for some."""
    found = document(capsys, "book", "quiz", "6.q5", "--answer", "2.4e9,8e9")["result"]
    assert found["right"] == [True, False]


def test_an_erratum_stands_once(capsys):
    rows = document(capsys, "book", "errata")["result"]["errata"]
    assert [row["id"] for row in rows].count("code.8.max_batch") == 1


def test_an_audited_plan_stands_at_its_chapter(capsys):
    found = document(capsys, "book", "list")["result"]["entries"]
    chapters = {e["id"]: e["chapter"] for e in found if e["kind"] == "plan"}
    assert chapters["audit:llama-3-70b-served"] == "8"
    assert chapters["audit:megatron-32b"] == "12"
    assert not any("chapter:" in e["source"] + e["about"] for e in found)
