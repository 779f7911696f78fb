"""The command line. `main` is the entry point; each command lives in a file of its own.

`COMMANDS` maps a command to the module and attribute that holds it, and a module is imported only
when its command runs, so that `--help` stays fast. Read `plan_show.py` first: it is short.

Each makes a request (`commands/`) of its options, by name, answers it, writes the files that
were asked for, and shows the answer. Planning: `plan.py` is the group, with `plan_train.py`,
`plan_serve.py`, `plan_sweep.py`, `plan_show.py`, `plan_diff.py` and `plan_schema.py`;
`next_steps.py` is what to type then. `simulate.py` puts a load on a serving plan, `export.py`
writes a plan for other software and `check.py` says what to change in its files.
Programs: `compile.py` (`report.py` reads what it wrote),
`compare.py`, `explain.py`, `profile.py` and `train.py`. Models at work: `serve.py` (the server
itself is `apps/server/`), `generate.py` (a text, a chat), `bench.py`. The page: `ui.py` (what it
shows is `apps/page/`). Sharding: `shard.py`. Tables: `hw.py`, `model.py`, `roofline.py`, `book.py`.
Documents: `schema.py`. How right it is: `validate.py`, `calibrate.py`.

Pictures: `pictures.py` alone imports matplotlib (`charts.py` has what charts share: ticks, marks,
labels), for `pipeline_chart.py` (with `timeline.py`), `serve_chart.py`, `simulate_chart.py`,
`sweep_chart.py`, `roofline_chart.py`, `compile_plot.py`, `validate_plot.py`, `shard_views.py`, and
of the book's machines `simulation_pictures.py`. `player.py` writes the page that plays them, which
lies in `data/`.
What all share: `lazy.py`, `command.py` (a command, and groups of options in `--help`),
`option_fields.py` (options made of requests, of data that `scripts/options.py` writes, and their
types), `outputs.py` (options of the command line alone: files to write, how much is shown),
`completion.py` (what a shell offers),
`parts.py` (packages that the plain install leaves out), `output.py` shows answers as documents and
`pages.py` as pages, `progress.py` how far a run is, `streams.py` errors.
"""

import sys

import click

from shardwise.apps.cli.lazy import LazyGroup
from shardwise.apps.cli.streams import (
    InterruptedRunError,
    ReaderGoneError,
    discard,
    finish,
    full,
    say,
    settle,
)
from shardwise.errors import ShardwiseError

COMMANDS = {
    "plan": "Choose and price a training or serving plan.",
    "simulate": "A serving plan under a load: latencies, goodput, cost.",
    "roofline": "One matmul on one chip: what bounds it.",
    "validate": "Predicted against measured step times of published runs.",
    "book": "The book's numbers, rules and figures, worked out live.",
    "shard": "What each device holds of a sharded array.",
    "train": "Train a plan's model on the devices at hand.",
    "compile": "A plan, or any JAX function, by the real compiler, with no accelerator.",
    "report": "What a report folder of compile holds: timeline, ops, memory, graph.",
    "compare": "A plan beside its compiled program, part by part, and what differs.",
    "explain": "Where the time of a compiled step goes, and its mistakes.",
    "profile": "Time a plan, or any JAX function, on the devices here, op by op.",
    "calibrate": "Measure this machine, or a live server, as a hardware file.",
    "serve": "An OpenAI-compatible server of a checkpoint.",
    "generate": "Go on with a text.",
    "chat": "Chat with a model.",
    "bench": "A load on a live server.",
    "check": "A launch script or recipe: does it fit, how fast, what to change.",
    "export": "A plan in the words of another framework.",
    "ui": "A page on this machine with every view.",
    "hw": "Chips, networks, slices and prices of the catalogue.",
    "model": "Parameters, FLOPs and KV cache of a model.",
    "schema": "What a command prints with --json, as a JSON Schema.",
}
"""Every command and what it is for; its module has its name."""


@click.command(
    cls=LazyGroup,
    lazy=COMMANDS,
    home=f"{__name__}.",
    elsewhere={"chat": "generate"},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="shardwise")
def cli() -> None:
    """Shard, price and plan language models on TPUs and GPUs."""


def main(argv: list[str] | None = None) -> None:
    """Run one command; a bad request prints one message and exits with its class's code."""
    settle()
    code = 1
    try:
        code = _code_of(argv)
    finally:
        code = finish(code)
    sys.exit(code)


def _code_of(argv: list[str] | None) -> int:
    """The exit code of one command, whose errors are printed. Other exceptions are our own mistakes
    and go through, with their traceback."""
    try:
        code = cli.main(args=argv, prog_name="shardwise", standalone_mode=False)
    except ShardwiseError as error:
        say(f"error: {error}")
        return error.exit_code
    except click.ClickException as error:
        message = error.format_message()
        # A group without a command "fails" with its help text.
        say(message if message.startswith("Usage:") else f"error: {message}")
        return 2
    except (InterruptedRunError, click.Abort):
        say("error: interrupted")
        return 130
    except ReaderGoneError:
        discard()
        return 0
    except OSError as error:
        if code := full(error):
            return code
        raise
    except MemoryError:
        say("error: out of memory; ask for less at once, or give the process more")
        return 1
    except RecursionError:
        say("error: what was given is nested too deeply; flatten it")
        return 1
    return code if isinstance(code, int) else 0
