"""Manifests of Kubernetes and Compose as the bash that their containers run: variables of `env`,
then `command` and `args`. What a container asks for of GPUs is not its number of processes: the
command says that, or whoever hands in the file. A SkyPilot task is its `envs`, what SkyPilot sets
of its nodes and GPUs (docs.skypilot.co, environment variables), and its `run`."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.boundary import parse_yaml
from shardwise.errors import BadRequest

_LOOKS = re.compile(
    r"^(apiVersion:[ \t]*\S|(services|servingEngineSpec):[ \t]*$|run:[ \t]*[|>])", re.MULTILINE
)
_BEHIND = "\ncat > "
"""How a file begins that stands behind the manifest, as the command that writes it."""


def script_of(text: str) -> str | None:
    """The commands of a manifest's containers, or of a SkyPilot task; None for a text that is
    neither.

    >>> script_of("apiVersion: v1\\nspec:\\n  command: [python, t.py]\\n  args: ['--seed=$(SEED)']")
    'python t.py --seed=${SEED}\\n'
    """
    if _LOOKS.search(text) is None:
        return None
    manifest, begin, files = text.partition(_BEHIND)
    try:
        pieces = re.split(r"(?m)^---$", re.sub(r"(?m)[ \t]+$", "", manifest))
        parts = [parse_yaml(part, "the manifest") for part in pieces]
    except BadRequest:
        return None
    lines = [line for part in parts for line in (_of_task(part) or _commands(part))]
    lines += [line for part in parts for line in _of_stack(part)]
    return "".join(f"{line}\n" for line in lines) + begin + files if lines else None


def _of_task(node: Any) -> list[str]:
    """The lines of a SkyPilot task; none of what is no such."""
    if not isinstance(node, Mapping) or not isinstance(node.get("run"), str):
        return []
    asked = node.get("resources")
    asked = asked.get("accelerators") if isinstance(asked, Mapping) else None
    each = next(iter(asked.values()), "") if isinstance(asked, Mapping) else asked
    found = re.search(r"(?:^|:)(\d+)$", str(each))
    counts = {"SKYPILOT_NUM_NODES": node.get("num_nodes", 1)}
    counts |= {"SKYPILOT_NUM_GPUS_PER_NODE": found[1]} if found else {}
    return [*_variables(node.get("envs")), *_variables(counts), node["run"]]


def _of_stack(node: Any) -> Iterator[str]:
    """The server of the values of vLLM's production-stack (its helm/values.yaml): keys are its
    flags in another case."""
    engine = node.get("servingEngineSpec") if isinstance(node, Mapping) else None
    models = engine.get("modelSpec") if isinstance(engine, Mapping) else None
    for model in models if isinstance(models, list) else []:
        config = model.get("vllmConfig") or {}
        words: list[str] = []
        for name, value in config.items():
            flag = "--" + re.sub("[A-Z]", lambda found: f"-{found[0].lower()}", name)
            if name != "extraArgs" and value is not False:
                words.append(flag if value is True else f"{flag}={_quoted(str(value))}")
        words += [_quoted(str(word)) for word in config.get("extraArgs") or []]
        yield " ".join([_SERVER, _quoted(str(model.get("modelURL", ""))), *words])


def _commands(node: Any) -> Iterator[str]:
    """The variables and the command of each container, wherever it stands."""
    if isinstance(node, list):
        for inner in node:
            yield from _commands(inner)
    if not isinstance(node, Mapping):
        return
    words = [word for key in ("entrypoint", "command", "args") for word in _words(node.get(key))]
    if words and words[0][:1] == "-" and "vllm" in str(node.get("image")):
        words = [_SERVER, *words]  # what its images start
    if words:
        yield from _variables(node.get("env") or node.get("environment"))
        yield " ".join(words)
    for inner in node.values():
        yield from _commands(inner)


_SERVER = "vllm serve"


def _words(value: Any) -> list[str]:
    """Words as bash writes them, `$(NAME)` and `$NAME` of Kubernetes as its variables; a command in
    one piece stays as it is."""
    if isinstance(value, str):
        return [value]
    return [_quoted(str(word)) for word in value] if isinstance(value, list) else []


def _quoted(word: str) -> str:
    if "\n" in word or " " in word:
        return shlex.quote(word)
    parts = re.split(r"(\$\(\w+\)|\$\{\w+\}|\$\w+)", word)
    named = [f"${{{part.strip('$(){}')}}}" if at % 2 else part for at, part in enumerate(parts)]
    return "".join(
        part if at % 2 or not part else shlex.quote(part) for at, part in enumerate(named)
    )


def _variables(env: Any) -> Iterator[str]:
    if isinstance(env, Mapping):
        env = [{"name": name, "value": value} for name, value in env.items()]
    for one in env if isinstance(env, list) else []:
        said = (
            one
            if isinstance(one, Mapping)
            else dict(zip(("name", "value"), str(one).split("=", 1), strict=False))
        )
        if re.fullmatch(r"[A-Za-z_]\w*", str(said.get("name"))) and said.get("value") is not None:
            yield f"{said['name']}={_quoted(str(said['value']))}"
