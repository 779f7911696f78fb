"""Run by check_exports.py: the schemas of Kubernetes and of the custom resources take every
manifest, and llm-d's router knows the flags and plugins that it is given."""

import json
import sys
from pathlib import Path
from typing import Any


def main(source: str, target: str, folder: str) -> None:
    """Every file of `source` by name: its error, where there is one. `folder` has what was read of
    the repositories: schemas by kind, and words that the router knows."""
    import yaml

    read = json.loads((Path(folder) / "repositories.json").read_text())
    found = {}
    for key, text in json.loads(Path(source).read_text()).items():
        try:
            for document in yaml.safe_load_all(text):
                check(document, read["schemas"], read["words"])
            found[key] = {}
        except (SystemExit, Exception) as error:  # what the program says is the record
            found[key] = {"error": f"{type(error).__name__}: {error}"[:400]}
    kinds = [*read["schemas"], *read["words"]]
    Path(target).write_text(json.dumps({"files": found, "flags": sorted(kinds)}))


def check(document: Any, schemas: dict[str, Any], words: list[str]) -> None:
    """One object, by its own schema, and what llm-d is given in it."""
    import jsonschema
    import kubernetes_validate
    import yaml

    if document["kind"] in schemas:
        jsonschema.validate(document, schemas[document["kind"]])
        for pod in pods(document.get("spec", {})):
            whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **pod}
            kubernetes_validate.validate(whole, kubernetes_validate.latest_version(), strict=True)
    else:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    for pod in pods(document.get("spec", {})):
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            if "llm-d-router" in container["image"]:
                flags = [word.partition("=")[0].lstrip("-") for word in container["args"]]
                known(flags, words)
    if "plugins.yaml" in document.get("data", {}):
        config = yaml.safe_load(document["data"]["plugins.yaml"])
        known([plugin["type"] for plugin in config["plugins"]], words)


def pods(value: Any) -> list[Any]:
    """The templates of pods in an object."""
    if not isinstance(value, dict):
        return []
    own = [value] if "containers" in value.get("spec", {}) else []
    return own + [pod for inner in value.values() for pod in pods(inner)]


def known(asked: list[str], words: list[str]) -> None:
    """Raise ValueError for a word that the router does not know."""
    unknown = set(asked) - set(words)
    if unknown:
        raise ValueError(f"llm-d-router has no {', '.join(sorted(unknown))}")


if __name__ == "__main__":
    main(*sys.argv[1:4])
