"""llm-d's router: what spreads requests over several servers, and prompts over a pool of their own.

An InferencePool names the pods, a Gateway hands it requests, and for each the endpoint picker
chooses the pod. Objects, flags and plugins are those of llm-d-router v0.9.0
(deploy/components/inference-gateway, deploy/config) and of the Gateway API's inference extension
v1; `scripts/check_exports.py k8s` holds them against those repositories.
"""

from collections.abc import Mapping

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
_POOLS, _PORT = "inference.networking.k8s.io", 9002
_READ = ["get", "watch", "list"]


def router(name: str, routing: str, two: bool) -> list[Manifest]:
    """All objects of the router of the pods of app `name`."""
    picker = f"{name}-epp"
    return [
        _inference_pool(name, picker),
        _route(name),
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": picker}},
        *_rights(picker),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": picker},
            "data": {"plugins.yaml": yaml_text(picker_config(routing, two))},
        },
        _picker(name, picker),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": picker},
            "spec": {
                "selector": {"app": picker},
                "ports": [{"name": "grpc", "port": _PORT, "appProtocol": "http2"}],
            },
        },
    ]


def picker_config(routing: str, two: bool) -> Manifest:
    """How a pod is chosen for a request, and where there are two pools one of each."""
    scorers = SCORERS[routing]
    used = [_HELPERS[s] for s in scorers if s in _HELPERS] + [*scorers, "max-score-picker"]
    chosen = [{"pluginRef": plugin} for plugin in (*scorers, "max-score-picker")]
    if not two:
        plugins = [{"type": plugin} for plugin in (*used, "single-profile-handler")]
        profiles = [{"name": "default", "plugins": chosen}]
    else:
        decider = "always-disagg-pd-decider"
        handler = {
            "type": "disagg-profile-handler",
            "parameters": {"deciders": {"prefill": decider}},
        }
        filters = ("prefill-filter", "decode-filter")
        plugins = [{"type": plugin} for plugin in (decider, *filters, *used)] + [handler]
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


def _inference_pool(name: str, picker: str) -> Manifest:
    return {
        "apiVersion": f"{_POOLS}/v1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "targetPorts": [{"number": PORT}],
            "endpointPickerRef": {"name": picker, "kind": "Service", "port": {"number": _PORT}},
        },
    }


def _route(name: str) -> Manifest:
    """All requests of the Gateway, however long an answer takes."""
    pool = {"group": _POOLS, "kind": "InferencePool", "name": name}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name},
        "spec": {
            "parentRefs": [{"name": GATEWAY}],
            "rules": [
                {
                    "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                    "backendRefs": [pool],
                    "timeouts": {"request": "0s"},
                }
            ],
        },
    }


def _rights(picker: str) -> list[Manifest]:
    """The picker reads pods and pools."""
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": _READ},
        {"apiGroups": [_POOLS], "resources": ["inferencepools"], "verbs": _READ},
        {
            "apiGroups": ["inference.networking.x-k8s.io", "llm-d.ai"],
            "resources": ["inferenceobjectives", "inferencemodelrewrites"],
            "verbs": _READ,
        },
    ]
    group = "rbac.authorization.k8s.io"
    return [
        {
            "apiVersion": f"{group}/v1",
            "kind": "Role",
            "metadata": {"name": picker},
            "rules": rules,
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": picker},
            "subjects": [{"kind": "ServiceAccount", "name": picker}],
            "roleRef": {"apiGroup": group, "kind": "Role", "name": picker},
        },
    ]


def _picker(name: str, picker: str) -> Manifest:
    """One picker alone sees every request, and so every queue."""
    here = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}
    container = {
        "name": "epp",
        "image": f"ghcr.io/llm-d/llm-d-router-endpoint-picker:{LLM_D}",
        "args": [
            f"--pool-name={name}",
            "--pool-namespace=$(NAMESPACE)",
            f"--pool-group={_POOLS}",
            "--config-file=/config/plugins.yaml",
            f"--grpc-port={_PORT}",
            "--metrics-endpoint-auth=false",
        ],
        "env": [{"name": "NAMESPACE"} | here],
        "ports": [{"containerPort": _PORT}],
        "volumeMounts": [{"name": "config", "mountPath": "/config"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": picker},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app": picker}},
            "template": {
                "metadata": {"labels": {"app": picker}},
                "spec": {
                    "serviceAccountName": picker,
                    "containers": [container],
                    "volumes": [{"name": "config", "configMap": {"name": picker}}],
                },
            },
        },
    }
