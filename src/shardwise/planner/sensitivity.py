"""What would change an answer: the same plan priced again with one input changed.

    weight = |ln(time or cost, over the answer's)| / ln(the input, over the answer's)

whichever of the two is larger: 1 where the answer moves in proportion to the input, 0 where not at
all. Rates of the chip get a tenth more; batch, sequence and chips, which are whole numbers that
meshes divide, double. Nothing is searched: a plan that suits the changed input better gains more.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import log

from shardwise.errors import BadRequest
from shardwise.hardware import Chip, Slice, slices_of
from shardwise.planner.evaluate import TrainAnswer, evaluate_train
from shardwise.plans import TrainPlan
from shardwise.plans.laws import BATCH_AXES

MORE = 1.1
"""One more unit of a rate or a capacity: a tenth."""
TWICE = 2

RESOURCES: Mapping[str, Callable[[Chip, float], Chip]] = {
    "HBM capacity": lambda chip, by: replace(
        chip, hbm_usable_bytes=by * chip.require("hbm_usable_bytes")
    ),
    "HBM bandwidth": lambda chip, by: replace(
        chip, hbm_bandwidth=by * chip.require("hbm_bandwidth")
    ),
    "FLOP/s": lambda chip, by: replace(
        chip, peak_flops={dtype: by * rate for dtype, rate in chip.peak_flops.items()}
    ),
    "network": lambda chip, by: replace(
        chip,
        efficiency=replace(
            chip.efficiency,
            network=by * chip.efficiency.network,
            outer_network=by * chip.efficiency.outer_network,
        ),
    ),
}
"""How a chip gets more of each resource; the network's rate, not its latency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedInput:
    """An input `by` times as large, with the `time` of a token (None where it was not asked for)
    and the chip-seconds that it costs, over the answer's."""

    name: str
    by: float
    time: float | None
    cost: float

    @property
    def weight(self) -> float:
        """How strongly the answer follows the input."""
        return max(abs(log(self.cost)), abs(log(self.time or 1.0))) / abs(log(self.by))


def heaviest(found: Iterable[MovedInput]) -> list[MovedInput]:
    """Those that the answer follows most first."""
    return sorted(found, key=lambda one: -one.weight)


def train_sensitivity(answer: TrainAnswer) -> list[MovedInput]:
    """A training plan with each input changed; inputs with which it has no place are left out."""
    return heaviest(_moved(answer))


def _moved(answer: TrainAnswer) -> Iterator[MovedInput]:
    for name, by, plan, piece in _changes(answer):
        with suppress(BadRequest):
            found = evaluate_train(plan, answer.cfg, piece).at(answer.shift)
            if found.peak_bytes_per_chip > piece.chip.require("hbm_usable_bytes"):
                continue
            time = answer.tokens_per_second / found.tokens_per_second
            cost = time * piece.chips / answer.piece.chips
            yield MovedInput(name=name, by=by, time=time, cost=cost)


def _changes(answer: TrainAnswer) -> Iterator[tuple[str, float, TrainPlan, Slice]]:
    """Each input, how much larger it is, and the plan on the chips with that."""
    plan, piece = answer.plan, answer.piece
    for name, scaled in RESOURCES.items():
        if name != "HBM capacity":  # of a plan that fits, capacity has no seconds
            yield name, MORE, plan, replace(piece, chip=scaled(piece.chip, MORE))
    for name, changed in (
        ("batch", {"global_batch_sequences": TWICE * plan.global_batch_sequences,
                   "microbatches": TWICE * plan.microbatches}),
        ("sequence", {"sequence_length": TWICE * plan.sequence_length,
                      "global_batch_sequences": plan.global_batch_sequences // TWICE}),
    ):  # fmt: skip
        with suppress(BadRequest):
            yield name, TWICE, replace(plan, **changed), piece
    with suppress(BadRequest):
        if wider := _on_twice(plan, piece):
            yield "chips", TWICE, *wider


def _on_twice(plan: TrainPlan, piece: Slice) -> tuple[TrainPlan, Slice] | None:
    """The plan over twice as many chips: its outermost axis over the batch is twice as long, with
    as many sequences of a microbatch on a device where that goes."""
    axis = next((axis for axis in plan.mesh if axis in BATCH_AXES), None)
    larger = next((s for s in slices_of(piece.chip) if s.chips == TWICE * piece.chips), None)
    if piece.count > 1 or larger is None:
        larger = replace(piece, count=TWICE * piece.count)
    whole = plan.box == piece.shape and plan.slices == piece.count
    if axis is None or not whole or (larger.count > 1 and piece.chip.data_centre is None):
        return None
    changed = replace(
        plan,
        slice=str(larger),
        slices=larger.count,
        box=larger.shape,
        mesh={**plan.mesh, axis: TWICE * plan.mesh[axis]},
        microbatches=max(1, plan.microbatches // TWICE),
    )
    return changed, larger
