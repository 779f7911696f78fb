"""A ServePlan as something to deploy: the servers of its pools, what spreads requests over them,
and the load that checks the answer.

`k8s.py` writes and reads Kubernetes manifests, the router of several servers among them, of
`pods.py` (a server on one host or several); `sky_service.py` a service of SkyPilot. The commands in
them are those of `--to vllm` and `--to sglang`, by the plan's engine; manifests also start our own
server (`own_server.py`). `started.py` has what both
ask of a plan. Read `k8s.py` first.
"""

from collections.abc import Mapping
from functools import partial

from shardwise.hardware import Slice
from shardwise.planner.export.deploy import k8s, sky_service
from shardwise.planner.export.deploy.pods import yaml_text
from shardwise.planner.export.notes import Exporter
from shardwise.planner.export.own_server import OWN_SERVER
from shardwise.planner.export.server_program import ServerProgram
from shardwise.plans.servers import JAX

LOST = {
    "scheduling.acceptance": "it is measured, not chosen",
    "scheduling.acceptances": "they are measured, not chosen",
}
"""What neither has a word for."""


def exporters(programs: Mapping[str, ServerProgram]) -> Mapping[str, Exporter]:
    """By the name that `--to` takes; `programs` are the servers that they start."""
    known = {
        k8s: {**programs, JAX.engine: OWN_SERVER, JAX.tpu_engine: OWN_SERVER},
        sky_service: programs,
    }
    return {
        module.TARGET: Exporter(
            write=partial(module.write, starts), read=partial(module.read, starts), lost=_lost
        )
        for module, starts in known.items()
    }


def _lost(piece: Slice) -> Mapping[str, str]:
    return LOST


__all__ = ["exporters", "yaml_text"]
