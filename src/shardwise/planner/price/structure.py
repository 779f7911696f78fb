"""The choices of a training plan that are no degree, as the pricing of steps needs them."""

from dataclasses import dataclass, replace

from shardwise.models.remat import RematPolicy
from shardwise.planner.step.shape import TrainShape
from shardwise.plans.train import ContextMethod
from shardwise.scheduling.pipeline import PIPELINE_KINDS, PLAIN, PipelineKind, schedule_row

_ENDS = {"line": "apart", "fold": "folded", "mirror": "doubled"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """The choices of a plan that are no degree: one point of the search's outer loop."""

    remat: RematPolicy
    storage_axes: tuple[str, ...]
    reshard_after_forward: bool
    context_method: ContextMethod
    zero: int
    schedule: PipelineKind
    virtual_stages: int

    @property
    def ends(self) -> str:
        """Where embedding and head lie: "apart" on two devices, on one because the stages are
        "folded", or on two that both hold both ("doubled")."""
        return _ENDS[schedule_row(self.schedule).arrangement]

    @property
    def paired(self) -> bool:
        """Whether exchanges of tokens overlap another microbatch's pass: `TrainShape.paired`."""
        return schedule_row(self.schedule).pairs_passes and self.virtual_stages > 1

    def with_pairing(self, paired: bool) -> "Structure":
        """The structure with a schedule that pairs passes, or with one that does not."""
        if self.paired == paired:
            return self
        kinds = (PLAIN, *PIPELINE_KINDS)
        kind = next(kind for kind in kinds if schedule_row(kind).pairs_passes == paired)
        return replace(self, schedule=kind, virtual_stages=schedule_row(kind).chunks[0])


def structure_of(shape: TrainShape) -> Structure:
    """The structure of one plan's step."""
    return Structure(
        remat=shape.remat,
        storage_axes=shape.storage_axes,
        reshard_after_forward=shape.reshard_after_forward,
        context_method=shape.context_method,
        zero=shape.zero,
        schedule=shape.pipeline_schedule,
        virtual_stages=shape.virtual_stages,
    )
