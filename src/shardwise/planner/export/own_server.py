"""Our own server as manifests know one: it reads the plan itself, from a file that they bring.

`deploy/` starts `shardwise serve` with the plan in a ConfigMap, its checkpoint on a volume and its
key from a Secret; its flags are only where to listen and how hosts meet (docs/serving.md). No
image of it is published: `Containerfile` builds one.
"""

from collections.abc import Iterator

from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.export.flags import Flags
from shardwise.planner.export.hardware import is_tpu
from shardwise.planner.export.notes import Fields
from shardwise.planner.export.server_program import (
    HostWords,
    PlanFile,
    ServerPool,
    ServerProgram,
    spread_over_hosts,
)
from shardwise.plans.servers import JAX
from shardwise.plans.software import Obstacle

MEETING_PORT = 8476
"""Where JAX's processes meet; the next one is for the steps that host 0 sends (docs/serving.md)."""
DRAIN_SECONDS = 600
"""How long a server that is stopped may finish its requests."""
REQUESTS = {"cpu": "4", "memory": "8Gi"}
"""The engine's thread, that of the sockets, and two that compile; of memory 1.6 GB that an hour of
soak took (docs/lab/log.md), and while it loads one tensor of the checkpoint at a time, twice."""


def _obstacles(pool: ServerPool, cfg: ModelConfig) -> Iterator[Obstacle]:
    """What pods of it do not run."""
    yield from spread_over_hosts(pool)
    if pool.plan.prefill_replicas:
        yield Obstacle(
            field="prefill_replicas",
            value=pool.plan.prefill_replicas,
            rule="prefill and decode run in one process on one host",
            remedy="plan with --pools one, or start `shardwise serve PLAN` there",
        )


def _hosts(pool: ServerPool, here: HostWords) -> list[str]:
    return [
        f"--coordinator={here.leader}:{MEETING_PORT}",
        f"--processes={pool.hosts}",
        f"--process={here.rank}",
    ]


def _read(flags: Flags) -> Fields:
    raise BadRequest(
        f"{JAX.name}: the flags of `shardwise serve` are not a plan; give the file of its plan"
    )


def _image(piece: Slice) -> str:
    """Of the Containerfile's kinds, by the user's registry."""
    kind = "tpu" if is_tpu(piece) else "cuda12"
    return f"EDIT-REGISTRY/shardwise:{kind}"


OWN_SERVER = ServerProgram(
    name=JAX.name,
    title=f"{JAX.title} (shardwise serve)",
    command=lambda piece, model: ["shardwise", "serve"],
    marks=("shardwise serve",),
    obstacles=_obstacles,
    flags=lambda pool, cfg: {"--host": "0.0.0.0", "--warm": "all", "--drain-time": DRAIN_SECONDS},
    read=_read,
    known=(),
    passed_over=(),
    hosts=_hosts,
    environment=lambda pool: {},
    router="",
    two_pools="",
    policies={},
    sidecar="",
    package=lambda piece: None,
    image=_image,
    plan_file=PlanFile(
        key="SHARDWISE_API_KEY",
        drain_seconds=DRAIN_SECONDS,
        following_port=MEETING_PORT + 1,
        requests=REQUESTS,
        cache_key="XDG_CACHE_HOME",
    ),
)
