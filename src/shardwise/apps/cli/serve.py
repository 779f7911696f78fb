"""`shardwise serve`: an OpenAI-compatible server of a checkpoint, on the devices at hand."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.numbers import Number, Whole, Word
from shardwise.apps.cli.option_fields import rows
from shardwise.apps.cli.parts import needed_for
from shardwise.apps.server.memory import share_arena
from shardwise.errors import BadRequest

LEVELS = Word(["debug", "info", "warning", "error"])


@click.command(cls=AnswerCommand)
@click.argument("path", metavar="MODEL_DIR|PLAN", type=click.Path())
@click.option("--model", metavar="DIR", help="The checkpoint, where a plan names a model alone.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=Whole(most=65535), default=8000, show_default=True)
@click.option("--served-model", metavar="NAME", help="Its name to clients; default the folder's.")
@click.option("--sequences", type=Whole(least=1, most=4096), help="Default the plan's, else 32.")
@click.option("--prefill-chunk", type=Whole(least=1), help="Default the plan's, else 512.")
@click.option("--seq", type=Whole(least=2), help="Prompt and answer at most; default the model's.")
@click.option("--kv-tokens", type=Whole(least=1), help="Default what the device has room for.")
@click.option(
    "--memory-share", type=Number(above=0, most=1), help="Of a card's memory; default JAX's 0.75."
)
@click.option("--weights", metavar="|".join(rows("weights")), help="Default by device.")
@click.option("--kv", metavar="|".join(rows("kv")), help="Default as computed in.")
@click.option("--guesses", type=Whole(), help="Tokens guessed a step; default the plan's, else 0.")
@click.option("--draft", metavar="DIR", help="Checkpoint that guesses; default: by n-grams.")
@click.option("--tool-format", metavar="NAME", help="How calls are written; default by template.")
@click.option("--warm", type=Word(["lazy", "all"]), default="lazy", show_default=True)
@click.option("--queue", type=Whole(least=1), default=512, show_default=True)
@click.option(
    *("--request-time", "request_time"),
    type=Number(above=0),
    default=3600.0,
    metavar="SECONDS",
    help="Most of an answer.  [3600]",
)
@click.option(
    *("--drain-time", "drain_time"),
    type=Number(least=0),
    default=600.0,
    metavar="SECONDS",
    help="Most for answers after SIGTERM.  [600]",
)
@click.option(
    "--api-key", multiple=True, help="Key to show; may be repeated; default $SHARDWISE_API_KEY."
)
@click.option(
    *("--allowed-host", "allowed_hosts"),
    multiple=True,
    metavar="NAME",
    help="Host that clients call it by; may be repeated; '*': any.",
)
@click.option("--hw", "hw_files", multiple=True, metavar="FILE", help="The chip of a plan's slice.")
@click.option("--cpu-devices", type=Whole(least=1), help="N virtual CPU devices per process.")
@click.option("--coordinator", metavar="HOST:PORT", help="Of several hosts, where they meet.")
@click.option("--processes", type=Whole(least=1), help="How many hosts.")
@click.option("--process", type=Whole(), help="Which of them this is; 0 answers requests.")
@click.option("--log-level", type=LEVELS, default="info", show_default=True)
def serve(**options: Any) -> None:
    """Serve the checkpoint in MODEL_DIR to OpenAI's clients until SIGTERM or Ctrl-C; or a serving
    PLAN, over as many of the devices at hand as its mesh and replicas have.

    /v1/completions, /v1/chat/completions, /v1/responses, /v1/models, /tokenize, /detokenize,
    /health, /metrics; /openapi.json has their fields. What was accepted before the signal is
    answered first.
    """
    share_arena()
    with needed_for("serving"):
        from shardwise.apps.server.run import bound, run_server
        from shardwise.apps.server.state import ServerLimits
        from shardwise.apps.web.hosts import LOOPBACK, host_rule
        from shardwise.commands.run.serving import ServeModelRequest, keep_programs, open_replica
    keys = options["api_key"] or tuple(filter(None, [os.environ.get("SHARDWISE_API_KEY")]))
    if "" in keys:
        raise BadRequest("--api-key is empty; give a key, or leave it out")
    if options["host"] not in LOOPBACK and not keys:
        click.echo(f"warning: whoever reaches {options['host']} may ask; see --api-key", err=True)
    hosts = host_rule(options["host"], options["allowed_hosts"], keyed=bool(keys))
    asked = ServeModelRequest(**{f.name: options[f.name] for f in fields(ServeModelRequest)})
    keep_programs()
    port = 0 if options["process"] else options["port"]  # only host 0 is asked
    with ended_at_once(), bound(options["host"], port) as listening:
        replica = open_replica(asked, lambda line: click.echo(line, err=True))
        if replica is None:
            return
        limits = ServerLimits(
            queue=options["queue"], seconds=options["request_time"], drain=options["drain_time"]
        )
        code = run_server(
            replica,
            listening,
            limits=limits,
            api_keys=keys,
            hosts=hosts,
            level=options["log_level"],
            ready=lambda url: click.echo(f"{replica.name} is served at {url}", err=True),
        )
        replica.close()
        if replica.compiles:  # Python would wait for the program, up to minutes
            sys.stderr.flush()
            os._exit(code)
    sys.exit(code)


@contextmanager
def ended_at_once() -> Iterator[None]:
    """SIGTERM ends the process here, as it would not the first one of a container; a server that
    listens has a handler of its own."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
