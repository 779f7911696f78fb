"""A plan as Kubernetes manifests: `kubectl apply` starts it, a Job measures what it promises.

A single server stands behind a Service, several behind llm-d's router. What only the
user knows, the checkpoint and a gateway's address, stands in one ConfigMap.

llm-d's router: what spreads requests over several servers, and prompts over a pool of their own.

An InferencePool names the pods, a Gateway hands it requests, and for each the endpoint picker
chooses the pod. `data/llm_d.yaml` has the objects; plugins are those of llm-d-router v0.9.0
(deploy/config), against which `scripts/check_exports.py k8s` holds them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from string import Template
from textwrap import indent
from typing import Any

from shardwise.boundary import parse_yaml, read_text, whole
from shardwise.errors import BadRequest
from shardwise.hardware import Slice, parse_slice
from shardwise.hardware.names import exported
from shardwise.models import ModelConfig
from shardwise.planner.export.deploy.pods import (
    ACCELERATOR,
    GPU,
    LLM_D,
    PORT,
    PRODUCT,
    ROLE,
    ROLES,
    SERVER,
    TARGET,
    TOPOLOGY,
    TPU,
    Manifest,
    api_key,
    check_job,
    servers,
    yaml_text,
)
from shardwise.planner.export.deploy.started import (
    MODEL,
    Programs,
    checked_pools,
    chip_fields,
    program_of,
    slice_fields,
    unnamed,
)
from shardwise.planner.export.load_check import check_words, load_fields
from shardwise.planner.export.notes import Fields, meant, plan_fields
from shardwise.planner.export.script import script_of
from shardwise.planner.export.server_command import server_words
from shardwise.planner.export.server_flags import no_word
from shardwise.planner.export.server_program import (
    ALONE,
    DECODE,
    PLAN_FILE,
    PREFILL,
    PlanFile,
    ServerPool,
    ServerProgram,
    pools_of,
)
from shardwise.planner.export.vllm import VERSION
from shardwise.planner.export.which_model import model_said
from shardwise.planner.export.xpk import job_name
from shardwise.plans import ServePlan
from shardwise.plans.files import plan_dict, plan_from
from shardwise.plans.software import Obstacle

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


__all__ = ["TARGET", "read", "write"]

CLIENT = f"vllm/vllm-openai:v{VERSION}"
"""What has the client of the check, whichever server answers."""


def write(programs: Programs, plan: ServePlan, cfg: ModelConfig, piece: Slice) -> str:
    """All manifests, a document each."""
    own = _obstacles(plan, piece)
    program, pools = checked_pools(TARGET, programs, plan, cfg, piece, own)
    name = job_name(cfg.name)[:40].rstrip("-")
    routed = len(pools) > 1 or plan.replicas > 1
    address = f"EDIT: the address of Gateway {GATEWAY}" if routed else f"http://{name}:{PORT}"
    data, file = {"MODEL": MODEL, "URL": address}, program.plan_file
    if file is not None:
        data = {"URL": address, PLAN_FILE: yaml_text(plan_dict(replace(plan, replicas=1)))}
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    documents = [settings, *(servers(program, pool, cfg, name) for pool in pools)]
    documents.append(_check(program, plan, piece, name))
    way = router(name, plan.routing, len(pools) > 1) if routed else yaml_text(_service(name))
    return "\n".join(
        [*_head(name, routed, pools, file), "---\n".join([*map(yaml_text, documents), way])]
    )


def _head(
    name: str, routed: bool, pools: tuple[ServerPool, ...], file: PlanFile | None
) -> list[str]:
    """What has to be there and to be filled in, and what to type."""
    needs = ["kubernetes-sigs/lws"] if any(pool.hosts > 1 for pool in pools) else []
    if routed:
        needs.append(f"the Gateway API with its inference extension, and a Gateway {GATEWAY}")
    if file is not None:
        needs.append(f"a claim {name}-checkpoint of a volume with the checkpoint's files")
    lines = [f"# The cluster needs {needed}." for needed in needs]
    edit = f"# Edit ConfigMap {name}; a secret hf-token with key token is used where there is one."
    if file is not None:
        edit = (
            "# Build the image with Containerfile and edit its name. The key that clients give:\n"
            f"#   kubectl create secret generic {name}-key --from-literal=key=KEY"
        )
    return [
        *lines,
        edit,
        "# kubectl apply -f FILE starts the servers, this measures them:",
        f'#   kubectl patch job {name}-bench -p \'{{"spec":{{"suspend":false}}}}\'',
    ]


def _check(program: ServerProgram, plan: ServePlan, piece: Slice, name: str) -> Manifest:
    """The load that checks the answer."""
    file = program.plan_file
    if file is None:
        return check_job(check_words(plan, "$(MODEL)", "$(URL)"), CLIENT, name)
    words = ["shardwise", "bench", "serve", "--endpoint=$(URL)"]
    words += [f"--input={plan.input_length}", f"--output={plan.output_length}"]
    words += [f"--rate={plan.workload.rate:g}"] if plan.workload else []
    return check_job(words, str(program.image(piece)), name, [api_key(file, name)])


def _service(name: str) -> Manifest:
    """The address of the only server."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": PORT}]},
    }


def _obstacles(plan: ServePlan, piece: Slice) -> Iterator[Obstacle]:
    """Chips without a label, and what llm-d's router has no plugin for."""
    for pool in pools_of(plan, piece):
        yield from unnamed(TARGET, pool.piece)
    if (plan.replicas > 1 or plan.prefill_replicas) and plan.routing not in SCORERS:
        yield no_word("routing", plan.routing, tuple(SCORERS))


def read(programs: Programs, text: str) -> Fields:
    """The fields that servers, chips and check say."""
    said: Fields = {}
    pools: dict[str, tuple[int, Fields]] = {}
    for document in _documents(text):
        kind, spec = document.get("kind"), document.get("spec", {})
        try:
            if kind == "ConfigMap" and (plans := _plans(document)):
                return plans | {"replicas": _servers(text)}
            if kind in _WORKLOADS:
                pools |= _pool(programs, spec)
            elif kind == "Job":
                said |= load_fields(_command(spec["template"]["spec"]["containers"][0]))
        except (KeyError, TypeError, AttributeError, IndexError):
            raise BadRequest(
                f"{TARGET}: the {kind} has no pod with a command; give the whole manifest"
            ) from None
    servers_said = pools.get(ALONE) or pools.get(DECODE)
    if servers_said is None:
        marks = ", ".join(dict.fromkeys(program.marks[0] for program in programs.values()))
        raise BadRequest(
            f"{TARGET}: no pod has a server ({marks}); give its manifest as kubectl takes it"
        )
    said |= servers_said[1] | {"replicas": servers_said[0], "prefill_replicas": 0}
    if PREFILL in pools:
        said["prefill_replicas"], own = pools[PREFILL]
        alike = all(own[key] == said[key] for key in ("slice", "mesh"))
        said |= {} if alike else {f"prefill.{key}": own[key] for key in ("slice", "mesh", "box")}
    return said


def _plans(settings: Any) -> Fields:
    """The fields of a plan that a ConfigMap holds for a server that reads it itself."""
    held = settings["data"].get(PLAN_FILE)
    if held is None:
        return {}
    where = f"{TARGET}: {PLAN_FILE}"
    return plan_fields(plan_from(parse_yaml(held, where), where))


def _servers(text: str) -> int:
    """How many servers there are, as the only kind of them says."""
    specs = [d["spec"] for d in _documents(text) if d.get("kind") in _WORKLOADS]
    return whole(specs[0]["replicas"], f"{TARGET}: replicas", least=1, most=1e6)


_WORKLOADS = ("Deployment", "LeaderWorkerSet", "StatefulSet")


def _documents(text: str) -> Iterator[dict[str, Any]]:
    for part in re.sub(r"(?m)[ \t]+$", "", text).split("\n---\n"):  # kubectl takes tabs there
        found = parse_yaml(part, f"{TARGET}: the manifest")
        if isinstance(found, dict):
            yield found


def _pool(programs: Programs, spec: Any) -> dict[str, tuple[int, Fields]]:
    """How many servers of a role there are, and what one says; nothing where it is not a server."""
    several = spec.get("leaderWorkerTemplate")
    pod = several["leaderTemplate"] if several else spec["template"]
    role = pod.get("metadata", {}).get("labels", {}).get(ROLE)
    servers = whole(spec.get("replicas", 1), f"{TARGET}: replicas", least=1, most=1e6)
    hosts = whole(several["size"], f"{TARGET}: size", least=1, most=1e4) if several else 1
    if role is None:
        said = _anybodys(programs, pod["spec"], hosts)
        return {ALONE: (servers, said)} if said else {}
    main = next(c for c in pod["spec"]["containers"] if c["name"] == SERVER)
    words = _command(main)
    fields = program_of(programs, TARGET, words).fields(words)
    limits = main["resources"]["limits"]
    each = whole(next(iter(limits.values())), f"{TARGET}: chips", least=1, most=1e6)
    fields |= _chips(pod["spec"]["nodeSelector"], each, hosts)
    ours = {ours: theirs for theirs, ours in ROLES.items()}
    return {meant(TARGET, ROLE, role, ours): (servers, fields)}


def _anybodys(programs: Programs, pod: Any, hosts: int) -> Fields:
    """What a pod says that nobody wrote for llm-d: the first container that starts a server, and
    its chips where the labels of nodes name them."""
    for container in pod["containers"]:
        script = script_of(f"apiVersion: v1\n{yaml_text({'containers': [container]})}")
        words = server_words(programs.values(), script) if script else []
        if not words:
            continue
        limits = container.get("resources", {}).get("limits", {})
        each = next((int(many) for name, many in limits.items() if name in (GPU, TPU)), 0)
        selector = pod.get("nodeSelector", {})
        named = {PRODUCT, GKE, ACCELERATOR} & {*selector}
        chips = _chips(selector, each, hosts) if each and named else {}
        return program_of(programs, TARGET, words).fields_of_any(words) | model_said(words) | chips
    return {}


def _chips(selector: Any, each: int, hosts: int) -> Fields:
    """The chips that the labels of nodes say."""
    if ACCELERATOR in selector:
        named = {text: chip for chip, text in exported(TARGET).items()}
        return slice_fields(parse_slice(f"{named[selector[ACCELERATOR]]}:{selector[TOPOLOGY]}"))
    if GKE in selector:
        return chip_fields("gke", selector[GKE].replace("-mega", ""), each, hosts)
    return chip_fields(TARGET, selector[PRODUCT], each, hosts)


GKE = "cloud.google.com/gke-accelerator"
"""The label of Google's nodes that names their GPU; H100 with more network is called mega."""


def _command(container: Any) -> list[str]:
    return [str(word) for word in (*container.get("command", ()), *container.get("args", ()))]
