"""Exercises and steps of an answer as a reader follows them: inputs, substitution, result.

`exercises` folds one answer under its question, `steps` shows the steps of one in the open,
`formulas` has rules with each argument named. Cells get them from `cells.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from typing import Any

import mathematics

import shardwise as sw
from shardwise.book import BookAnswer, BookEntry, book_answer, entry, rule
from shardwise.book.questions import agrees

SHOWN = 8
"""Values of a list or a record that a cell of a table has room for."""
WORDS = ("dtype", "count", "chip", "name")
"""Units that say what a value is, and not how it is measured."""


def exercise(listed: Mapping[str, Any]) -> str:
    """One row of `book list` folded: its question and answer, then inputs and each step.

    Raises RuntimeError for one that is not what was worked out independently of these rules.
    """
    result = sw.book_show(listed["id"]).result
    known, units = entry(result["id"]), result["unit"]
    if not agrees(result["answer"], known.correct, known.tolerance, known.abs_tol):
        raise RuntimeError(f"{known.id} is {result['answer']}, and should be {known.correct}")
    gives = values(result["answer"], units)
    mark = " (erratum)" if result["erratum"] else " (differs)" if result["agrees"] is False else ""
    title = f"<code>{known.id}</code> {escape(known.asks)} <b>{escape(gives)}</b>{mark}"
    about = [f"<p>{escape(text)}</p>" for text in _beside_the_book(result)]
    body = given(known) + worked(book_answer(known.id)) + "".join(about)
    asked = f'shardwise book show {known.id}</code> or <code>sw.book_show("{known.id}")'
    return f"<details><summary>{title}</summary>{body}<p>Ask it: <code>{asked}</code></p></details>"


def given(known: BookEntry) -> str:
    """The inputs of an answer, as a list."""
    inputs = [f"{i.name} = {values(i.value, i.unit)}" for i in known.inputs.values()]
    items = "".join(f"<li>{escape(text)}</li>" for text in inputs)
    return f'Given:<ul class="given">{items}</ul>' if items else ""


def worked(found: BookAnswer) -> str:
    """A table of the steps: the rule, its formula, the numbers that it took and what it gave."""
    rows = [
        f"<tr><td>{escape(w.step.name)}</td><td>{set_formula(w.step.rule)}</td>"
        f"<td><code>{escape(call(w.step.rule, w.given))}</code></td>"
        f"<td>{escape(values(w.value, rule(w.step.rule).unit))}</td></tr>"
        for w in found.steps
    ]
    heads = "".join(f"<th>{head}</th>" for head in ("step", "formula", "substituted", "gives"))
    return f'<table class="worked"><tr>{heads}</tr>{"".join(rows)}</table>'


def set_formula(name: str) -> str:
    """The formula of a rule, to be set; words stay words."""
    made = mathematics.tex(rule(name).formula)
    words = made.startswith(r"\text{") and made.endswith("}") and "}" not in made[:-1]
    return escape(rule(name).formula) if words else mathematics.mark(made)


def arguments(name: str) -> Iterator[tuple[str, str, str]]:
    """Each argument of a rule: its name, its unit, and its default, if it has one."""
    units = rule(name).units()
    for parameter in rule(name).parameters.values():
        default = "needed" if parameter.default is parameter.empty else brief(parameter.default)
        yield parameter.name, units[parameter.name], default


def brief(value: Any) -> str:
    """A value as a reader says it: a chip by its name, a record by its numbers."""
    if callable(value):
        return "a function"
    if isinstance(value, Mapping):
        return _listed([f"{name} {brief(item)}" for name, item in value.items()])
    if isinstance(value, list | tuple) or type(value).__name__ == "ndarray":
        if len(value) > 1 and is_dataclass(value[0]):
            return f"{brief(value[0])}; and {len(value) - 1} more"
        return _listed([brief(item) for item in value])
    if hasattr(value, "d_model") and hasattr(value, "pattern"):
        return f"model of {len(value.pattern)} layers, D = {number(value.d_model)}"
    if hasattr(value, "id"):
        return str(value.id)
    if is_dataclass(value):
        parts = ((f.name, getattr(value, f.name)) for f in fields(value) if f.name != "name")
        plain = [f"{name} {brief(part)}" for name, part in parts if _plain(part)]
        return _listed(plain) or type(value).__name__
    return number(value)


def number(value: Any) -> str:
    """A number in six digits, thousands with commas where it is whole and short enough."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e7:
        return f"{int(value):,}"
    return f"{value:.6g}"


def values(value: Any, unit: str | Sequence[str] = "") -> str:
    """A value, or several, with their unit or units."""
    if unit in WORDS:
        unit = ""
    one = isinstance(unit, str) or len({*unit}) < 2
    if one or not isinstance(value, list | tuple):
        said = unit if isinstance(unit, str) else (unit[0] if unit else "")
        return f"{brief(value)} {said}".strip()
    units = [*unit, *[unit[-1]] * len(value)]
    return "; ".join(f"{brief(v)} {u}" for v, u in zip(value, units, strict=False))


def _plain(value: Any) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool) and value != ""


def _listed(parts: Sequence[str]) -> str:
    more = f"; {len(parts) - SHOWN} more" if len(parts) > SHOWN else ""
    return "; ".join(parts[:SHOWN]) + more


def call(name: str, given: Mapping[str, Any]) -> str:
    """A rule with the numbers that it takes."""
    return f"{name}({', '.join(f'{key}: {brief(value)}' for key, value in given.items())})"


def _beside_the_book(result: Mapping[str, Any]) -> Iterator[str]:
    latest, first = result["book"]["latest"], result["book"]["first"]
    if latest is None:
        yield "The book prints no number."
    else:
        verdict = "which agrees" if result["agrees"] else "which differs"
        if result["erratum"]:
            verdict = "an erratum"
        yield f"The book prints {values(latest, result['unit'])}, {verdict}."
    if first != latest:
        yield f"Its first edition printed {values(first, result['unit'])}."
    if result["note"]:
        yield result["note"]
