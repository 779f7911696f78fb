"""`shardwise serve`: an OpenAI-compatible server of a checkpoint, on the devices at hand."""

import os
import sys

import click

from shardwise.apps.cli.command import command, ended_at_once, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import tell
from shardwise.apps.cli.parts import needed_for
from shardwise.apps.server.memory import share_arena
from shardwise.errors import BadRequest


@command("serve")
def serve(_: Outputs) -> None:
    """Serve the checkpoint in MODEL_DIR with OpenAI's API, until SIGTERM or Ctrl-C; or a serving
    PLAN, on as many of the devices here as its mesh and replicas need.

    /v1/completions, /v1/chat/completions, /v1/responses, /v1/models, /tokenize, /detokenize,
    /health, /metrics; /openapi.json has their fields. After the signal, the server first answers
    the requests that it has accepted.
    """
    share_arena()
    with needed_for("serving"):
        from shardwise.apps.server.run import bound, run_server
        from shardwise.apps.server.state import ServerLimits
        from shardwise.apps.web.hosts import LOOPBACK, host_rule
        from shardwise.commands.run.serving import ServerRequest, keep_programs, open_replica
    asked = request_of(ServerRequest)
    keys = asked.api_key or tuple(filter(None, [os.environ.get("SHARDWISE_API_KEY")]))
    if "" in keys:
        raise BadRequest("--api-key is empty; give a key, or leave it out")
    if asked.host not in LOOPBACK and not keys:
        click.echo(f"warning: whoever reaches {asked.host} may ask; see --api-key", err=True)
    hosts = host_rule(asked.host, asked.allowed_hosts, keyed=bool(keys))
    keep_programs()
    port = 0 if asked.process else asked.port  # only host 0 is asked
    with ended_at_once(), bound(asked.host, port) as listening:
        replica = open_replica(asked, tell)
        if replica is None:
            return
        limits = ServerLimits(queue=asked.queue, seconds=asked.request_time, drain=asked.drain_time)
        code = run_server(
            replica,
            listening,
            limits=limits,
            api_keys=keys,
            hosts=hosts,
            level=asked.log_level,
            ready=lambda url: click.echo(f"{replica.name} is served at {url}", err=True),
        )
        replica.close()
        if replica.compiles:  # Python would wait for the program, up to minutes
            sys.stderr.flush()
            os._exit(code)
    sys.exit(code)
