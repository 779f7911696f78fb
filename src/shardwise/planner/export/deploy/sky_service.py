"""A plan as a service of SkyPilot (`sky serve up`): alike servers behind its load balancer.

Fields as in docs.skypilot.co and in the schemas of the package, which take them
(docs/lab/exports_checked.json).
"""

import shlex
from collections.abc import Iterator

from shardwise.boundary import parse_yaml, whole
from shardwise.errors import BadRequest
from shardwise.hardware import Slice, parse_slice
from shardwise.hardware.names import exported
from shardwise.models import ModelConfig
from shardwise.planner.export.deploy.pods import yaml_text
from shardwise.planner.export.deploy.started import (
    MODEL,
    Programs,
    checked_pools,
    chip_fields,
    program_of,
    slice_fields,
    unnamed,
)
from shardwise.planner.export.hardware import is_tpu, safe_names
from shardwise.planner.export.load_check import check_words
from shardwise.planner.export.notes import Fields, meant, number
from shardwise.planner.export.server_flags import no_word
from shardwise.planner.export.server_program import HostWords, ServerPool, flag_words
from shardwise.planner.export.xpk import job_name
from shardwise.plans import ServePlan
from shardwise.plans.software import Obstacle

TARGET, PORT = "skypilot", 8000
POLICIES = {"shortest_queue": "least_load", "round_robin": "round_robin"}

_HOSTS = HostWords(
    leader='"$(echo "$SKYPILOT_NODE_IPS" | head -n1)"',
    rank='"$SKYPILOT_NODE_RANK"',
    others='$( [ "$SKYPILOT_NODE_RANK" = 0 ] || echo --headless )',
)

__all__ = ["TARGET", "read", "write"]


def write(programs: Programs, plan: ServePlan, cfg: ModelConfig, piece: Slice) -> str:
    """The YAML of one service."""
    program, pools = checked_pools(TARGET, programs, plan, cfg, piece, _obstacles(plan, piece))
    pool, name = pools[0], job_name(cfg.name)
    words = [shlex.quote(word) for word in program.command(piece, "MODEL")]
    words = [word.replace("MODEL", '"$MODEL"') for word in words]
    words += map(shlex.quote, flag_words(program.flags(pool, cfg)))
    words += program.hosts(pool, _HOSTS) if pool.hosts > 1 else []
    service = {
        "name": name,
        "service": {
            "readiness_probe": {"path": "/health", "initial_delay_seconds": 3600},
            "replicas": plan.replicas,
            "load_balancing_policy": POLICIES[plan.routing],
        },
        "resources": {"accelerators": _accelerators(pool), "ports": PORT},
        "num_nodes": 1 if is_tpu(piece) else pool.hosts,
        "envs": {"MODEL": MODEL, **program.environment(pool)},
        "setup": f"pip install {shlex.quote(program.package(piece) or '')}",
    }
    run = " \\\n    ".join(words)
    return "\n".join(
        [
            "# Edit MODEL. sky serve up FILE starts the servers, this measures them:",
            f"#   {_check(plan, name)}",
            f"{yaml_text(service)}run: |\n  {run}\n",
        ]
    )


def _check(plan: ServePlan, name: str) -> str:
    """The load that checks the answer, on one line."""
    model, url = '"$MODEL"', f'"http://$(sky serve status --endpoint {name})"'
    words = map(shlex.quote, check_words(plan, "MODEL", "URL"))
    return " ".join(words).replace("=MODEL", f"={model}").replace("=URL", f"={url}")


def _accelerators(pool: ServerPool) -> str:
    """Of one host; of a TPU slice all of it."""
    if is_tpu(pool.piece):
        return f"tpu-{safe_names(pool.piece)[0]}"
    return f"{exported(TARGET)[pool.piece.chip.id]}:{pool.chips_per_host}"


def _obstacles(plan: ServePlan, piece: Slice) -> Iterator[Obstacle]:
    if plan.prefill_replicas:
        yield Obstacle(
            field="prefill_replicas",
            value=plan.prefill_replicas,
            rule="a service has one kind of server",
            remedy="plan with --pools one, or export to k8s",
        )
    if plan.routing not in POLICIES:
        yield no_word("routing", plan.routing, tuple(POLICIES))
    if not is_tpu(piece):
        yield from unnamed(TARGET, piece)
    elif piece.hosts > 1 or not safe_names(piece):
        yield Obstacle(
            field="slice",
            value=str(piece),
            rule="it starts servers on TPUs of one host, by Cloud's names",
            remedy="plan on chips of one host, or export to k8s",
        )


def read(programs: Programs, text: str) -> Fields:
    """The fields that the service says."""
    service = parse_yaml(text, f"{TARGET}: the service")
    try:
        words = shlex.split(str(service["run"]).replace("\\\n", " "))
        accelerators = str(service["resources"]["accelerators"])
        wanted = service["service"]
        policy = str(wanted.get("load_balancing_policy", "least_load"))
        servers = whole(wanted.get("replicas", 1), f"{TARGET}: replicas", least=1, most=1e6)
        hosts = whole(service.get("num_nodes", 1), f"{TARGET}: num_nodes", least=1, most=1e6)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise BadRequest(
            f"{TARGET}: the service needs service, resources.accelerators and run"
        ) from None
    return program_of(programs, TARGET, words).fields(words) | {
        "replicas": servers,
        "routing": meant(TARGET, "load_balancing_policy", policy, POLICIES),
        **_chips(accelerators, hosts),
    }


def _chips(accelerators: str, hosts: int) -> Fields:
    if accelerators.startswith("tpu-"):
        return slice_fields(parse_slice(accelerators.removeprefix("tpu-")))
    name, _, each = accelerators.partition(":")
    return chip_fields(TARGET, name, number(TARGET, "accelerators", each or "1"), hosts)
