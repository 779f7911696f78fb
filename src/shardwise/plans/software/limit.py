"""Limit: what a program for training cannot run of a plan, said once for searches and exports."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.plans.software.candidates import Candidates

Holds = Callable[[Candidates], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a plan must keep to be run by some software.

    `holds` gives a mask over candidates; `about` are the structural choices that it reads, so that
    a search evaluates it once for each of their values. `field` is what a plan that breaks it would
    have to change, `rule` the reason as a sentence about the software ("it runs on GPUs"), and
    `remedy` the smallest change. With `ours` the software could run it, and what shardwise writes
    does not say it.
    """

    field: str
    about: tuple[str, ...]
    holds: Holds
    rule: str
    remedy: Callable[[Candidates], str]
    ours: bool = False

    def mask(self, c: Candidates) -> np.ndarray:
        """For which candidates it holds."""
        return np.asarray(self.holds(c))


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Why a plan cannot be run, or with `ours` why shardwise does not write it: the field, its
    value, the rule and the smallest change."""

    field: str
    value: Any
    rule: str
    remedy: str
    ours: bool = False

    def __str__(self) -> str:
        return f"{self.field} {value_text(self.value)}: {self.rule}; {self.remedy}"


def value_text(value: Any) -> str:
    """A value of a plan in a sentence: words as they are, the rest as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(dict(value) if isinstance(value, Mapping) else value, default=str)


Words = Mapping[str, Mapping[Any, str]]
"""What a program calls the values of a choice, by field and value."""


def about_of(field: str) -> tuple[str, ...]:
    """The structural choices that tell whether a choice matters, and it itself."""
    if field in ("zero", "weight_gather", "gradient_reduce"):
        return (field, "storage_axes")
    if field == "expert_capacity":
        return (field, "expert_dispatch")
    return (field.partition(".")[0],)


def always(
    field: str,
    holds: Holds,
    rule: str,
    remedy: Callable[[Candidates], str] | str,
) -> Limit:
    """A limit about degrees, the model or the hardware alone."""
    return about_choices(field, (), holds, rule, remedy)


def about_choices(
    field: str,
    about: tuple[str, ...],
    holds: Holds,
    rule: str,
    remedy: Callable[[Candidates], str] | str,
) -> Limit:
    """A limit about some structural choices on given degrees."""
    change = remedy if callable(remedy) else lambda _: remedy
    return Limit(field=field, about=about, holds=holds, rule=rule, remedy=change)


def of_choice(
    field: str, holds: Holds, rule: str, remedy: Callable[[Candidates], str] | str
) -> Limit:
    """A limit about one choice, and what tells whether that matters."""
    return about_choices(field, about_of(field), holds, rule, remedy)
