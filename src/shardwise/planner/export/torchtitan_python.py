"""What a Python module says of TorchTitan's configs: assignments to `config.SECTION.NAME`, the
arguments of `Trainer.Config(training=TrainingConfig(...))`, the config of TorchTitan's registry
that a function begins with. A module of several such functions is read for one of them. Nothing is
run.
"""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.errors import BadRequest
from shardwise.planner.export.python_text import literal_of, one_function, tree_of
from shardwise.planner.export.torchtitan_keys import TARGET, is_idle
from shardwise.plans.software.torchtitan import flavors

_MODELS = "torchtitan.models."
_CONFIG = "Trainer.Config"
_SECTIONS = {
    "TrainingConfig": "training",
    "ParallelismConfig": "parallelism",
    "CompileConfig": "compile",
    "DebugConfig": "debug",
}
"""Classes of torchtitan/config/configs.py by the section that each is of."""
_POLICY = "activation_checkpoint"


def module_values(text: str, own: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The values by {"SECTION.NAME": value}, the policy, the loss's chunks and the model by names
    of their own; `own` are the registry's configs."""
    tree = one_function(TARGET, tree_of(TARGET, text), "config", _gives_config)
    given: dict[str, Any] = {}
    for node in (node for part in tree.body for node in ast.walk(part)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_MODELS):
            given |= _imported(node)
        elif isinstance(node, ast.Call):
            given = dict(own.get(ast.unparse(node.func), {})) | given | _called(node)
        elif isinstance(node, ast.Assign):
            given |= _assigned(node)
    if not given:
        raise BadRequest(f"{TARGET}: the module sets no field of a config")
    given.pop("model_spec", None)  # the name of a variable
    if "flavor" in given and "module" not in given:
        given |= _module_of(str(given["flavor"]), tree)
    return given


def _gives_config(node: ast.FunctionDef) -> bool:
    """Whether a function is one of a registry's: public, and says that it gives a config."""
    told = "" if node.returns is None else ast.unparse(node.returns)
    return not node.name.startswith("_") and told.endswith(_CONFIG)


def _imported(node: ast.ImportFrom) -> dict[str, Any]:
    if "model_registry" not in {alias.name for alias in node.names}:
        return {}
    return {"module": (node.module or "").removeprefix(_MODELS)}


def _called(node: ast.Call) -> dict[str, Any]:
    """The model's flavor, the chunks of the loss, the keywords of a section's class."""
    name = ast.unparse(node.func)
    if name == "model_registry" and node.args and isinstance(node.args[0], ast.Constant):
        return {"flavor": node.args[0].value}
    if name.endswith("Converter.Config"):
        return {f"converter.{name.removesuffix('.Config')}": True}
    if name == "ChunkedLossWrapper.Config":
        found = [k.value for k in node.keywords if k.arg == "num_chunks"]
        return {"num_chunks": literal_of(TARGET, "num_chunks", found[0]) if found else 8}
    section = _SECTIONS.get(name.rpartition(".")[2])
    said = [(word.arg, word.value) for word in node.keywords if word.arg]
    if section is not None:
        said = [(f"{section}.{key}", value) for key, value in said]
    elif not name.endswith(_CONFIG):
        return {}
    return {key: value for word in said for key, value in _set(*word).items()}


def _assigned(node: ast.Assign) -> dict[str, Any]:
    name = ast.unparse(node.targets[0])
    return _set(name.removeprefix("config."), node.value) if name.startswith("config.") else {}


def _set(name: str, node: ast.expr) -> dict[str, Any]:
    """A key with its value: a plain one where a plan may read it, another as its text."""
    text = ast.unparse(node)
    _, _, key = name.partition(".")
    if name == _POLICY:
        return {name: text.removesuffix(".Config()")}
    own = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2]
    if own in _SECTIONS or own in _READ_WHERE_CALLED or text == name:
        return {}
    if not key or "." in key or is_idle(name, text):
        return {name: text[:80]}
    return {name: literal_of(TARGET, name, node)}


_READ_WHERE_CALLED = ("model_registry", "default_adamw")
"""Functions whose arguments say the model, or nothing of a plan."""


def _module_of(flavor: str, tree: ast.Module) -> dict[str, str]:
    """The model's module, which `from . import model_registry` does not say: the only one with the
    flavor, or that which the names in the text begin with."""
    named = [f.module for f in flavors() if f.name == flavor]
    words = " ".join(_names(tree)).lower().replace("-", "_")
    fits = [module for module in named if len(named) == 1 or module in words]
    return {"module": fits[0]} if len(fits) == 1 else {}


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
