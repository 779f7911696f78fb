"""Every number of the book is answered live by public rules, at its inputs and at others."""

import json
from pathlib import Path

import pytest

import shardwise.book
from book.oracle import ENTRIES, check
from shardwise.book import RULES, book_answer, entries, rule
from shardwise.book.questions import agrees
from shardwise.errors import BadRequest

COUNT = 278


def numeric_inputs():
    return [
        (i, name) for i, e in entries().items() for name, one in e.inputs.items() if one.numeric
    ]


def more(value):
    """Ten percent more; of a whole number the next that is as much more."""
    if isinstance(value, list):
        return [more(item) for item in value]
    return max(value + 1, round(1.1 * value)) if isinstance(value, int) else 1.1 * value


def run(text):
    """What the printed Python gives."""
    names = {}
    exec(text, names)
    return names["answer"]


def flat(values):
    try:
        return [n for value in values for n in flat(value)]
    except TypeError:
        return [float(values)]


def test_there_are_as_many_as_the_oracle_has():
    assert len(entries()) == COUNT
    assert set(entries()) == set(ENTRIES)


@pytest.mark.parametrize("chapter", sorted({e.chapter for e in entries().values()}))
def test_every_answer_is_the_correct_value(chapter):
    """Against the tests' own oracle, which no answer reads."""
    for entry_id, asked in entries().items():
        if asked.chapter == chapter:
            wanted = {**ENTRIES[entry_id], "abs_tol": asked.abs_tol}
            check(wanted, book_answer(entry_id).value)


@pytest.mark.parametrize("entry_id", entries())
def test_the_printed_python_gives_the_answer(entry_id):
    found = book_answer(entry_id)
    assert flat(run(found.python())) == [float(n) for n in found.values]


@pytest.mark.parametrize("entry_id", entries())
def test_a_changed_input_gives_what_the_direct_call_gives(entry_id):
    """Or both refuse it. Each input matters: an entry has none that no step takes."""
    asked = entries()[entry_id]
    for name, one in asked.inputs.items():
        if not one.numeric:
            continue
        given = {name: more(one.value)}
        try:
            found = book_answer(entry_id, set=given)
        except BadRequest:
            text = book_answer(entry_id).python()
            text = text.replace(f"\n{name} = {one.value!r}\n", f"\n{name} = {given[name]!r}\n")
            with pytest.raises(BadRequest):
                run(text)
        else:
            assert flat(run(found.python())) == [float(n) for n in found.values]


def test_most_numeric_inputs_take_ten_percent_more():
    """Whole degrees that must divide something refuse them; nothing else does."""
    refused = []
    for entry_id, name in numeric_inputs():
        one = entries()[entry_id].inputs[name]
        try:
            book_answer(entry_id, set={name: more(one.value)})
        except BadRequest:
            refused.append((entry_id, name, one.unit))
    allowed = {"degree", "chips", "elements", "bytes", "cores", "columns", "axes", "position"}
    assert {unit for _, _, unit in refused} <= allowed, refused
    assert len(refused) < 50, refused


def used(value):
    if isinstance(value, str):
        return {value[1:].split(".")[0]} if value.startswith("$") else set()
    if isinstance(value, list):
        return {name for item in value for name in used(item)}
    return {n for item in value.values() for n in used(item)} if isinstance(value, dict) else set()


@pytest.mark.parametrize("entry_id", entries())
def test_every_input_and_step_is_used(entry_id):
    asked = entries()[entry_id]
    taken = {n for step in asked.steps for n in used(dict(step.arguments))}
    taken |= used(list(asked.answer))
    assert set(asked.inputs) | {step.name for step in asked.steps} <= taken
    assert all(step.rule in RULES for step in asked.steps)


def test_the_data_is_data():
    """No step names a module or an expression, and no question is the oracle's sentence."""
    folder = Path(shardwise.book.__file__).parent / "data" / "entries"
    for path in folder.glob("*.json"):
        for record in json.loads(path.read_text()):
            assert record["asks"] != ENTRIES[record["id"]]["question"]
            for name, called, arguments in record["steps"]:
                assert name.isidentifier()
                assert called.isidentifier()
                assert isinstance(arguments, dict)


def test_units_go_with_numbers():
    for asked in entries().values():
        if not isinstance(asked.unit, str):
            assert len(asked.unit) == len(book_answer(asked.id).values), asked.id


# Rules ------------------------------------------------------------------------------------------


def test_each_rule_is_exported_once():
    for name, one in RULES.items():
        assert getattr(shardwise.book, name) is one.function
        assert one.about
        assert one.formula
        assert one.source
    functions = [one.function for one in RULES.values()]
    assert len(set(functions)) == len(functions)
    assert set(RULES) < set(dir(shardwise.book))


def test_rules_take_lists_and_names():
    assert list(rule("tensor_limit")(alpha=2550, d_ff=[25500, 51000])) == [10, 20]
    assert rule("torus_alpha")(chip="v5p", axes=3) == 850
    assert rule("matmul_intensity")(m=1, k=4, n=4, elements="bf16,int8,bf16") == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"alpha": 1}, "tensor_limit needs d_ff"),
        ({"alpha": 1, "d_f": 1}, "did you mean 'd_ff'"),
        ({"alpha": 0, "d_ff": 1}, "tensor_limit has no answer for alpha=0, d_ff=1"),
    ],
)
def test_a_rule_says_what_is_wrong(given, message):
    with pytest.raises(BadRequest, match=message):
        rule("tensor_limit")(**given)


def test_bad_questions():
    with pytest.raises(BadRequest, match=r"did you mean '5\.3\.3\.limit'"):
        book_answer("5.3.3.limi")
    with pytest.raises(BadRequest, match=r"unknown input of '5\.3\.3\.limit' 'G'"):
        book_answer("5.3.3.limit", set={"G": 1})
    with pytest.raises(BadRequest, match="F is 'wide'; it is a number in elements"):
        book_answer("5.3.3.limit", set={"F": "wide"})
    with pytest.raises(BadRequest, match="unknown chip 'v5z'"):
        book_answer("5.3.3.limit", set={"chip": "v5z"})


# Editions ---------------------------------------------------------------------------------------


def test_the_first_edition_has_its_own_constants():
    """v5e's HBM at 8.1e11 bytes/s: 243 tokens instead of 240 (errata 0.3, 1.2)."""
    latest, first = book_answer("1.1.3"), book_answer("1.1.3", edition="first")
    assert round(latest.value) == 240
    assert round(first.value) == first.entry.printed("first") == 243
    seed = book_answer("1.1.3", constants="seed")
    assert seed.value == first.value
    assert agrees(book_answer("2.4.1.crit", edition="first").value, 262.7, 1e-3)


def test_chips_of_the_first_edition():
    assert round(book_answer("rule.7.bcrit", constants="seed").value[0]) == 243
    assert round(book_answer("rule.7.bcrit").value[0]) == 240
