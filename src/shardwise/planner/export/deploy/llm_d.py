"""llm-d's router: what spreads requests over several servers, and prompts over a pool of their own.

An InferencePool names the pods, a Gateway hands it requests, and for each the endpoint picker
chooses the pod. `data/llm_d.yaml` has the objects; plugins are those of llm-d-router v0.9.0
(deploy/config), against which `scripts/check_exports.py k8s` holds them.
"""

from collections.abc import Mapping
from pathlib import Path
from string import Template
from textwrap import indent

from shardwise.boundary import read_text
from shardwise.planner.export.deploy.pods import LLM_D, PORT, Manifest, yaml_text

GATEWAY = "inference-gateway"
"""The Gateway that a cluster has to have."""

SCORERS: Mapping[str, tuple[str, ...]] = {
    "shortest_queue": ("active-request-scorer",),
    "prefix_aware": ("prefix-cache-scorer", "active-request-scorer"),
}
"""By the plan's routing, what it chooses a pod by."""

_HELPERS = {
    "prefix-cache-scorer": "approx-prefix-cache-producer",
    "active-request-scorer": "inflight-load-producer",
}
_FILE = Path(__file__).parents[1] / "data" / "llm_d.yaml"


def router(name: str, routing: str, two: bool) -> str:
    """All objects of the router of the pods of app `name`."""
    lines = read_text(_FILE, "the router's manifests").splitlines(keepends=True)
    plain = "".join(line for line in lines if not line.startswith("#"))
    plugins = indent(yaml_text(picker_config(routing, two)).rstrip(), "    ")
    return Template(plain).substitute(
        name=name, port=PORT, gateway=GATEWAY, version=LLM_D, plugins=plugins
    )


def picker_config(routing: str, two: bool) -> Manifest:
    """How a pod is chosen for a request, and where there are two pools one of each."""
    scorers = SCORERS[routing]
    used = [_HELPERS[scorer] for scorer in scorers] + [*scorers, "max-score-picker"]
    chosen = [{"pluginRef": plugin} for plugin in (*scorers, "max-score-picker")]
    if not two:
        plugins = [{"type": plugin} for plugin in (*used, "single-profile-handler")]
        profiles = [{"name": "default", "plugins": chosen}]
    else:
        decider = "always-disagg-pd-decider"
        deciders = {"parameters": {"deciders": {"prefill": decider}}}
        filters = ("prefill-filter", "decode-filter")
        handler: Manifest = {"type": "disagg-profile-handler", **deciders}
        plugins = [*({"type": plugin} for plugin in (decider, *filters, *used)), handler]
        profiles = [
            {"name": role, "plugins": [{"pluginRef": f"{role}-filter"}, *chosen]}
            for role in ("prefill", "decode")
        ]
    return {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": plugins,
        "schedulingProfiles": profiles,
    }
