"""What a record of manifests is held against: schemas and words of public repositories.

A folder has a bare copy of each at OWNER+NAME/repo. Read are the schemas of the objects that
Kubernetes itself does not have, and the flags and plugins that llm-d's router knows at the release
that the manifests start.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from shardwise.planner.export.deploy.pods import LLM_D

RESOURCES = {
    "kubernetes-sigs+lws": "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
    "kubernetes-sigs+gateway-api-inference-extension": (
        "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"
    ),
}
"""Custom resources by repository."""

ROUTE = ("datreeio+CRDs-catalog", "gateway.networking.k8s.io/httproute_v1.json")
ROUTER = "llm-d+llm-d-router"
OPTIONS = ("pkg/epp/server/options.go", "pkg/sidecar/proxy/options.go")
PLUGIN = r'Type\s*=\s*"([a-z0-9-]+)"'


def read_repositories(folder: Path) -> dict[str, Any]:
    """Schemas by kind, words of the router, and the commit of each repository."""
    schemas = {"HTTPRoute": json.loads(shown(folder, ROUTE[0], "HEAD", ROUTE[1]))}
    for name, path in RESOURCES.items():
        resource = yaml.safe_load(shown(folder, name, "HEAD", path))["spec"]
        version = next(v for v in resource["versions"] if v["storage"])
        schemas[resource["names"]["kind"]] = version["schema"]["openAPIV3Schema"]
    words = {word for path in OPTIONS for word in quoted(shown(folder, ROUTER, LLM_D, path))}
    found = git(folder, ROUTER, "grep", "-hE", PLUGIN.replace(r"\s", " "), LLM_D, "--", "pkg/epp")
    words |= set(re.findall(PLUGIN, found))
    commits = {name: git(folder, name, "rev-parse", "HEAD").strip()[:12] for name in RESOURCES}
    commits |= {ROUTE[0]: git(folder, ROUTE[0], "rev-parse", "HEAD").strip()[:12]}
    return {"schemas": schemas, "words": sorted(words), "commits": commits | {ROUTER: LLM_D}}


def quoted(text: str) -> list[str]:
    """The words in quotes."""
    return re.findall(r'"([a-z][a-z0-9-]+)"', text)


def shown(folder: Path, name: str, revision: str, path: str) -> str:
    """A file of a repository."""
    return git(folder, name, "show", f"{revision}:{path}")


def git(folder: Path, name: str, *words: str) -> str:
    """What git says of a repository."""
    command = ["git", "-C", str(folder / name / "repo"), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
