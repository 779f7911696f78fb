"""Every rule of the book by name: its function, its formula, its unit and its place in the book.

`rule("mixed_limit")` finds one and calls it with plain values: a chip by its name, a mesh as
degrees by axis, element sizes as dtypes; numbers may be lists. `data/rules/rules.csv` has a row
for each; `shardwise.book` exports the functions themselves, which take the values of the library.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from inspect import Parameter, getdoc, signature
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.book.arguments import read_argument
from shardwise.boundary import read_table
from shardwise.errors import BadRequest, entry_of, shown, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForm:
    """A public function of the book with its formula, the unit of its answer and its source."""

    function: Callable[..., Any]
    formula: str
    unit: str
    source: str

    @property
    def name(self) -> str:
        """What `rule` and `shardwise book rule` call it."""
        return self.function.__name__

    @property
    def about(self) -> str:
        """Its docstring's first paragraph, on one line."""
        return " ".join((getdoc(self.function) or "").split("\n\n")[0].split())

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """What it takes."""
        return signature(self.function).parameters

    def units(self) -> dict[str, str]:
        """The unit of each argument; empty where it has none."""
        return {name: UNITS.get(name, "") for name in self.parameters}

    def __call__(self, **given: Any) -> Any:
        """Its answer for plain values. Raises BadRequest for an argument that it does not take,
        for one that is missing, and for a value that it refuses."""
        self._check(given)
        parameters = self.parameters
        try:
            with np.errstate(all="ignore"):
                read = {name: read_argument(parameters[name], v) for name, v in given.items()}
                found = self.function(**read)
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise self._unanswered(given, str(error)) from None
        if _undefined(found):
            raise self._unanswered(given, "it divides nothing by nothing, or has no solution")
        return found

    def _unanswered(self, given: Mapping[str, object], why: str) -> BadRequest:
        values = ", ".join(f"{n}={shown(v)}" for n, v in given.items())
        return BadRequest(f"{self.name} has no answer for {values}: {why}")

    def _check(self, given: Collection[str]) -> None:
        for name in given:
            if name not in self.parameters:
                raise unknown(f"argument of {self.name}", name, self.parameters)
        lacking = [
            name
            for name, parameter in self.parameters.items()
            if parameter.default is Parameter.empty and name not in given
        ]
        if lacking:
            raise BadRequest(
                f"{self.name} needs {', '.join(lacking)}; give each, such as {lacking[0]}=..."
            )


def _undefined(value: Any) -> bool:
    """Whether an answer, or a part of it, is not a number at all. An array may lack some of its
    values, as a sweep does beyond a rule's range."""
    if isinstance(value, float | np.ndarray):
        return bool(np.all(np.isnan(value)))
    if isinstance(value, tuple):
        return any(map(_undefined, value))
    names = value.__dataclass_fields__ if is_dataclass(value) else ()
    return any(_undefined(getattr(value, name)) for name in names)


def rule(name: str) -> ClosedForm:
    """One rule; BadRequest names the nearest for a typo."""
    return entry_of("rule", name, RULES, "`shardwise book rule` lists all")


def _rules() -> dict[str, ClosedForm]:
    """The rows of `data/rules/rules.csv`, each with the function that it names."""
    found = {}
    for row in read_table(DATA / "rules.csv", "the book's rules").rows:
        function = getattr(import_module(f"shardwise.{row.pop('module')}"), row.pop("function"))
        found[function.__name__] = ClosedForm(function=function, **row)
    return found


DATA = Path(__file__).parent / "data" / "rules"
RULES: Mapping[str, ClosedForm] = _rules()
"""Every rule by the name of its function, in the order of the book."""
UNITS: Mapping[str, str] = {
    row["argument"]: row["unit"]
    for row in read_table(DATA / "units.csv", "the units of arguments").rows
}
"""Units of arguments by name; counts of things have none."""
