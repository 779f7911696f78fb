"""A ServePlan as something to deploy: the servers of its pools, what spreads requests over them,
and the load that checks the answer.

`k8s.py` writes and reads Kubernetes manifests, of `pods.py` (a server on one host or several) and
`llm_d.py` (the router of several servers); `sky_service.py` a service of SkyPilot. The commands in
them are those of `--to vllm` and `--to sglang`, by the plan's engine. `started.py` has what both
ask of a plan. Read `k8s.py` first.
"""

from collections.abc import Mapping

from shardwise.planner.export.deploy import k8s, sky_service
from shardwise.planner.export.notes import Exporter
from shardwise.planner.export.server_program import ServerProgram

LOST = {"scheduling.acceptance": "it is measured, not chosen"}
"""What neither has a word for."""


def exporters(programs: Mapping[str, ServerProgram]) -> Mapping[str, Exporter]:
    """By the name that `--to` takes; `programs` are the servers that they start."""
    return {
        module.TARGET: Exporter(
            write=lambda plan, cfg, piece, module=module: module.write(programs, plan, cfg, piece),
            read=lambda text, module=module: module.read(programs, text),
            lost=lambda _: LOST,
        )
        for module in (k8s, sky_service)
    }


__all__ = ["exporters"]
