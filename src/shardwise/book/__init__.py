"""The rules and numbers of the book, each rule once. Nothing here plans or measures.

`rules/` holds its closed rules of thumb and the audit of a plan by them, `registry.py` every rule
by name with its formula, unit and source, `arguments.py` reads and checks what a rule is given.
`questions.py` has the book's numbers (`data/entries/`), each answered live by those rules,
`seed.py` chips with the constants of an edition. `thresholds.py` sets the rules beside a searched
plan. `figures.py`, `roofline_figures.py` and `serving_figures.py` have the data of the book's
figures, `megatron.py` one with predictions beside, `simulators/` its machines step by step,
`figure_index.py` all of them by id with the settings that they take. Screens ask for these beside
an answer: no answer needs them. Read `registry.py` first.

Every rule is a function here, under its own name (`shardwise.book.mixed_limit`), and all load on
first use.

>>> from shardwise.book import book_answer, mixed_limit, rule
>>> round(mixed_limit(2550, 13824), 1), rule("mixed_limit").formula
(235.2, 'alpha^2 / (M_X M_Y F)')
>>> book_answer("5.3.3.limit", set={"F": 30000}).value
108.375
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwise.book.figure_index import figure, figure_ids, figure_settings
    from shardwise.book.questions import BookAnswer, BookEntry, book_answer, entries, entry
    from shardwise.book.registry import RULES, ClosedForm, rule
    from shardwise.book.seed import book_chip, book_slice

_HOMES = {
    "BookAnswer": "questions",
    "BookEntry": "questions",
    "RULES": "registry",
    "ClosedForm": "registry",
    "book_answer": "questions",
    "book_chip": "seed",
    "book_slice": "seed",
    "entries": "questions",
    "entry": "questions",
    "figure": "figure_index",
    "figure_ids": "figure_index",
    "figure_settings": "figure_index",
    "rule": "registry",
}
"""Public name that is no rule -> its module."""
_MODULES = (
    *("figure_index", "figures", "megatron", "questions", "registry", "roofline_figures"),
    *("rules", "seed", "serving_figures", "simulators", "thresholds"),
)


def __getattr__(name: str) -> Any:
    """A rule, or one of the few names around them, loaded on first use."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"shardwise.book.{_HOMES[name]}"), name)
    if not name.startswith("_") and name not in _MODULES:
        rules = importlib.import_module("shardwise.book.registry").RULES
        if name in rules:
            return rules[name].function
    raise AttributeError(f"module 'shardwise.book' has no attribute '{name}'")


def __dir__() -> list[str]:
    """The public names, every rule among them."""
    rules = importlib.import_module("shardwise.book.registry").RULES
    return sorted([*__all__, *rules])


__all__ = [
    "RULES",
    "BookAnswer",
    "BookEntry",
    "ClosedForm",
    "book_answer",
    "book_chip",
    "book_slice",
    "entries",
    "entry",
    "figure",
    "figure_ids",
    "figure_settings",
    "rule",
]
