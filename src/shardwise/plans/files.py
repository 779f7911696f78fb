"""Load and save plans: YAML (JSON is YAML), checked by pydantic at the edge.

An unknown key is an error with the nearest spelling; a wrong type names the key and the value.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

from shardwise.errors import BadRequest, unknown
from shardwise.plans.serve import ServePlan
from shardwise.plans.train import TrainPlan

KINDS: Mapping[str, type[TrainPlan] | type[ServePlan]] = {"train": TrainPlan, "serve": ServePlan}


def save_plan(plan: TrainPlan | ServePlan, path: Path) -> None:
    """Write a plan as YAML, its kind first; the folder must exist."""
    import yaml

    if not path.parent.is_dir():
        raise BadRequest(f"cannot write '{path}': the folder '{path.parent}' does not exist")
    try:
        path.write_text(yaml.safe_dump(plan_dict(plan), sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise BadRequest(f"cannot write '{path}': {error.strerror}") from None


def plan_dict(plan: TrainPlan | ServePlan) -> dict[str, Any]:
    """A plan as plain values, `kind` first."""
    kind = next(k for k, cls in KINDS.items() if isinstance(plan, cls))
    return {"kind": kind, **_plain(asdict(plan))}


def _plain(value: Any) -> Any:
    """Tuples as lists, at any depth."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return list(value) if isinstance(value, tuple) else value


def flat_plan(plan: TrainPlan | ServePlan) -> dict[str, Any]:
    """Every choice by its dotted path."""
    flat: dict[str, Any] = {}
    for key, value in plan_dict(plan).items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": v for inner, v in value.items()}
        else:
            flat[key] = value
    return flat


def load_plan(path: Path, overrides: Mapping[str, str] | None = None) -> TrainPlan | ServePlan:
    """Read and check a plan file; `overrides` maps dotted paths to YAML values (`--set`)."""
    try:
        data = _yaml(path.read_text(encoding="utf-8"), f"'{path}'")
    except OSError as error:
        raise BadRequest(
            f"cannot read the plan '{path}': {error.strerror}; `shardwise plan train` and `plan "
            "serve` write one with --output FILE"
        ) from None
    except UnicodeDecodeError:
        raise BadRequest(f"'{path}' is no plan: it is not text in UTF-8") from None
    if not isinstance(data, dict):
        raise BadRequest(f"'{path}' is no plan: it holds no mapping of keys to values")
    for dotted, text in (overrides or {}).items():
        _override(data, dotted, _yaml(text, f"the value of --set {dotted}"), str(path))
    return plan_from(data, str(path))


def _yaml(text: str, what: str) -> Any:
    """YAML text as values; ValueError is what it raises for a date such as 2024-13-01."""
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1} column {mark.column + 1}" if mark else ""
        reason = getattr(error, "problem", None) or " ".join(str(error).split())
        raise BadRequest(f"{what} is no YAML{where}: {reason}") from None


def plan_from(data: Mapping[str, Any], origin: str) -> TrainPlan | ServePlan:
    """A plan from plain values; `origin` names the file in errors."""
    from pydantic import TypeAdapter, ValidationError

    rest = dict(data)
    kind = str(rest.pop("kind", ""))
    if kind not in KINDS:
        raise unknown("plan kind", kind, KINDS, f"the first key of '{origin}' is `kind`")
    cls = KINDS[kind]
    _check_keys(rest, cls, origin)
    try:
        return TypeAdapter(cls).validate_python(rest)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        shown = "" if first["type"] == "missing" else f" (got {first['input']!r})"
        raise BadRequest(f"'{origin}': key '{where}': {first['msg'].lower()}{shown}") from None


def _check_keys(values: Mapping[str, Any], cls: type, origin: str, prefix: str = "") -> None:
    known = {f.name: f.type for f in fields(cls)}
    for key, value in values.items():
        if key not in known:
            raise unknown("key", f"{prefix}{key}", [f"{prefix}{k}" for k in known], f"in {origin}")
        for inner in get_args(known[key]) or (known[key],):
            if isinstance(value, dict) and is_dataclass(inner):
                _check_keys(value, inner, origin, f"{prefix}{key}.")  # type: ignore[arg-type]


_TABLES = ("dtypes", "remat_kinds", "scheduling")
"""Keys of a plan that hold keys of their own and may be left out."""


def _override(data: dict[str, Any], dotted: str, value: Any, origin: str) -> None:
    *parents, last = dotted.split(".")
    node = data
    for name in parents:
        if node is data and name in _TABLES:
            node.setdefault(name, {})  # a table that the file leaves at its default
        if not isinstance(node.get(name), dict):
            raise unknown("key", dotted, data, f"in {origin}")
        node = node[name]
    node[last] = value
