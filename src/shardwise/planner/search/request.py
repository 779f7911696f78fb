"""What a search of training plans is asked."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal, get_args

from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.models.remat import REMAT_POLICIES, remat_row
from shardwise.plans.chip_changes import AS_LISTED, ChipChanges
from shardwise.plans.context_methods import CONTEXT_METHODS
from shardwise.plans.software import SoftwareRow
from shardwise.plans.stacks import GATHERS, REDUCES
from shardwise.plans.train import PLACINGS, STORAGE_AXES, USUAL, Placing, Structure
from shardwise.roofline.evidence import Shift
from shardwise.roofline.resolution import read_resolution
from shardwise.scheduling.pipeline import PIPELINE_KINDS

Objective = Literal["time", "cost", "chips"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

STORAGES: tuple[tuple[str, ...], ...] = (STORAGE_AXES, ("fsdp",))
"""Ways of storing parameters: over every axis that sums gradients anyway, or over fsdp alone, so
that context and expert replicate what is not an expert (Megatron-LM)."""

LEVELS: tuple[Mapping[str, tuple], ...] = (
    {"remat": REMAT_POLICIES, "context_method": CONTEXT_METHODS},
    {"storage_axes": STORAGES, "weight_gather": GATHERS[:2], "gradient_reduce": REDUCES},
    {"zero": (0, 1, 2)},
    {"pipeline_schedule": PIPELINE_KINDS},
)
"""The choices that a search tries, with their values, in the order in which its loops choose them:
a level needs no choice of a later one. A schedule comes with each count of chunks that it takes."""
SEARCHED = {name: values for level in LEVELS for name, values in level.items()}
COARSE: Mapping[str, tuple] = {
    **SEARCHED,
    "remat": tuple(name for name in REMAT_POLICIES if not remat_row(name).offloads),
    "context_method": CONTEXT_METHODS[:2],
    "pipeline_schedule": PIPELINE_KINDS[1:3],
}
"""What a coarse search tries, in half the time: of these choices the values that the best plan of
most runs has (docs/lab/page.md), and every value of the others."""


class Ground:
    """What searches of the same plans have priced, of every part of the slice (`ground.py`)."""

    def __init__(self) -> None:
        self.known: list[Any] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """What is to be trained, and what the search may choose from. `pins` fixes mesh degrees.

    `model` is what the user called it, for the plan file; `max_hbm_bytes` is per device. `searched`
    lists the values to try of every choice of `SEARCHED`; all others are those of `structure`.
    `objective`: "time" is the fastest step on the slice; "cost" the fewest dollars per token, where
    only the chips in use are paid for; "chips" the smallest part of the slice on which a plan fits,
    and the fastest plan there. Only what `software` runs is looked at, None for every plan; and
    only where one ranks before `better_than`. `chips` is what a plan keeps of the chips' changes.
    A plan leaves the share `margin` of the chip's usable memory free, where some plan that does so
    fits; of plans whose seconds differ by less than the share `apart` the simplest is the best.
    A `part` of the slice (slices, box), `placings`, `microbatches` and `chunks` of a stage are
    those that a plan's file says; where it says none, all are looked at. `shift` is what runs of
    one's own say of the best plan, once that is found. On one `ground` (`ground.py`) searches of
    the same plans price what they share once.
    """

    cfg: ModelConfig
    model: str
    piece: Slice
    sequences: int
    sequence_length: int
    pins: Mapping[str, int]
    max_hbm_bytes: float
    searched: Mapping[str, tuple] = field(default_factory=lambda: SEARCHED)
    structure: Structure = USUAL
    microbatches: tuple[int, ...] = ()
    objective: Objective = "time"
    software: SoftwareRow | None = None
    chips: ChipChanges = AS_LISTED
    part: tuple[int, tuple[int, ...]] | None = None
    placings: tuple[Placing, ...] = PLACINGS
    chunks: tuple[int, ...] = ()
    better_than: float = inf
    shift: Shift | None = None
    margin: float = 0.0
    apart: float = 0.0
    may_offload: bool = False
    ground: Ground | None = field(default=None, repr=False, compare=False)

    @property
    def with_margin(self) -> "TrainRequest":
        """The same with the memory that the margin leaves."""
        chip = self.piece.chip
        usable = chip.usable_bytes_per_device
        return replace(self, max_hbm_bytes=min(self.max_hbm_bytes, usable * (1 - self.margin)))

    @property
    def offloaded(self) -> "TrainRequest | None":
        """The same with the optimizer's state in the hosts' memory; None where that is no choice:
        it is so already, adapters have little of it, the link is not known, or the program does
        not do it."""
        structure, words = self.structure, self.software.words if self.software else {}
        known = True in words.get("offload_optimizer", (True,))
        linked = self.piece.chip.host_link_oneway is not None
        if not (self.may_offload and known and linked and self.better_than == inf):
            return None
        if structure.offload_optimizer or structure.lora_rank:
            return None
        return replace(self, structure=replace(structure, offload_optimizer=True), ground=Ground())

    @property
    def as_told_apart(self) -> "TrainRequest":
        """The same with what predictions of its stack on such chips cannot know: the memory that
        they were short by is the margin, and the simplest of the plans that they cannot tell apart
        is the best."""
        known, of = read_resolution(), (self.structure.stack, self.piece.chip.vendor)
        return replace(self, margin=known.margin(*of).value, apart=known.told_apart(*of).value)
