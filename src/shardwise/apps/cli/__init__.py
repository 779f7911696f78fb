"""The command line. `main` is the entry point; each command lives in a file of its own.

`COMMANDS` and `PLANS` say what each is for, and a command's module is imported only when it runs,
so that `--help` stays fast (`LazyGroup`). Read `plan_show.py` first: it is short.

Each makes a request (`commands/`) of its options, by name, answers it, writes the files that were
asked for, and shows the answer. Planning: `plan_train.py`, `plan_serve.py`, `plan_sweep.py`,
`plan_show.py`, `plan_diff.py` and `plan_schema.py`; `plan_train.py` also says what to type then.
`simulate.py` puts a load on a serving plan, `export.py` writes a plan for other software and
`check.py` says what to change in its files. Programs: `compile.py` (`report.py` reads what it
wrote), `compare.py`, `explain.py`, `profile.py` and `train.py`. Models at work: `serve.py` (the
server itself is `apps/server/`), `generate.py` (a text, a chat), `bench.py`. The page: `ui.py`
(what it shows is `apps/page/`). Sharding: `shard.py`. Tables: `hw.py`, `model.py`, `roofline.py`,
`book.py`. Documents: `schema.py`. How right it is: `validate.py`, `calibrate.py`.

Pictures: `pictures.py` alone imports matplotlib (`charts.py` has what charts share: ticks, marks,
labels), for `pipeline_chart.py` (with `timeline.py`), `serve_chart.py`, `simulate_chart.py`,
`sweep_chart.py`, `roofline_chart.py`, `compile_plot.py`, `validate_plot.py`, `shard_views.py`, and
of the book's machines `simulation_pictures.py`. `player.py` writes the page that plays them, which
lies in `data/`. What all share: `command.py` (a command, and groups of options in `--help`),
`options.py` (options made of requests, and those of the command line alone: files to write, how
much is shown), `completion.py` (what a shell offers), `parts.py` (packages that the plain install
leaves out), `output.py` shows answers as documents and as pages, and how far a run is; `streams.py`
errors.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from shardwise.apps.cli.streams import (
    InterruptedRunError,
    ReaderGoneError,
    discard,
    finish,
    full,
    reader_left,
    say,
    settle,
)
from shardwise.errors import ShardwiseError

COMMANDS = {
    "plan": "Choose and price a training or serving plan.",
    "simulate": "Simulate a serving plan under a load: latencies, goodput, cost.",
    "roofline": "One op on one chip: what bounds it, how good a time is.",
    "validate": "Predicted against measured step times of published runs.",
    "book": "Numbers, rules and figures of the book, computed live.",
    "shard": "Shards of an array on each device, and the collectives of an expression.",
    "train": "Train the model of a plan on the devices here.",
    "compile": "Compile a plan, or any JAX function, without an accelerator.",
    "report": "Show a report folder of compile: timeline, ops, memory, graph.",
    "compare": "Compare a plan with its compiled program, part by part.",
    "explain": "Where the time of a compiled step goes, and mistakes that cost time.",
    "profile": "Time a plan, or any JAX function, on the devices here, op by op.",
    "calibrate": "Measure this machine, or a live server, and write a hardware file.",
    "serve": "Serve a checkpoint with an OpenAI-compatible API.",
    "generate": "Continue a text.",
    "chat": "Chat with a model.",
    "bench": "Put a load on a live server.",
    "check": "Check a launch script or recipe: does it fit, how fast, what to change.",
    "export": "Write a plan as a file of another framework, or read one.",
    "ui": "Open a page on this machine with every view.",
    "hw": "Chips, networks, slices and prices of the catalogue.",
    "model": "Parameters, FLOPs and KV cache of a model.",
    "schema": "The JSON Schema of what a command prints with --json.",
}
"""Every command and what it is for; its module has its name."""

PLANS = {
    "train": "The simplest of the fastest training plans, and why.",
    "serve": "The cheapest servers that hold a load.",
    "sweep": "Plan every slice, batch and length; how speed and cost scale.",
    "show": "Price the plan in a file; compare with the book's rules.",
    "diff": "Choices that differ between two plans, and their effect.",
    "schema": "The JSON Schema of plan files.",
}
"""The commands of `plan`; their modules have `plan_` in front."""


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command is asked for.

    `lazy` says of each command what it is for. Its module is `home` with the command's name behind
    it, or with the name that `elsewhere` has. The command has its own name there, or `NAME_`.
    """

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, str],
        home: str,
        elsewhere: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.lazy, self.home, self.elsewhere = lazy, home, elsewhere or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse what is not text before it reaches a message, which could not be printed."""
        from shardwise.boundary.arguments import check_arguments

        check_arguments(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        module = importlib.import_module(self.home + self.elsewhere.get(cmd_name, cmd_name))
        return getattr(module, cmd_name, None) or getattr(module, f"{cmd_name}_")

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        return _outside_click(super().make_context, *args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        return _outside_click(super().invoke, ctx)

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args and args[0] not in self.lazy:
            from shardwise.errors import unknown

            raise unknown("command", args[0], self.lazy, f"see `{ctx.command_path} --help`")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.lazy.items()))


def _outside_click(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call it; a pipe that is closed and Ctrl-C end as we say, not as click does."""
    try:
        return function(*args, **options)
    except BrokenPipeError as error:
        raise reader_left(error) from None
    except KeyboardInterrupt:
        raise InterruptedRunError from None


@click.command(cls=LazyGroup, lazy=PLANS, home=f"{__name__}.plan_")
def plan() -> None:
    """Choose and price a plan, or price one from a file."""


@click.command(
    cls=LazyGroup,
    commands={"plan": plan},
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
        message = _with_remedy(error)
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
        say("error: out of memory; ask for less at once, or give the process more memory")
        return 1
    except RecursionError:
        say("error: the input is nested too deeply; flatten it")
        return 1
    return code if isinstance(code, int) else 0


def _with_remedy(error: click.ClickException) -> str:
    """The message of a wrong command line, and what to type in place of it."""
    message = error.format_message()
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option):
        return f"{message} {error.param.help or ''}".rstrip()
    if message.startswith("Got unexpected extra argument"):
        return f"{message}; write an option once for each value, and quote a value that has spaces"
    return message
