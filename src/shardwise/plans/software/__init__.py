"""Programs that train a plan, a row each: what each can say, and which stack prices it.

`row.py` is what a row has, `limit.py` one thing that a program cannot run, `candidates.py` the
columns that limits read: a search evaluates them as masks, an export on one plan. `features.py`
names what models have, `shared.py` has limits of several programs, `usual.py` what their users
leave as it is, `xla_flags.py` compiler flags that may make a step faster, `xla_programs.py` what
our trainer writes differently for some chips. A file per program: `maxtext.py` (with
`maxtext_context.py`, of sequences that are cut, and `maxtext_models.py`, of models by name),
`megatron.py`, `torchtitan.py`, `jax.py`, and for exports alone `trainer.py`. Read `row.py` first.
"""

from collections.abc import Mapping

from shardwise.errors import entry_of
from shardwise.hardware import Chip
from shardwise.plans.libraries import TRANSFORMERS, Library
from shardwise.plans.serve import ServePlan
from shardwise.plans.software.candidates import Candidates, candidates_of_plan, matters
from shardwise.plans.software.jax import JAX
from shardwise.plans.software.limit import Limit, Obstacle
from shardwise.plans.software.maxtext import MAXTEXT
from shardwise.plans.software.megatron import MEGATRON
from shardwise.plans.software.row import SoftwareRow
from shardwise.plans.software.torchtitan import TORCHTITAN
from shardwise.plans.stacks import StackName, stack_row
from shardwise.plans.train import USUAL, TrainPlan

SOFTWARE: Mapping[str, SoftwareRow] = {
    row.name: row for row in (MAXTEXT, MEGATRON, TORCHTITAN, JAX)
}
"""By the name that `--for` takes."""


def software_row(name: str) -> SoftwareRow:
    """The row of a program; BadRequest for a name that there is not."""
    return entry_of("training software", name, SOFTWARE)


def made_elsewhere(plan: TrainPlan | ServePlan) -> list[str]:
    """A line where a plan is for another program than the one that runs it here."""
    if not isinstance(plan, TrainPlan) or plan.software in ("any", JAX.name):
        return []
    title = software_row(plan.software).title
    here = f"what runs here is {JAX.title}, whose step differs"
    return [f"the plan is for {title}; {here}: plan --for {JAX.name}, or export --to {title}"]


def usual_software(chip: Chip) -> tuple[tuple[SoftwareRow, ...], ...]:
    """What the users of a chip train with: of the first programs that can, the faster one."""
    torch = ((MEGATRON, TORCHTITAN),) if chip.vendor in MEGATRON.vendors else ()
    return (*torch, (MAXTEXT,), (JAX,)) if chip.vendor in MAXTEXT.vendors else ((JAX,),)


def usual_stack(chip: Chip, lora_rank: int = 0) -> StackName:
    """The stack that prices a plan for no program in particular. What trains adapters on GPUs runs
    PyTorch op by op (PEFT, torchtune, axolotl), as TorchTitan's stack does."""
    if lora_rank and chip.vendor in TORCHTITAN.vendors:
        return TORCHTITAN.stack
    return usual_software(chip)[0][0].stack_on(chip)


def usual_library(stack: StackName, lora_rank: int) -> Library:
    """Whose layers run where nobody says it: adapters are trained with those of Transformers where
    the stack runs op by op."""
    return TRANSFORMERS if lora_rank and stack_row(stack).eager else USUAL.library


__all__ = [
    "SOFTWARE",
    "Candidates",
    "Limit",
    "Obstacle",
    "SoftwareRow",
    "candidates_of_plan",
    "made_elsewhere",
    "matters",
    "software_row",
    "usual_library",
    "usual_software",
    "usual_stack",
]
