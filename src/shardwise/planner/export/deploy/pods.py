"""A server as pods: a Deployment where one host holds it, a LeaderWorkerSet where several do.

`LeaderWorkerSet` is the object of kubernetes-sigs/lws, which gives each of its pods the address of
the first (`LWS_LEADER_ADDRESS`) and its own number (`LWS_WORKER_INDEX`). TPUs are asked for by
GKE's labels, GPUs by those of NVIDIA's GPU feature discovery. In two pools the pods that decode
have llm-d's sidecar, which has a prompt prefilled elsewhere first (llm-d-router v0.9.0,
docs/disaggregation.md).
"""

import json
from collections.abc import Sequence
from typing import Any

from shardwise.hardware.names import exported
from shardwise.hardware.shapes import shape_text
from shardwise.models import ModelConfig
from shardwise.planner.export.hardware import is_tpu
from shardwise.planner.export.server_program import (
    ALONE,
    DECODE,
    PLAN_FILE,
    HostWords,
    PlanFile,
    ServerPool,
    ServerProgram,
    flag_words,
)

TARGET = "k8s"
PORT, INNER_PORT = 8000, 8200
"""Where a server answers, and where one does behind a sidecar."""

ROLE, ENGINE = "llm-d.ai/role", "llm-d.ai/engine-type"
ROLES = {"both": ALONE, "prefill": "prefill", "decode": "decode"}
"""What llm-d calls the roles of a server, and what we do."""

SERVER = "server"
LLM_D = "v0.9.0"
ACCELERATOR, TOPOLOGY = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"
PRODUCT = "nvidia.com/gpu.product"
TPU, GPU = "google.com/tpu", "nvidia.com/gpu"

Manifest = dict[str, Any]


def yaml_text(document: Manifest) -> str:
    """A document as YAML: every value where it stands, a text of several lines as it is."""
    import yaml

    class Plain(yaml.SafeDumper):
        """Writes no value as a reference to an equal one."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> Any:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Plain.add_representer(str, text)
    return yaml.dump(document, Dumper=Plain, sort_keys=False, width=1000)


def servers(program: ServerProgram, pool: ServerPool, cfg: ModelConfig, name: str) -> Manifest:
    """All servers of a pool."""
    labels = {"app": name, ROLE: _role(pool), ENGINE: program.name}

    def pod(place: int | None) -> Manifest:
        takes = labels if not place else {}
        return _pod(program, pool, name, takes, _words(program, pool, cfg, place))

    if pool.hosts == 1:
        api, kind = "apps/v1", "Deployment"
        body = {"selector": {"matchLabels": labels}, "template": pod(None)}
    else:
        api, kind = "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"
        group = {"size": pool.hosts, "restartPolicy": "RecreateGroupOnPodRestart"}
        templates = {"leaderTemplate": pod(0), "workerTemplate": pod(1)}
        body = {"leaderWorkerTemplate": group | templates}
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": f"{name}-{pool.role}", "labels": labels},
        "spec": {"replicas": pool.servers, **body},
    }


def _role(pool: ServerPool) -> str:
    return next(theirs for theirs, ours in ROLES.items() if ours == pool.role)


def _words(
    program: ServerProgram, pool: ServerPool, cfg: ModelConfig, place: int | None
) -> list[str]:
    """The command of a host: of the only one (None), the first of several (0), or another."""
    words = program.command(pool.piece, "$(MODEL)")
    if (file := program.plan_file) is not None:
        words += [f"{file.folder}/{PLAN_FILE}", f"--model={file.checkpoint}"]
    values = dict(program.flags(pool, cfg))
    if is_tpu(pool.piece) and pool.role != ALONE:  # in two pools
        given = json.loads(str(values["--kv-transfer-config"]))
        values["--kv-transfer-config"] = json.dumps(given | {"kv_ip": "$(POD_IP)"})
    words += flag_words(values)
    words = [word for word in words if not word.startswith("--port=")]
    words.append(f"--port={INNER_PORT if pool.role == DECODE else PORT}")
    if place is None:
        return words
    rank = "$(LWS_WORKER_INDEX)" if place else "0"
    here = HostWords(leader="$(LWS_LEADER_ADDRESS)", rank=rank, others="--headless")
    words += [w for w in program.hosts(pool, here) if place or w != here.others]
    by_ray = is_tpu(pool.piece) and program.plan_file is None
    return _joined_by_ray(words, place) if by_ray else words


def _joined_by_ray(words: list[str], place: int) -> list[str]:
    """A host of a TPU slice: the first starts Ray and the server, the others join."""
    if place:
        return ["sh", "-c", "exec ray start --address=$(LWS_LEADER_ADDRESS):6379 --block"]
    return ["sh", "-c", 'ray start --head --port=6379 && exec "$0" "$@"', *words]


def _pod(
    program: ServerProgram, pool: ServerPool, name: str, labels: dict[str, str], words: list[str]
) -> Manifest:
    """A pod of a server; one without labels takes no requests."""
    chips = pool.chips_per_host
    main: Manifest = {
        "name": SERVER,
        "image": program.image(pool.piece),
        "command": words[:1],
        "args": words[1:],
        "env": _environment(program, pool, name),
        "resources": {"limits": {TPU if is_tpu(pool.piece) else GPU: str(chips)}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    if labels:
        main |= _answers(INNER_PORT if pool.role == DECODE else PORT)
    pod: Manifest = {
        "nodeSelector": _nodes(pool),
        "containers": [main],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}],
    }
    if pool.role == DECODE and labels:
        pod["initContainers"] = [_sidecar(program)]
    about: Manifest = {"labels": labels} if labels else {}
    if program.plan_file is not None:
        _bring(program.plan_file, name, pod)
        about |= {"annotations": _SCRAPED} if labels else {}
    return {"metadata": about, "spec": pod}


_SCRAPED = {
    "prometheus.io/scrape": "true",
    "prometheus.io/path": "/metrics",
    "prometheus.io/port": str(PORT),
}
"""By which Prometheus finds a pod's metrics."""
PROBED = {"timeoutSeconds": 5}
"""A server that compiles or takes in a long prompt may not answer within Kubernetes' 1 s."""
LEAVING = 10
"""Seconds in which a Service forgets a pod that ends, before its server is told."""


def _bring(file: PlanFile, name: str, pod: Manifest) -> None:
    """The plan, the checkpoint and the key of a server that reads its plan itself; it ends when
    what it has accepted is answered, and runs as nobody in particular."""
    (main,) = pod["containers"]
    main["env"] = [api_key(file, name), {"name": file.cache_key, "value": file.cache}]
    main["resources"]["requests"] = dict(file.requests)
    main["volumeMounts"] += [
        {"name": "cache", "mountPath": file.cache},
        {"name": "plan", "mountPath": file.folder, "readOnly": True},
        {"name": "checkpoint", "mountPath": file.checkpoint, "readOnly": True},
    ]
    pod["volumes"] += [
        {"name": "cache", "emptyDir": {}},
        {"name": "plan", "configMap": {"name": name}},
        {
            "name": "checkpoint",
            "persistentVolumeClaim": {"claimName": f"{name}-checkpoint", "readOnly": True},
        },
    ]
    main["lifecycle"] = {"preStop": {"exec": {"command": ["sleep", str(LEAVING)]}}}
    pod["terminationGracePeriodSeconds"] = file.drain_seconds + LEAVING + 30
    main["securityContext"] = {"allowPrivilegeEscalation": False}
    pod["securityContext"] = {"runAsNonRoot": True, "runAsUser": 1000}
    if "readinessProbe" not in main:
        main |= _probes({"exec": {"command": following(file.following_port)}})
    main["livenessProbe"] = main["readinessProbe"] | {"failureThreshold": 6}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        main[kind] |= PROBED


def following(port: int) -> list[str]:
    """What tells of a host that is asked nothing whether it is connected to the first one: the
    kernel's tables of connections have the other end's port in hexadecimal, and 01 for open."""
    return ["grep", "-q", f":{port:04X} 01 ", "/proc/net/tcp", "/proc/net/tcp6"]


def api_key(file: PlanFile, name: str) -> Manifest:
    """The variable with the key of a server, from its Secret."""
    secret = {"name": f"{name}-key", "key": "key"}
    return {"name": file.key, "valueFrom": {"secretKeyRef": secret}}


def _nodes(pool: ServerPool) -> dict[str, str]:
    """The hosts that a pod may run on."""
    called = exported(TARGET)[pool.piece.chip.id]
    if is_tpu(pool.piece):
        return {ACCELERATOR: called, TOPOLOGY: shape_text(pool.piece.shape)}
    return {PRODUCT: called}


def _environment(program: ServerProgram, pool: ServerPool, name: str) -> list[Manifest]:
    """The checkpoint, the token that may fetch it, and where a cache is handed over."""
    here = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    secret = {"name": "hf-token", "key": "token", "optional": True}
    found: list[Manifest] = [
        setting("MODEL", name),
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}},
    ]
    if pool.role != ALONE:
        found += [{"name": n} | here for n in ("POD_IP", "VLLM_NIXL_SIDE_CHANNEL_HOST")]
    return found + [{"name": k, "value": v} for k, v in program.environment(pool).items()]


def setting(key: str, name: str) -> Manifest:
    """A variable with a value of the ConfigMap of a plan."""
    return {"name": key, "valueFrom": {"configMapKeyRef": {"name": name, "key": key}}}


def _answers(port: int) -> Manifest:
    """Where a server answers; it may take an hour to load."""
    probe = {"httpGet": {"path": "/health", "port": port}}
    return {"ports": [{"containerPort": port}], **_probes(probe)}


def _probes(probe: Manifest) -> Manifest:
    return {
        "startupProbe": probe | {"periodSeconds": 10, "failureThreshold": 360},
        "readinessProbe": probe | {"periodSeconds": 10},
    }


def _sidecar(program: ServerProgram) -> Manifest:
    """What asks a server that prefills before the one beside it."""
    return {
        "name": "routing-proxy",
        "image": f"ghcr.io/llm-d/llm-d-router-disagg-sidecar:{LLM_D}",
        "restartPolicy": "Always",
        "args": [
            f"--port={PORT}",
            f"--vllm-port={INNER_PORT}",
            f"--kv-connector={program.sidecar}",
            "--secure-proxy=false",
        ],
        "ports": [{"containerPort": PORT}],
    }


def check_job(
    words: Sequence[str], image: str, name: str, env: Sequence[Manifest] = ()
) -> Manifest:
    """The load that checks the answer, started by hand."""
    named = [key for key in ("MODEL", "URL") if any(f"$({key})" in word for word in words)]
    run = {
        "name": "bench",
        "image": image,
        "command": list(words[:1]),
        "args": list(words[1:]),
        "env": [*(setting(key, name) for key in named), *env],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{name}-bench"},
        "spec": {
            "suspend": True,
            "backoffLimit": 0,
            "template": {"spec": {"restartPolicy": "Never", "containers": [run]}},
        },
    }
