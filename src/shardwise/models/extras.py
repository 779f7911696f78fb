"""TensorRows that a class has beside those of its mixers and MLPs, by the `extras` of its row."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwise.models.reader import Reader
from shardwise.models.specs import Extra, Layer, Recurrence

Sizes = Mapping[str, str | int]
MODEL = "model"
"""Where an extra is that stands outside the layers."""


def with_extras(
    r: Reader, sizes: Sizes, rows: Mapping[str, Any], stack: list[Layer]
) -> list[Layer]:
    """The layers with their own tensors; those of a `Recurrence` are its mixer's."""
    made: dict[tuple[Layer, bool], Layer] = {}
    if not rows:
        return stack
    for place, layer in enumerate(stack):
        key = layer, place > 0
        if key not in made:
            made[key] = _with_own(r, sizes, rows, *key)
    return [made[layer, place > 0] for place, layer in enumerate(stack)]


def model_extras(r: Reader, sizes: Sizes, rows: Mapping[str, Any]) -> tuple[Extra, ...]:
    """The tensors outside the layers."""
    letters = {"D": r.size("hidden_size")}
    return tuple(
        _extra(r, letters, sizes, name, row)
        for name, row in rows.items()
        if row.get("on") == MODEL and _there(r, row)
    )


def _with_own(r: Reader, sizes: Sizes, rows: Mapping[str, Any], layer: Layer, later: bool) -> Layer:
    facts = {
        "none" if layer.mixer is None else layer.mixer.kind,
        "none" if layer.mlp is None else layer.mlp.kind,
        "later" if later else "first",
        "reused" if layer.reused else "own",
        "indexed" if getattr(layer.mixer, "indexer", None) else "unindexed",
    }
    letters = _letters(r, layer)
    extras = tuple(
        _extra(r, letters, sizes, name, row)
        for name, row in rows.items()
        if set(row.get("on", "").split()) <= facts and _there(r, row)
    )
    if not isinstance(layer.mixer, Recurrence):
        return replace(layer, extras=extras)
    own = tuple(x for x in extras if x.name.startswith("recurrence."))
    rest = tuple(x for x in extras if x not in own)
    return replace(layer, mixer=replace(layer.mixer, tensors=own), extras=rest)


def _there(r: Reader, row: Mapping[str, Any]) -> bool:
    return "needs" not in row or r.flag(row["needs"])


def _letters(r: Reader, layer: Layer) -> dict[str, int]:
    """Sizes that the layer itself gives: D, N, K, H, U of its mixer, F and E of its MLP."""
    parts = {
        "N": getattr(layer.mixer, "heads", None),
        "K": getattr(layer.mixer, "kv_heads", None),
        "H": getattr(layer.mixer, "head_dim", None),
        "U": getattr(layer.mixer, "v_head_dim", None),
        "F": getattr(layer.mlp, "d_ff", None),
        "E": getattr(layer.mlp, "experts", None),
    }
    return {"D": r.size("hidden_size")} | {k: v for k, v in parts.items() if v is not None}


def _extra(
    r: Reader, letters: Mapping[str, int], sizes: Sizes, name: str, row: Mapping[str, Any]
) -> Extra:
    own = {**sizes, **row.get("sizes", {})}

    def size(letter: str) -> int:
        if letter not in own:
            return letters[letter]
        said = own[letter]
        if isinstance(said, int) or said in letters:
            return said if isinstance(said, int) else letters[said]
        key, _, parts = said.partition("/")
        return r.size(key) // int(parts or 1)

    sums = row.get("sums", "")
    return Extra(
        name=name,
        dims=tuple((letter, size(letter)) for letter in row["dims"].split()),
        role=row.get("role", "matmul" if sums else "scale"),
        sums=sums,
        batch=row.get("batch", ""),
        shares=row.get("shares", ""),
        flops=float(row.get("flops", 0)),
    )
