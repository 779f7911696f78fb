"""Values that a YAML file takes from its own other keys: `${model.seq}`, `${.seq}` of the same
section (OmegaConf's interpolation)."""

import re
from collections.abc import Mapping
from typing import Any

from shardwise.planner.export.torchtitan_keys import flat

_TAKEN = re.compile(r"\$\{(\.?)([\w.]+)\}")
_DEEPEST = 8
"""Keys that take their value from keys, at most."""


def interpolated(table: Mapping[Any, Any]) -> dict[Any, Any]:
    """The table with what stands under the keys that it names; a name of no key stays as it is.

    >>> interpolated({"seq": 8, "model": {"length": "${seq}", "rows": "${.length}", "x": "${y}"}})
    {'seq': 8, 'model': {'length': 8, 'rows': 8, 'x': '${y}'}}
    """
    values = flat({str(key): value for key, value in table.items()})
    return _filled(table, "", values)


def _filled(table: Mapping[Any, Any], prefix: str, values: Mapping[str, Any]) -> dict[Any, Any]:
    return {
        key: _filled(value, f"{prefix}{key}.", values)
        if isinstance(value, Mapping)
        else _taken(value, prefix, values)
        for key, value in table.items()
    }


def _taken(value: Any, prefix: str, values: Mapping[str, Any]) -> Any:
    """What a value comes to; text around a name stays."""
    for _ in range(_DEEPEST):
        found = _TAKEN.search(value) if isinstance(value, str) else None
        name = (prefix if found[1] else "") + found[2] if found else ""
        if found is None or name not in values or values[name] == value:
            return value
        held = values[name]
        value = held if found[0] == value else value.replace(found[0], str(held))
    return value
