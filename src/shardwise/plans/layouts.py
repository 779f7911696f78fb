"""Plan -> how the mesh axes cut every parameter and activation, said once.

The planner divides bytes by it, answers print it (`layout_table`), exporters write it, and the
trainer constrains its arrays to it: the runtime only turns a Layout into a PartitionSpec.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Literal

import numpy as np

from shardwise.models import ModelConfig
from shardwise.models.parameters import Parameter, parameters
from shardwise.models.specs import Moe
from shardwise.plans.laws import BATCH_AXES
from shardwise.plans.train import STORAGE_AXES, TrainPlan
from shardwise.sharding import Dim, Layout
from shardwise.work import Quantity

UNEVEN: Mapping[str, Literal["pad", "replicate", "refuse"]] = {
    "F": "pad",
    "V": "pad",
    "K": "replicate",
    "N": "refuse",
    "E": "refuse",
}
"""What happens to a dim that its axis does not divide: padded up to the next multiple, replicated
(several devices keep the same KV head), or the plan is refused."""

DATA_AXES = ("replica", "data")
"""Axes that always replicate parameters."""

TENSOR_LETTERS = "FNKV"
"""Dims that the tensor axis cuts: d_ff, query heads, KV heads, vocabulary (ch. 5.1.3)."""


def is_expert(parameter: Parameter) -> bool:
    """Whether the parameter is a stack of routed experts, one matrix each."""
    return "E" in parameter.batch


def tensor_letter(parameter: Parameter) -> str:
    """The letter that the tensor axis cuts, or "" where the parameter is replicated over it."""
    letters = [letter for letter, _ in parameter.dims]
    return next((letter for letter in TENSOR_LETTERS if letter in letters), "")


def gather_axes(
    parameter: Parameter, storage_axes: tuple[str, ...] = STORAGE_AXES
) -> tuple[str, ...]:
    """Mesh axes over which the stored pieces are gathered before use."""
    stored = (a for a in STORAGE_AXES if a in storage_axes)
    return tuple(a for a in stored if a != "expert" or not is_expert(parameter))


def replica_axes(
    parameter: Parameter, storage_axes: tuple[str, ...] = STORAGE_AXES
) -> tuple[str, ...]:
    """Mesh axes whose devices hold the same piece and see tokens of their own: gradients are summed
    over them. Experts lie apart over `expert`."""
    apart = ("expert",) if is_expert(parameter) else ()
    return (*DATA_AXES, *(a for a in STORAGE_AXES if a not in (*storage_axes, *apart)))


def local_size(size: int, degree: Quantity) -> Quantity:
    """Elements of a dim on one device: padded up where the degree does not divide it."""
    return np.ceil(size / degree)


def tensor_share(parameter: Parameter, tensor: Quantity, whole_heads: bool = False) -> Quantity:
    """Share of a parameter that one device of the tensor axis computes with (1/tensor if even).

    With `whole_heads` KV heads that tensor does not divide are all on every device, as JAX arrays
    lie; else a device has only those that its query heads read.
    """
    letter = tensor_letter(parameter)
    if not letter:
        return 1.0
    size = next(n for name, n in parameter.dims if name == letter)
    share = local_size(size, tensor) / size
    if whole_heads and UNEVEN.get(letter) == "replicate":
        return np.where(np.mod(size, tensor) == 0, share, 1.0)
    return share


def compute_share(
    parameter: Parameter,
    degrees: Mapping[str, Quantity],
    expert_over_tensor: bool = False,
    whole_heads: bool = False,
) -> Quantity:
    """Share of a parameter on one device while it is in use: cut by tensor, experts by expert; with
    `expert_over_tensor` experts lie apart over both and are not cut themselves."""
    tensor = degrees.get("tensor", 1)
    if not is_expert(parameter):
        return tensor_share(parameter, tensor, whole_heads)
    apart = 1.0 / tensor if expert_over_tensor else tensor_share(parameter, tensor)
    return apart / degrees.get("expert", 1)


def stored_share(
    parameter: Parameter,
    degrees: Mapping[str, Quantity],
    storage_axes: tuple[str, ...] = STORAGE_AXES,
    expert_over_tensor: bool = False,
    whole_heads: bool = False,
) -> Quantity:
    """Share of a parameter that one device stores between uses."""
    share = compute_share(parameter, degrees, expert_over_tensor, whole_heads)
    for axis in gather_axes(parameter, storage_axes):
        share = share / degrees.get(axis, 1)
    return share


def parameter_layout(
    parameter: Parameter,
    mesh: Mapping[str, int],
    storage_axes: tuple[str, ...] = STORAGE_AXES,
    expert_over_tensor: bool = False,
    *,
    padded: bool = True,
) -> Layout:
    """The Layout of a stored parameter, or with no storage axes of one in use.

    Storage axes cut D, or the first dim where there is no D. Arrays are cut evenly: where storage
    axes do not divide that dim they cut the first dim that they divide, else none; matmuls keep it,
    and the trainer refuses them. KV heads that `tensor` does not divide are whole on every device.
    F and V are padded; with `padded=False`, for arrays of their own size, those are whole as well.
    """
    sizes, letter = dict(parameter.dims), tensor_letter(parameter)
    fixed: dict[str, tuple[str, ...]] = dict.fromkeys(sizes, ())
    if is_expert(parameter):
        fixed["E"] = ("expert", "tensor") if expert_over_tensor else ("expert",)
    if letter and not (expert_over_tensor and is_expert(parameter)):
        fixed[letter] = ("tensor",)
    fixed = {dim: _used(axes, mesh) for dim, axes in fixed.items()}
    if letter and sizes[letter] % _degree(fixed[letter], mesh):
        rule = UNEVEN[letter]
        if rule == "replicate" or (rule == "pad" and not padded):
            fixed[letter] = ()
    stored = _used(gather_axes(parameter, storage_axes), mesh)
    home = _home(parameter, fixed, stored, mesh)
    if home:
        fixed[home] += stored
    return _layout(parameter.name.rsplit(".", 1)[-1], fixed)


def _home(
    parameter: Parameter,
    fixed: Mapping[str, tuple[str, ...]],
    stored: tuple[str, ...],
    mesh: Mapping[str, int],
) -> str:
    """The dim that the storage axes cut, "" for none."""
    sizes = dict(parameter.dims)
    if not sizes:
        return ""
    first = "D" if "D" in sizes else next(iter(sizes))
    narrow = _narrow(parameter, stored, mesh)
    for letter in (*narrow, first, *sizes) if stored else ():
        if sizes[letter] % _degree((*fixed[letter], *stored), mesh) == 0:
            return letter
    return first if stored and parameter.role == "matmul" else ""


def storable(
    parameter: Parameter,
    degrees: Mapping[str, Quantity],
    storage_axes: tuple[str, ...] = STORAGE_AXES,
    expert_over_tensor: bool = False,
) -> np.ndarray:
    """For which degrees a JAX array can hold the parameter in even pieces: the storage axes divide
    one of its dims, beside what `tensor` and `expert` cut of it. What no matmul reads may lie whole
    on every device (`parameter_layout`)."""
    sizes, letter = dict(parameter.dims), tensor_letter(parameter)
    tensor = np.asarray(degrees.get("tensor", 1))
    fixed: dict[str, Quantity] = {}
    if is_expert(parameter):
        fixed["E"] = degrees.get("expert", 1) * (tensor if expert_over_tensor else 1)
    if letter and not (expert_over_tensor and is_expert(parameter)):
        whole = (UNEVEN[letter] == "replicate") & (sizes[letter] % tensor > 0)
        fixed[letter] = np.where(whole, 1, tensor)
    axes = (np.asarray(degrees.get(a, 1)) for a in gather_axes(parameter, storage_axes))
    stored = prod(axes, start=np.asarray(1))
    even = [size % (stored * fixed.get(dim, 1)) == 0 for dim, size in sizes.items()]
    return np.any(np.broadcast_arrays(stored == 1, *even), axis=0) | (parameter.role != "matmul")


TILE_ROWS = 8
"""Rows of a tile of TPU memory, T(8,128)(2,1) in compiled programs (docs/lab/log.md)."""


def _narrow(parameter: Parameter, stored: tuple[str, ...], mesh: Mapping[str, int]) -> str:
    """F, of a matrix W[F, D] whose pieces along D would be narrower than the rows of a tile even
    where only the first storage axis cuts it: what is gathered of such columns is copied into tiles
    before each use (289 ms of 2.60 s a step for Llama-3-70B on v5p:16x16x16). Columns that inner
    axes cut below a tile are gathered over those first (`runtime/parallel/fsdp.py`)."""
    letters = [letter for letter, _ in parameter.dims]
    if letters != ["F", "D"] or parameter.batch:
        return ""
    return "F" if dict(parameter.dims)["D"] < TILE_ROWS * _degree(stored[:1], mesh) else ""


BETWEEN = ("embedding", "block_input", "attention_out", "mlp_out")
"""Activations between blocks: sequence parallelism cuts T further."""

ACTIVATIONS: Mapping[str, str] = {
    **dict.fromkeys((*BETWEEN, "lookup", "norm", "routed", "dispatched"), "BTD"),
    **dict.fromkeys(("qkv", "attention"), "BTNH"),
    **dict.fromkeys(("mlp_in", "activation"), "BTF"),
    "logits": "BTV",
}
"""The dims of the activations that are constrained, by the names that the forward pass gives them:
`norm` is what a block reads, `routed` the same of a block of routed experts alone, `dispatched`
what their devices exchange. `lookup` are rows of a table that is cut by vocabulary: they are whole
before they are summed, so that no table is gathered. N is K for keys and values."""


def activation_layout(
    name: str,
    plan: TrainPlan,
    shape: Sequence[int] | None = None,
    *,
    without: tuple[str, ...] = (),
    rings: bool = False,
) -> Layout | None:
    """The Layout of a named activation, None for one that is left to the compiler.

    Of a given `shape`, dims that their axes do not divide are whole. `without` names batch axes
    that are mapped over; with `rings` collective matmuls read what lies between blocks.
    """
    letters = ACTIVATIONS.get(name, "")
    if not letters or (shape is not None and len(shape) != len(letters)):
        return None
    cut = {dim.name: dim.axes for dim in inner_layout(letters, plan.mesh, without).dims}
    if _in_pieces(name, plan, rings):
        cut["T"] += _used(("tensor",), plan.mesh)
    if shape is not None:
        whole = [a for a, n in zip(letters, shape, strict=True) if n % _degree(cut[a], plan.mesh)]
        cut.update(dict.fromkeys(whole, ()))
    return _layout("x", cut)


def _in_pieces(name: str, plan: TrainPlan, rings: bool) -> bool:
    """Whether the tokens of an activation are cut over tensor too: between blocks, and where its
    devices route pieces or its rings read them."""
    if name == "dispatched":
        return routes_pieces(plan)
    read = (name == "routed" and routes_pieces(plan)) or (rings and name in ("norm", "routed"))
    return plan.sequence_parallel and (name in BETWEEN or read)


def inner_layout(letters: str, mesh: Mapping[str, int], without: Sequence[str] = ()) -> Layout:
    """The Layout of an array with these dims inside a block, activation or weight in use: the batch
    over the axes that carry data, T over `context`, the dims of `TENSOR_LETTERS` over `tensor`."""
    batch = tuple(axis for axis in BATCH_AXES if axis not in without)
    cut = {"B": batch, "T": ("context",), **dict.fromkeys(TENSOR_LETTERS, ("tensor",))}
    return _layout("x", {letter: _used(cut.get(letter, ()), mesh) for letter in letters})


def routes_pieces(plan: TrainPlan) -> bool:
    """Whether a device of tensor routes its own piece of the tokens: where experts lie apart over
    it, or tokens are exchanged that sequence parallelism cut already."""
    apart = plan.degree("expert") > 1 and plan.sequence_parallel
    return plan.degree("tensor") > 1 and (plan.expert_over_tensor or apart)


def layout_table(plan: TrainPlan, cfg: ModelConfig) -> dict[str, Layout]:
    """Every parameter as it is stored and every activation that is constrained, by name.

    Those of later groups of layers stand under `layers1.NAME` where they lie otherwise than those
    of the same name before. `activations` are those between blocks.
    """
    table: dict[str, Layout] = {}
    for group, name, layout in (*_parameters(plan, cfg), *_activations(plan, cfg)):
        if table.setdefault(name, layout) != layout:
            table[f"layers{group}.{name}"] = layout
    return table


Named = tuple[int | None, str, Layout]
"""Group of layers, name, layout."""


def _parameters(plan: TrainPlan, cfg: ModelConfig) -> Iterator[Named]:
    for row in parameters(cfg):
        if not row.shares and row.role != "tower":
            layout = parameter_layout(row, plan.mesh, plan.storage_axes, plan.expert_over_tensor)
            yield row.group, row.name, layout


def _activations(plan: TrainPlan, cfg: ModelConfig) -> Iterator[Named]:
    """The layouts of one microbatch's activations, of each kind once per group of layers."""
    tokens = (plan.global_batch_sequences // plan.microbatches, plan.sequence_length)

    def laid(kind: str, *sizes: int) -> Layout:
        layout = activation_layout(kind, plan, (*tokens, *sizes))
        assert layout is not None
        return layout

    stream = cfg.d_model
    yield None, "activations", laid("block_input", stream)
    yield None, "activations.tokens", inner_layout("BT", plan.mesh)
    yield None, "activations.lookup", laid("lookup", stream)
    for group, layer in enumerate(cfg.groups):
        yield group, "activations.norm", laid("norm", stream)
        if (mixer := layer.attention) is not None:
            yield group, "activations.q", laid("qkv", mixer.heads, 1)
            kv = laid("qkv", getattr(mixer, "kv_heads", mixer.heads), 1)
            dims = tuple(replace(d, name="K") if d.name == "N" else d for d in kv.dims)
            yield group, "activations.kv", replace(kv, dims=dims)
        if isinstance(layer.mlp, Moe):
            kind = "routed" if layer.mlp.routes_all else "norm"
            yield group, "activations.routed", laid(kind, stream)
            yield group, "activations.dispatched", laid("dispatched", stream)
        if not (isinstance(layer.mlp, Moe) and layer.mlp.routes_all):
            yield group, "activations.mlp", laid("mlp_in", plan.degree("tensor"))  # F is padded
    yield None, "activations.logits", laid("logits", cfg.vocabulary)


def _used(axes: Sequence[str], mesh: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if mesh.get(axis, 1) > 1)


def _degree(axes: Sequence[str], mesh: Mapping[str, int]) -> int:
    return prod(mesh.get(axis, 1) for axis in axes)


def _layout(name: str, cuts: Mapping[str, tuple[str, ...]]) -> Layout:
    return Layout(name=name, dims=tuple(Dim(d, axes) for d, axes in cuts.items()))
