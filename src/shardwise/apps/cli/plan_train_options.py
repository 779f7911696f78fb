"""Options that fix choices of a training plan, and those of a whole run.

Their values are names of rows; `choice_table.py` repeats them, as `--help` imports no rows.
"""

from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.choice_table import CHOICES
from shardwise.apps.cli.numbers import NUMBER, WHOLE, Word

_OPTIONS = (
    click.option("--pin", "pins", multiple=True, metavar="AXIS=DEGREE", help="Fix a mesh degree."),
    click.option(
        "--remat",
        type=Word(CHOICES["remat"]),
        help="Fix the remat policy.",
    ),
    click.option(
        "--schedule",
        type=Word(CHOICES["schedule"]),
        help="Fix the pipeline schedule.",
    ),
    click.option("--zero", type=WHOLE, metavar="0|1|2", help="Fix the ZeRO stage over replicas."),
    click.option(
        "--context-method",
        type=Word(CHOICES["context_method"]),
        help="Fix how attention sees a sequence that is cut over `context`.",
    ),
    click.option(
        "--for",
        "software",
        type=Word(CHOICES["for"]),
        help="Program that is to run the plan, or any for every plan that can be priced. Default: "
        "what the chip's users run (TPU: maxtext, GPU: megatron or torchtitan); jax is our own "
        "(shardwise train).",
    ),
    click.option(
        "--optimizer",
        type=Word(CHOICES["optimizer"]),
        default="adam",
        show_default=True,
    ),
    click.option("--max-hbm", help="Bytes per chip to stay under, such as 80GiB."),
    click.option(
        "--margin",
        metavar="SHARE",
        help="Usable memory that a plan leaves free where one does, such as 10%. Default: by how "
        "much predictions of such plans were short in 19 of 20 cases.",
    ),
    click.option(
        "--fastest",
        is_flag=True,
        help="The fastest plan that fits; without it the answer is the simplest of the plans that "
        "predictions cannot tell apart, and leaves memory free (see --margin).",
    ),
    click.option(
        "--exhaustive",
        is_flag=True,
        help="Price every legal plan, also where a floor shows that it cannot be the best: the "
        "same answer, more slowly.",
    ),
)

_DTYPES = (
    ("dtype", "Dtype of the matmuls, such as bf16, fp8, mxfp8, nvfp4 or int8."),
    ("param-dtype", "Dtype of the stored parameters."),
    ("grad-dtype", "Dtype of the gradients, as reduced and summed."),
    ("master", "Dtype of the optimizer's own copy of the parameters, or none."),
    ("moments", "Dtype of the optimizer's moments."),
)


evidence_option = click.option(
    "--evidence",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="RUNS.csv",
    help="A few runs of your own cluster (docs/runs.md), which move and narrow what is expected.",
)


def search_options(command: Any) -> Any:
    """The options that fix a choice of the plan or say what is best."""
    command = evidence_option(command)
    for option in reversed(_OPTIONS):
        command = option(command)
    for flag, text in reversed(_DTYPES):
        default = "bf16" if flag == "dtype" else None
        show = default is not None
        command = click.option(f"--{flag}", default=default, show_default=show, help=text)(command)
    return command


def objective_option(default: str, text: str) -> Any:
    """--objective, whose values each command explains."""
    kinds = Word(CHOICES["objective"])
    return click.option("--objective", type=kinds, default=default, show_default=True, help=text)


_RUN = (
    ("--tokens", "Length of the run, such as 15T: adds days and dollars."),
    ("--mfu", "Replace the expected time by this share of peak (with --tokens)."),
    ("--params", "Replace the parameter count in --mfu's arithmetic, such as 70e9."),
    ("--straggler", "Slowest chip's step time over the typical one's, such as 1.05."),
    ("--chip-mtbf", "Time between failures of one chip with its host, such as 10y."),
    ("--checkpoint-time", "Time that training stops for a checkpoint, such as 30s."),
    ("--checkpoint-interval", "Training between checkpoints; the best one where not given."),
    ("--restart-time", "Time from a failure to the first new step, such as 10min."),
)


def run_options(command: Any) -> Any:
    """The options of a whole run; off unless given."""
    for name, about in reversed(_RUN):
        command = click.option(name, help=about)(command)
    return command


def compile_options(about: str) -> Any:
    """The options of a second opinion by the compiler: what --compile does is each command's."""
    options = (
        click.option("--compile", type=WHOLE, metavar="N", help=about),
        click.option(
            "--timeout",
            type=NUMBER,
            default=900.0,
            metavar="SECONDS",
            help="The most that one program may compile.  [900]",
        ),
        click.option(
            "--option",
            "xla",
            multiple=True,
            metavar="NAME=VALUE",
            help="A flag of XLA, such as xla_enable_async_all_gather=true.",
        ),
    )

    def added(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return added


tune_option = click.option(
    "--tune",
    is_flag=True,
    help="With --compile: also which compiler flags shorten the best (a "
    "compile for each set, four to six).",
)
