"""SoftwareRow: one program that trains models, as a row."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardwise.hardware import Chip
from shardwise.models import ModelConfig
from shardwise.plans.software.candidates import Candidates, matters
from shardwise.plans.software.features import features
from shardwise.plans.software.limit import Limit, Obstacle, Words, about_of, always, value_text
from shardwise.plans.stacks import StackName


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareRow:
    """One program: what a plan may say for it, and what prices such a plan.

    `words` map a choice's values to the program's word for each: what has no word cannot be run.
    `own` are `Limit`s beyond that. `builds` are the phrases of `features.py` that its flags
    describe, None for all that shardwise itself can run; a model that it has a name for (`named`)
    it builds by that. `stack` is the row of `stacks.py` that prices it, `tpu_stack` that on TPUs
    where it is another. Plan files from before it had that row name the `former_stack`. `usual`
    are the choices, by dotted name, that its users leave as they are.
    Of its `vendors`' chips it has no backend for those whose cores are of the kinds `without`.
    Of `unwritten` choices it runs more values than those that `words` have.
    """

    name: str
    title: str
    stack: StackName
    vendors: tuple[str, ...]
    words: Words
    own: tuple[Limit, ...] = ()
    builds: Collection[str] | None = ()
    named: Callable[[ModelConfig], str | None] = lambda _: None
    usual: Mapping[str, Any] = field(default_factory=dict)
    tpu_stack: StackName | None = None
    former_stack: StackName | None = None
    unwritten: Collection[str] = ()
    without: Collection[str] = ()

    def stack_on(self, chip: Chip) -> StackName:
        """What prices its plans on a chip."""
        return self.tpu_stack or self.stack if chip.vendor == "google" else self.stack

    @property
    def stacks(self) -> tuple[StackName, ...]:
        """All that price its plans, on any chip."""
        return (self.stack, *([self.tpu_stack] if self.tpu_stack else []))

    def reaches(self, chip: Chip) -> bool:
        """Whether it has a backend for a chip."""
        return chip.vendor in self.vendors and chip.core_kind not in self.without

    @property
    def limits(self) -> tuple[Limit, ...]:
        """All that a plan must keep to be run by it."""
        worded = [_worded(f, w, ours=f in self.unwritten) for f, w in self.words.items()]
        return (self._chips, self._model, *worded, *self.own)

    @property
    def _chips(self) -> Limit:
        kinds = "TPUs and GPUs" if "google" in self.vendors else "GPUs"
        return always(
            "slice",
            lambda c: self.reaches(c.piece.chip),
            f"it runs on {kinds}",
            "plan for such a slice",
        )

    @property
    def _model(self) -> Limit:
        return Limit(
            field="model",
            about=(),
            holds=lambda c: not self.unbuilt(c),
            rule="its flags in our export do not describe every part of the model",
            remedy=lambda c: f"missing: {', '.join(sorted(self.unbuilt(c)))}",
            ours=True,
        )

    def unbuilt(self, c: Candidates) -> frozenset[str]:
        """What the model has that the flags written for it do not describe."""
        if self.builds is None:
            return frozenset([c.cfg.not_runnable] if c.cfg.not_runnable else [])
        return frozenset() if self.named(c.cfg) else features(c.cfg) - set(self.builds)

    def obstacles(self, c: Candidates) -> list[Obstacle]:
        """Every reason why one plan cannot be run by it: the limits that it breaks."""
        return list(self._obstacles(c))

    def _obstacles(self, c: Candidates) -> Iterator[Obstacle]:
        for limit in self.limits:
            if not bool(np.all(limit.mask(c))):
                yield Obstacle(
                    field=limit.field,
                    value=_told(c, limit.field),
                    rule=limit.rule,
                    remedy=limit.remedy(c),
                    ours=limit.ours,
                )


def _worded(field: str, words: Mapping[Any, str], *, ours: bool) -> Limit:
    """That a choice, where it makes a difference, has a word."""
    known = ", ".join(value_text(value) for value in words)
    told = "its export writes" if ours else "it supports"
    return Limit(
        field=field,
        about=about_of(field),
        holds=lambda c: (c.value(field) in words) | ~matters(field, c),
        rule=f"{told} {known}",
        remedy=lambda c: f"set {field} to {value_text(next(iter(words)))}",
        ours=ours,
    )


def _told(c: Candidates, field: str) -> Any:
    """A field's value as the plan has it."""
    own = {
        "model": c.cfg.name,
        "slice": str(c.piece),
        "mesh": {axis: int(np.max(d)) for axis, d in c.degrees.items()},
        "box": list(c.box),
        "layers_per_stage": list(c.layers or ()),
        "sequence_length": c.sequence_length,
        "microbatches": int(np.max(c.microbatches)),
    }
    return own[field] if field in own else c.value(field)
