"""What `shardwise plan train` may choose from, as options, and how they become a search."""

from typing import Any

import click

from shardwise.models.remat import REMAT_POLICIES
from shardwise.planner.search.request import OBJECTIVES
from shardwise.plans.context_methods import CONTEXT_METHODS
from shardwise.plans.optimizers import OPTIMIZERS
from shardwise.plans.stacks import STACKS
from shardwise.scheduling.pipeline import PIPELINE_KINDS
from shardwise.units import parse_bytes
from shardwise.workflows.inputs import parse_pins

_OPTIONS = (
    click.option("--pin", "pins", multiple=True, metavar="AXIS=DEGREE", help="Fix a mesh degree."),
    click.option("--remat", type=click.Choice(REMAT_POLICIES), help="Fix the remat policy."),
    click.option(
        "--schedule", type=click.Choice(PIPELINE_KINDS), help="Fix the pipeline schedule."
    ),
    click.option("--zero", type=click.IntRange(0, 2), help="Fix the ZeRO stage over replicas."),
    click.option(
        "--context-method",
        type=click.Choice(CONTEXT_METHODS),
        help="Fix how attention sees a sequence that is cut over `context`.",
    ),
    click.option(
        "--stack",
        type=click.Choice(STACKS),
        default="xla",
        show_default=True,
        help="Software whose constants price the plan.",
    ),
    click.option("--optimizer", type=click.Choice(OPTIMIZERS), default="adam", show_default=True),
    click.option("--max-hbm", help="Bytes per chip to stay under, such as 80GiB."),
    click.option(
        "--objective",
        type=click.Choice(OBJECTIVES),
        default="time",
        show_default=True,
        help="time: the fastest step on the slice. cost: the fewest dollars per token, if only the "
        "chips in use are paid for. chips: the smallest part of the slice on which a plan fits, "
        "and the fastest plan there.",
    ),
    click.option(
        "--exhaustive",
        is_flag=True,
        help="Price every legal plan, also where a floor shows that it cannot be the best: the "
        "same answer, more slowly.",
    ),
)

_DTYPES = (
    ("dtype", "compute", "Dtype of the matmuls, such as bf16, fp8, mxfp8, nvfp4 or int8."),
    ("param-dtype", "param", "Dtype of the stored parameters."),
    ("grad-dtype", "grad", "Dtype of the gradients, as reduced and summed."),
    ("master", "master", "Dtype of the optimizer's own copy of the parameters, or none."),
    ("moments", "moments", "Dtype of the optimizer's moments."),
)


def search_options(command: Any) -> Any:
    """The options that fix a choice of the plan or say what is best."""
    for option in reversed(_OPTIONS):
        command = option(command)
    for flag, _, text in reversed(_DTYPES):
        default = "bf16" if flag == "dtype" else None
        show = default is not None
        command = click.option(f"--{flag}", default=default, show_default=show, help=text)(command)
    return command


def search_of(options: dict[str, Any]) -> dict[str, Any]:
    """The options as arguments of `workflows.predict.plan_training`."""
    names = ("remat", "schedule", "zero", "context_method", "stack", "optimizer", "objective")
    given = {flag.replace("-", "_"): name for flag, name, _ in _DTYPES if flag != "dtype"}
    return {
        **{name: options[name] for name in names},
        "pins": parse_pins(options["pins"]),
        "dtype": options["dtype"],
        "dtypes": {name: options[flag] for flag, name in given.items() if options[flag]},
        "max_hbm": parse_bytes(options["max_hbm"], "--max-hbm") if options["max_hbm"] else None,
        "exhaustive": options["exhaustive"],
    }
