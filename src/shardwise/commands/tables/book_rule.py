"""`book rule`: one closed form of the book with any chip, lists of values, or a sweep."""

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Any, ClassVar

import numpy as np

from shardwise.book.arguments import check_whole, is_counted
from shardwise.book.questions import Edition, plain
from shardwise.book.registry import RULES, ClosedForm, rule
from shardwise.book.rules.chips import axis_alpha
from shardwise.book.seed import CONSTANTS, book_chip
from shardwise.boundary import Command, command_of
from shardwise.boundary.options import option, place
from shardwise.boundary.records import Record, hidden, values
from shardwise.commands.base.answer import Answer, Page, Row, TextTable
from shardwise.commands.base.layout import Fact, Facts, next_step, wrapped
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.tables.book_show import read_sets, value_text
from shardwise.commands.tables.book_words import EDITION, EDITION_CONSTANTS, OTHER_VALUES
from shardwise.errors import BadRequest, check_known, shown
from shardwise.hardware import Chip, Torus
from shardwise.hardware.slices import domain_of
from shardwise.hardware.totals import link_both_ways, switched_of

MOST_POINTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BookRuleRequest(Command):
    """A rule of the book: its arguments, and its value for given ones; without a name, all rules.

    `sets` may be lists ("d_ff=8192,16384"). Arguments of a chip (alpha, peaks, bandwidths, memory,
    price) come from the chip `on`. `edition` "first" adds communication times, for rules with both
    variants.
    """

    COMMAND: ClassVar[str] = "book rule"

    name: str | None = field(default=None, kw_only=False, metadata=place("[NAME]", required=False))
    on: str | None = option("A chip whose numbers the rule takes, such as v5p.")
    sets: Sequence[str] | Mapping[str, Any] = option(OTHER_VALUES)
    sweep: str | None = option(
        "Its value over a range, at equal ratios.",
        metavar="NAME=FIRST:LAST:POINTS",
        group="What is planned",
        meaning="an argument of a rule, from one value to another",
    )
    edition: Edition = option(EDITION)
    constants: str | None = option(EDITION_CONSTANTS)

    def answer(self, progress: Progress | None = None) -> "Rules":
        """Compute it, or describe it where no argument is given."""
        check_known("edition", self.edition, ("latest", "first"))
        if self.name is None:
            self._refuse_arguments()
            return RuleList(rules=[_row(one) for one in RULES.values()])
        found = rule(self.name)
        given = read_sets(self.sets)
        check_whole(found.parameters, given)
        implied = self._implied(found, given)
        arguments = {**implied, **given, **{n: c for n, c in implied.items() if n == "chip"}}
        described: dict[str, Any] = {
            **values(_row(found)),
            "arguments": _parameters(found, arguments),
            "rule": found,
            "asked": self,
        }
        if self.sweep is not None:
            name, rows = self._swept(found, arguments)
            return RuleSweep(**described, sweep=name, rows=rows)
        if not given and self.on is None and _lacking(found, arguments):
            return RuleShown(**described)
        return RuleValue(**described, value=plain(found(**arguments)))

    def _refuse_arguments(self) -> None:
        for flag, value in (("--on", self.on), ("--set", self.sets), ("--sweep", self.sweep)):
            if value:
                raise BadRequest(f"{flag} is for one rule; name it: shardwise book rule NAME")

    def _implied(self, found: ClosedForm, given: Mapping[str, object]) -> dict[str, object]:
        """What the chip and the edition say of arguments that are not given."""
        wanted = [name for name in found.parameters if name not in given]
        implied: dict[str, object] = {}
        if self.edition == "first":
            first = {"combine": "sum", "edition": "first"}
            implied |= {name: value for name, value in first.items() if name in wanted}
        chip_parameter = found.parameters.get("chip")
        of_chip = chip_parameter is not None and chip_parameter.annotation is Chip
        chips = given.get("chip", self.on) if of_chip else self.on
        if chips is not None:
            which = self.constants or ("book" if self.edition == "latest" else "seed")
            check_known("constants", which, CONSTANTS)
            chip = book_chip(chips, which)
            implied |= {n: read(chip, found) for n, read in FROM_CHIP.items() if n in wanted}
            if of_chip:
                implied |= {"chip": chip}
            if self.on is not None and not set(implied) - {"combine", "edition"}:
                raise BadRequest(f"--on would do nothing: {found.name} takes nothing of a chip")
        return implied

    def _swept(
        self, found: ClosedForm, arguments: Mapping[str, object]
    ) -> tuple[str, list[dict[str, object]]]:
        """The argument that is swept, and the rule's value at each of its points."""
        name, points = _points(self.sweep or "")
        if name in found.parameters and is_counted(found.parameters[name]):
            points = list(dict.fromkeys(round(x) for x in points))
        rows = []
        for x in points:
            value = plain(found(**{**arguments, name: x}))
            rows.append({name: x, **_named(found, value)})
        return name, rows


@dataclass(frozen=True, kw_only=True)
class RuleRow(Record):
    """A rule of the book."""

    name: str
    """Its name."""
    function: str
    """The Python function that computes it."""
    formula: str
    """Its formula."""
    unit: str
    """The unit of its value; "" where it has none."""
    source: str
    """Where the book has it."""
    about: str
    """Result of the rule."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RuleList(Answer):
    """All rules."""

    rules: Sequence[RuleRow]
    """Each of them."""

    def table(self) -> list[Row]:
        """The rules."""
        return [values(one) for one in self.rules]

    def page(self) -> Page:
        """One line each."""
        cells = [[one.name, one.formula, one.unit, one.source] for one in self.rules]
        yield TextTable(["rule", "formula", "unit", "source"], cells, left=4)
        yield next_step("one of them:", "shardwise book rule NAME")


@dataclass(frozen=True, kw_only=True)
class RuleArgument(Record):
    """What a rule takes."""

    name: str
    """Its name."""
    unit: str
    """Its unit; "" where it has none."""
    value: Any
    """Value as given, from the chip, or the default of the rule; null without one."""


@dataclass(frozen=True, kw_only=True, repr=False)
class OneRule(RuleRow, Answer, ABC):
    """A rule with its arguments."""

    arguments: Sequence[RuleArgument]
    """Arguments of the rule."""

    rule: ClosedForm = hidden()
    asked: BookRuleRequest = hidden()

    def head(self) -> Page:
        """The formula and the arguments."""
        yield wrapped(f"{self.name} ({self.source}): {self.about}")
        yield Facts([Fact("formula", self.formula), Fact("unit", self.unit or "-")])
        rows = [[one.name, self._value_text(one), one.unit] for one in self.arguments]
        yield TextTable(["argument", "value", "unit"], rows, left=1, ruled=False)

    def _value_text(self, argument: RuleArgument) -> str:
        if argument.value is not None:
            return value_text(argument.value)
        default = self.rule.parameters[argument.name].default
        return "needed" if default is Parameter.empty else "not given"


@dataclass(frozen=True, kw_only=True, repr=False)
class RuleShown(OneRule):
    """A rule with its arguments, some of which it still needs."""

    def table(self) -> list[Row]:
        """Nothing: it has no value."""
        return []

    def page(self) -> Page:
        """The formula, the arguments, and what to type for a value."""
        yield from self.head()
        needed = [one.name for one in self.arguments if one.value is None]
        sets = {**read_sets(self.asked.sets), **dict.fromkeys(needed, "...")}
        yield next_step("ask it:", command_of(self.asked, sets=sets))


@dataclass(frozen=True, kw_only=True, repr=False)
class RuleValue(OneRule):
    """A rule with its value."""

    value: Any
    """Its value for the arguments, in its unit: a number, numbers, or numbers by name."""

    def table(self) -> list[Row]:
        """The value."""
        return [_named(self.rule, self.value)]

    def page(self) -> Page:
        """The formula, the arguments and the value."""
        yield from self.head()
        yield Facts([Fact(n, value_text(v)) for n, v in self.table()[0].items()])


@dataclass(frozen=True, kw_only=True, repr=False)
class RuleSweep(OneRule):
    """A rule with its values over a range."""

    sweep: str
    """The argument that is swept."""
    rows: Sequence[Mapping[str, Any]]
    """Each of its values with the rule's."""

    def table(self) -> list[Row]:
        """The points."""
        return list(self.rows)

    def page(self) -> Page:
        """The formula, the arguments and the points."""
        yield from self.head()
        names = list(self.rows[0])
        cells = [[value_text(row[n]) for n in names] for row in self.rows]
        yield TextTable(names, cells, left=0, ruled=False)


Rules = RuleList | RuleShown | RuleValue | RuleSweep

book_rule = verb("book_rule", BookRuleRequest)


def _row(one: ClosedForm) -> RuleRow:
    return RuleRow.part_of(one, function=f"shardwise.book.{one.name}")


def _parameters(found: ClosedForm, arguments: Mapping[str, object]) -> list[RuleArgument]:
    rows = []
    for name, parameter in found.parameters.items():
        default = None if parameter.default is Parameter.empty else parameter.default
        value = plain(arguments.get(name, default))
        rows.append(RuleArgument(name=name, unit=found.units()[name], value=value))
    return rows


def _lacking(found: ClosedForm, arguments: Mapping[str, object]) -> bool:
    return any(
        parameter.default is Parameter.empty and name not in arguments
        for name, parameter in found.parameters.items()
    )


def _named(found: ClosedForm, value: Any) -> dict[str, object]:
    """A value as columns: its fields, or one with the rule's name."""
    if isinstance(value, Mapping):
        return {str(name): item for name, item in value.items()}
    return {found.name: value}


def _points(text: str) -> tuple[str, list[float]]:
    """NAME=FIRST:LAST:POINTS as the name and its values, at equal ratios, whole where both ends and
    all values are."""
    name, _, span = text.partition("=")
    parts = span.split(":")
    try:
        first, last, count = float(parts[0]), float(parts[1]), int(parts[2])
    except (IndexError, ValueError):
        raise BadRequest(
            f"--sweep is {shown(text)}; it is NAME=FIRST:LAST:POINTS, such as d_ff=8192:65536:4"
        ) from None
    if not 0 < first < last or not 2 <= count <= MOST_POINTS or not np.isfinite(last):
        raise BadRequest(
            f"--sweep is {shown(text)}; FIRST is above 0 and below LAST, and POINTS from 2 to "
            f"{MOST_POINTS}"
        )
    points = [float(f"{x:.12g}") for x in np.geomspace(first, last, count)]
    return name, [int(x) if x.is_integer() else x for x in points]


# What a chip says of a rule's arguments -----------------------------------------------------------

OF_AN_AXIS = (
    *("gather_seconds", "reduce_seconds", "exchange_seconds"),
    *("mlp_times", "weight_stationary_seconds", "pipeline_transfer"),
)
"""Rules whose bandwidth is that of a mesh axis; others read memory."""


def _bandwidth(chip: Chip, found: ClosedForm) -> float:
    if found.name not in OF_AN_AXIS:
        return chip.require("hbm_bandwidth")
    return _axis(chip)


def _axis(chip: Chip) -> float:
    if isinstance(chip.network, Torus):
        return link_both_ways(chip)
    return switched_of(chip).chip_oneway


def _oneway(chip: Chip) -> float:
    network = chip.network
    return network.link_oneway if isinstance(network, Torus) else switched_of(chip).chip_oneway


def _price(chip: Chip) -> float:
    return chip.require_price().usd_per_chip_hour


FROM_CHIP: Mapping[str, Callable[[Chip, ClosedForm], Any]] = {
    "alpha": lambda chip, _: axis_alpha(chip),
    "bandwidth": _bandwidth,
    "beta": lambda chip, _: chip.require("hbm_bandwidth") / _axis(chip),
    "bytes_per_chip": lambda chip, _: chip.require("hbm_bytes"),
    "clock_hz": lambda chip, _: chip.require("clock_hz"),
    "domain": lambda chip, _: domain_of(chip),
    "hbm_bytes": lambda chip, _: chip.require("hbm_bytes"),
    "intensity": lambda chip, _: chip.peak("bf16") / chip.require("hbm_bandwidth"),
    "oneway": lambda chip, _: _oneway(chip),
    "peak": lambda chip, _: chip.peak("bf16"),
    "peak_flops": lambda chip, _: chip.peak("bf16"),
    "tile": lambda chip, _: chip.matmul_tile,
    "usd_per_chip_hour": lambda chip, _: _price(chip),
    "usd_per_hour": lambda chip, _: _price(chip),
}
"""Arguments that a chip has a number for, in bf16 and per chip."""
