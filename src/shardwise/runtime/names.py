"""Names and forms of tensors in Hugging Face checkpoints (`data/names.toml`), for the rows of the
parameter table.

A form says how a checkpoint lays out a row's dims: axes separated by commas, each the letters that
are flattened into it, major to minor; `Linear.weight` of q is "NH,D". A part in brackets is one of
several tensors fused along that place: "[NH],D" in `qkv_proj` is the first of three blocks of rows,
"N[P],C" in `kv_b_proj` alternates with V per head, "E,D,F[]" in gpt-oss interleaves element by
element; "K[rU],D" has for each key head a part of its r value heads. E is left out where each
expert has a tensor of its own, named by {expert}.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig, Parameter
from shardwise.models.rows import read_rows
from shardwise.models.runnable import numerics_of

Names = Mapping[str, tuple[str, str]]
"""Row -> name and form; "" is the form of `default_form`."""
_DATA = Path(__file__).parent / "data" / "names.toml"


@cache
def checkpoint_names() -> Mapping[str, Names]:
    """The names by model type. The head of the table explains its fields."""
    rows = read_rows(_DATA)
    types = (name for name in rows if name != "common" and not name.startswith("_"))
    return {name: _names(**rows[name]) for name in types}


def _names(
    layer: str,
    modules: Mapping[str, str] | None = None,
    tensors: Mapping[str, str | tuple[str, str]] | None = None,
) -> Names:
    """The names of a row of the table, written out."""
    found: dict[str, tuple[str, str]] = {}
    for row, module in (modules or {}).items():
        whole = module.replace("@", layer)
        found |= {row: (f"{whole}.weight", ""), f"{row}.bias": (f"{whole}.bias", "")}
    for row, said in (tensors or {}).items():
        name, form = (said, "") if isinstance(said, str) else said
        found[row] = name.replace("@", layer), form
    return found


@dataclass(frozen=True, slots=True)
class Piece:
    """Where a row is in a tensor: letters per axis of the file, and the fused part.

    `axes` are the letters flattened into each axis. With `inside`, the letters after it in axis
    `fused` (index `outer` and on) are a part of `size` starting at `start` of `total`. Where the
    file has a row's N heads as K groups of r, `heads` is (K, r).
    """

    row: Parameter
    template: str
    axes: tuple[str, ...]
    fused: int | None = None
    outer: int = 0
    start: int = 0
    size: int = 0
    total: int = 0
    heads: tuple[int, int] | None = None

    @property
    def sizes(self) -> Mapping[str, int]:
        """Of every letter of the axes."""
        split = {} if self.heads is None else dict(zip("Kr", self.heads, strict=True))
        return dict(self.row.dims) | {"1": 1} | split

    @property
    def letters(self) -> str:
        """Those of the row's dims, in their order."""
        letters = "".join(letter for letter, _ in self.row.dims)
        return letters if self.heads is None else letters.replace("N", "Kr")

    @property
    def per_expert(self) -> bool:
        """Whether each expert is a tensor of its own."""
        return "{expert}" in self.template

    def shape(self) -> tuple[int, ...]:
        """Dims of the tensor in the file."""
        sizes, shape = self.sizes, []
        for i, axis in enumerate(self.axes):
            letters = axis[: self.outer] if i == self.fused else axis
            size = 1
            for letter in letters:
                size *= sizes[letter]
            shape.append(size * (self.total if i == self.fused else 1))
        return tuple(shape)


def pieces(cfg: ModelConfig, rows: tuple[Parameter, ...]) -> tuple[Piece, ...]:
    """One Piece per row. Raises BadRequest for a row that the model type's table lacks."""
    numerics_of(cfg)
    names = checkpoint_names().get(cfg.model_type)
    if names is None:
        raise BadRequest(
            f"model '{cfg.name}': tensors of model type '{cfg.model_type}' have no known names "
            f"in checkpoints; known types: {', '.join(checkpoint_names())}"
        )
    forms = {(row.group, row.name): _form(row, names, cfg) for row in rows}
    return tuple(_piece(row, forms, rows) for row in rows)


def _form(row: Parameter, names: Names, cfg: ModelConfig) -> tuple[str, str]:
    if row.name not in names:
        raise BadRequest(f"model '{cfg.name}': parameter '{row.name}' has no name in a checkpoint")
    name, form = names[row.name]
    return name, form or default_form(row, per_expert="{expert}" in name)


def default_form(row: Parameter, per_expert: bool = False) -> str:
    """A torch Linear is [out, in]; tables and vectors are as in the parameter table."""
    letters = [letter for letter, _ in row.dims if not (per_expert and letter == "E")]
    if row.role == "lookup":
        return ",".join(letters)
    if row.role != "matmul":
        return "".join(letters)
    out = "".join(x for x in letters if x not in row.contracts)
    return f"{out},{''.join(x for x in letters if x in row.contracts)}"


def _piece(
    row: Parameter,
    forms: Mapping[tuple[int | None, str], tuple[str, str]],
    rows: tuple[Parameter, ...],
) -> Piece:
    template, form = forms[row.group, row.name]
    axes = tuple(axis.replace("[", "").replace("]", "") for axis in form.split(","))
    heads = _grouped_heads(row, rows) if "r" in form else None
    if "[" not in form:
        return Piece(row, template, axes, heads=heads)
    fused = next(i for i, axis in enumerate(form.split(",")) if "[" in axis)
    outer = form.split(",")[fused].index("[")
    start = total = size = 0
    for other in rows:
        if other.group != row.group or forms[other.group, other.name][0] != template:
            continue
        part = _part(other, forms[other.group, other.name][1], rows)
        if other is row:
            start, size = total, part
        total += part
    return Piece(row, template, axes, fused, outer, start, size, total, heads)


def _grouped_heads(row: Parameter, rows: tuple[Parameter, ...]) -> tuple[int, int]:
    """N heads of a row as those of the K key heads of its layer, r each."""
    keys = next(dict(r.dims)["K"] for r in rows if r.group == row.group and "K" in dict(r.dims))
    return keys, dict(row.dims)["N"] // keys


def _part(row: Parameter, form: str, rows: tuple[Parameter, ...]) -> int:
    sizes, part = dict(row.dims), 1
    if "r" in form:
        sizes["r"] = _grouped_heads(row, rows)[1]
    for letter in form[form.index("[") + 1 : form.index("]")]:
        part *= sizes[letter]
    return part
