"""Rows of a TOML table that share what they have in common: `like` names the rows to start from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.boundary import read_toml

_MERGED = ("keys", "defaults", "traits", "only", "sizes", "extras", "modules", "tensors")


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Every row of the file by its name, written out.

    A row starts from the file's row `common`, then from those that its `like` names, in their
    order. Of two rows the later wins, entry by entry in `_MERGED`, else as a whole. Keys that
    `optional` lists have the default None; `required` takes a default away.
    """
    table = read_toml(path, "the table")
    base = _written(table, "common") if "common" in table else {}
    rows = {name: _over(base, _written(table, name)) for name in table}
    for row in rows.values():
        for key in row.pop("required", ()):
            del row["defaults"][key]
    return rows


def _written(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    row = dict(table[name])
    for kind in ("", "tower_"):
        absent = dict.fromkeys(row.pop(f"{kind}optional", ()))
        if absent:
            row[f"{kind}defaults"] = {**absent, **row.get(f"{kind}defaults", {})}
    whole: dict[str, Any] = {}
    for parent in row.pop("like", ()):
        whole = _over(whole, _written(table, parent))
    return _over(whole, row)


def _over(base: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**base, **row}
    for key in _MERGED:
        both = base.get(key), row.get(key)
        if isinstance(both[0], Mapping) and isinstance(both[1], Mapping):
            merged[key] = {**both[0], **both[1]}
    return merged
