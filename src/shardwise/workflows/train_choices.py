"""What a search of training plans may not choose: the words of a request, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.search.request import OBJECTIVES, SEARCHED, TrainRequest
from shardwise.planner.training import (
    default_dtypes,
)
from shardwise.plans import TrainDtypes
from shardwise.plans.optimizers import OPTIMIZERS
from shardwise.plans.stacks import STACKS, stack_row
from shardwise.plans.train import Structure
from shardwise.units import parse_bytes
from shardwise.workflows.inputs import (
    HardwareWords,
    Words,
    check_choice,
    flag_of,
    parse_pins,
    whole_number,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainChoices(HardwareWords):
    """What a search of training plans may not choose, and what is best. None leaves the choice
    open.

    `pins` fixes mesh degrees ({"tensor": 8}); `dtype` is that of the matmuls; `param_dtype`,
    `grad_dtype`, `master` (the optimizer's own copy, or "none") and `moments` follow it where not
    given; `max_hbm` is bytes per chip; `objective` is "time", "cost" or "chips" (see TrainRequest);
    with `exhaustive` every legal plan is priced, which gives the same answer more slowly.
    """

    pins: Words = ()
    remat: str | None = None
    schedule: str | None = None
    zero: int | str | None = None
    context_method: str | None = None
    stack: str = "xla"
    optimizer: str = "adam"
    max_hbm: float | str | None = None
    objective: str = "time"
    exhaustive: bool = False
    dtype: str = "bf16"
    param_dtype: str | None = None
    grad_dtype: str | None = None
    master: str | None = None
    moments: str | None = None

    @property
    def fixed(self) -> dict[str, Any]:
        """The choices of a search that are made already, by field of the plan."""
        given = {name: getattr(self, keyword) for keyword, name in FIXED.items()}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def dtypes(self) -> TrainDtypes:
        """Of every array of the training state."""
        others = {"param": self.param_dtype, "grad": self.grad_dtype}
        others |= {"master": self.master, "moments": self.moments}
        return replace(default_dtypes(self.dtype), **{k: v for k, v in others.items() if v})  # type: ignore[arg-type]

    def request(
        self, cfg: ModelConfig, model: str | Path, piece: Slice, sequences: int, length: int
    ) -> TrainRequest:
        """The search of one slice."""
        _check_stack(self.stack, piece)
        limit, given = piece.chip.require("hbm_usable_bytes"), self.max_hbm
        most = limit if given is None else min(limit, parse_bytes(given, "--max-hbm"))
        return TrainRequest(
            cfg=cfg,
            model=str(model),
            piece=piece,
            sequences=sequences,
            sequence_length=length,
            pins=parse_pins(self.pins),
            searched=SEARCHED | {name: (value,) for name, value in self.fixed.items()},
            structure=Structure(
                dtypes=self.dtypes,
                optimizer=self.optimizer,  # type: ignore[arg-type]
                stack=self.stack,  # type: ignore[arg-type]
                constants=self.constants,  # type: ignore[arg-type]
            ),
            objective=self.objective,  # type: ignore[arg-type]
            max_hbm_bytes=most / piece.chip.jax_devices_per_chip,
        )

    def checked(self) -> Self:
        """The same, its numbers read. Raises BadRequest for a word that is no choice, and for a
        choice without effect."""
        zero = None if self.zero is None else whole_number(self.zero, "--zero", most=2)
        for keyword, name in FIXED.items():
            if keyword != "zero":
                check_choice(getattr(self, keyword), flag_of(keyword), SEARCHED[name])
        check_choice(self.stack, "--stack", STACKS)
        check_choice(self.optimizer, "--optimizer", OPTIMIZERS)
        check_choice(self.objective, "--objective", OBJECTIVES)
        _check_effect(parse_pins(self.pins), self.schedule, zero, self.context_method)
        return replace(self, zero=zero)


FIXED = {
    "remat": "remat",
    "zero": "zero",
    "schedule": "pipeline_schedule",
    "context_method": "context_method",
}
"""Keyword -> field of the plan, of choices that a search makes where they are not fixed."""


def _check_effect(
    pins: Mapping[str, int], schedule: str | None, zero: int | None, method: str | None
) -> None:
    """Raise BadRequest for a choice about an axis that is pinned to one."""
    for option, value, axes in (
        ("--schedule", schedule, ("stage",)),
        ("--context-method", method, ("context",)),
        ("--zero", zero, ("data", "replica")),
    ):
        if value is not None and all(pins.get(axis) == 1 for axis in axes):
            pinned = " and ".join(f"{axis}=1" for axis in axes)
            raise BadRequest(
                f"{option} {value} cannot take effect with {pinned} pinned; leave one of them out"
            )


def _check_stack(stack: str, piece: Slice) -> None:
    """Raise BadRequest for software that does not run on the chip."""
    if piece.chip.vendor == "google" and not stack_row(stack).tpus:
        use = " or ".join(name for name in STACKS if stack_row(name).tpus)
        raise BadRequest(
            f"software stack '{stack}' does not run on {piece.chip.id}, a TPU; use --stack {use}"
        )
