"""A plan as a JAX module: its mesh, and a PartitionSpec for every parameter and for the batch.

The text runs where JAX does; this file imports none. `MESH_AXES` is ordered outermost first, the
specs come from `plans/layouts.py`, for one layer's tensor as it is stored. What else a plan
chooses (schedule, ZeRO, methods) is up to the program around it, so it stands in notes.
"""

import ast
from collections.abc import Mapping
from typing import Any

from shardwise.errors import BadRequest, shown
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.models.parameters import Parameter, parameters
from shardwise.planner.export.notes import MOST, Fields, meant, named
from shardwise.planner.export.python_text import count_of, literal_of, tree_of
from shardwise.plans import MESH_AXES, TrainPlan, parameter_layout
from shardwise.plans.layouts import inner_layout
from shardwise.plans.train import CHOICES, STORAGE_AXES, TrainDtypes

TARGET = "jax"

DTYPES = {
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "f64": "float64",
    "fp8": "float8_e4m3fn",
    "int8": "int8",
    "int4": "int4",
}
POLICIES = {
    "none": "everything_saveable",
    "matmul_outputs": "dots_with_no_batch_dims_saveable",
    "block": "nothing_saveable",
}
_KEPT = {"storage_axes", "remat", "expert_over_tensor", "dtypes"}
_KEPT |= {"expert_imbalance", "packed_lengths", "stack", "constants"}
"""Choices that the text says, or that are of prices and data alone."""
LOST: Mapping[str, str] = dict.fromkeys(
    [
        *("slice", "slices", "box", "placement", "layers_per_stage"),
        *(choice for choice in CHOICES if choice not in _KEPT),
    ],
    "up to the program that uses the mesh",
)

_HEAD = """import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

"""
_TAIL = '''
REMAT = jax.checkpoint_policies.POLICY


def make_mesh(devices=None):
    """The mesh of the plan over its devices, outermost axis first."""
    names, sizes = tuple(MESH_AXES), tuple(MESH_AXES.values())
    types = (AxisType.Auto,) * len(names)
    return jax.make_mesh(sizes, names, axis_types=types, devices=devices)


def shardings(mesh):
    """A NamedSharding for every parameter."""
    return {name: NamedSharding(mesh, spec) for name, spec in PARAMETERS.items()}
'''


def write(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> str:
    """A Python module with MESH_AXES, PARAMETERS, BATCH and `make_mesh`."""
    dtypes = {f: named(TARGET, f"dtypes.{f}", getattr(plan.dtypes, f), DTYPES) for f in _DTYPES}
    master = None
    if plan.dtypes.master != "none":
        master = named(TARGET, "dtypes.master", plan.dtypes.master, DTYPES)
    lines = [
        f"MESH_AXES = {_mesh(plan)!r}",
        f"SEQUENCES, LENGTH = {plan.global_batch_sequences}, {plan.sequence_length}",
        f"MICROBATCHES = {plan.microbatches}",
        "DTYPES = {" + ", ".join(f'"{k}": jnp.{v}' for k, v in dtypes.items()) + "}",
        f"MASTER_DTYPE = {master!r}",
        f"BATCH = {_spec(_without_width(plan))}",
        "PARAMETERS = {",
    ]
    for name, row in named_rows(cfg).items():
        lines.append(f"    {name!r}: {_spec(row_spec(plan, row))},  # {_shape(row)}")
    policy = named(TARGET, "remat", plan.remat, POLICIES)
    return _HEAD + "\n".join([*lines, "}"]) + "\n" + _TAIL.replace("POLICY", policy)


_DTYPES = tuple(name for name in TrainDtypes.__dataclass_fields__ if name != "master")


def named_rows(cfg: ModelConfig) -> dict[str, Parameter]:
    """The parameter table by name; rows of a layer carry their group where there are several."""
    several = len(cfg.groups) > 1
    rows = {}
    for row in parameters(cfg):
        if not row.shares:
            group = f"layers{row.group}." if several and row.group is not None else ""
            rows[group + row.name] = row
    return rows


def row_spec(plan: TrainPlan, row: Parameter) -> list[tuple[str, ...]]:
    """Mesh axes of each dim of a stored parameter, as the trainer has it; but nothing is padded
    here, so a vocabulary or width that `tensor` does not divide is whole."""
    choices = plan.storage_axes, plan.expert_over_tensor
    layout = parameter_layout(row, plan.mesh, *choices, padded=False)
    return [dim.axes for dim in layout.dims]


def _without_width(plan: TrainPlan) -> list[tuple[str, ...]]:
    """Tokens come as [B, T]: over the batch axes, and over context."""
    return [dim.axes for dim in inner_layout("BT", plan.mesh).dims]


def _mesh(plan: TrainPlan) -> dict[str, int]:
    return dict(plan.mesh) or {"data": 1}


def _spec(dims: list[tuple[str, ...]]) -> str:
    """A PartitionSpec as Python text."""
    entries = [None if not axes else axes[0] if len(axes) == 1 else axes for axes in dims]
    return f"P({', '.join(map(repr, entries))})"


def _shape(row: Parameter) -> str:
    return "[" + ", ".join(f"{letter} {size}" for letter, size in row.dims) + "]"


def read(text: str, devices: int | None = None) -> Fields:
    """The fields that the module's constants say; BadRequest where one is missing."""
    given = _constants(text)
    mesh = _literal(given, "MESH_AXES")
    batch = _literal(given, "SEQUENCES, LENGTH")
    if not isinstance(mesh, dict) or not all(
        axis in MESH_AXES and isinstance(degree, int) and 0 < degree <= MOST
        for axis, degree in mesh.items()
    ):
        known = ", ".join(MESH_AXES)
        raise BadRequest(f"{TARGET}: MESH_AXES is {shown(mesh, 200)}; it maps {known} to degrees")
    sequences, length = batch if isinstance(batch, tuple) and len(batch) == 2 else (None, None)
    said: Fields = {
        "mesh": {axis: degree for axis, degree in mesh.items() if degree > 1},
        "global_batch_sequences": count_of(TARGET, "SEQUENCES", sequences),
        "sequence_length": count_of(TARGET, "LENGTH", length),
        "microbatches": count_of(TARGET, "MICROBATCHES", _literal(given, "MICROBATCHES")),
        **_storage(given),
    }
    policy = ast.unparse(given["REMAT"]).rsplit(".", 1)[-1]
    said["remat"] = meant(TARGET, "REMAT", policy, POLICIES)
    master = _literal(given, "MASTER_DTYPE")
    said["dtypes.master"] = meant(TARGET, "MASTER_DTYPE", master, DTYPES) if master else "none"
    table = given["DTYPES"]
    if not isinstance(table, ast.Dict):
        raise BadRequest(f"{TARGET}: DTYPES is not a dict; write one dtype by role")
    for key, value in zip(table.keys, table.values, strict=True):
        word = ast.unparse(value).rsplit(".", 1)[-1]
        role = literal_of(TARGET, "a key of DTYPES", key) if key else ""
        said[f"dtypes.{role}"] = meant(TARGET, f"DTYPES['{role}']", word, DTYPES)
    return said


def _storage(given: dict[str, ast.expr]) -> Fields:
    """Storage axes, those that cut a parameter outside the experts, and whether the experts
    themselves (the first dim of theirs) lie apart over tensor."""
    table, found, spans = given["PARAMETERS"], {"fsdp"}, False
    if not isinstance(table, ast.Dict):
        raise BadRequest(f"{TARGET}: PARAMETERS is not a dict; write one spec by name")
    for key, spec in zip(table.keys, table.values, strict=True):
        if "experts." not in ast.unparse(key or spec):
            found |= {axis for axis in STORAGE_AXES if axis in _strings(spec)}
        elif isinstance(spec, ast.Call) and spec.args:
            spans |= "tensor" in _strings(spec.args[0])
    return {
        "storage_axes": [axis for axis in STORAGE_AXES if axis in found],
        "expert_over_tensor": spans,
    }


def _strings(node: ast.expr) -> set[object]:
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}


def _constants(text: str) -> dict[str, ast.expr]:
    given = {
        ast.unparse(node.targets[0]).strip("()"): node.value
        for node in tree_of(TARGET, text).body
        if isinstance(node, ast.Assign)
    }
    for name in _NEEDED:
        if name not in given:
            raise BadRequest(f"{TARGET}: the module does not set {name}")
    return given


_NEEDED = (
    *("MESH_AXES", "SEQUENCES, LENGTH", "MICROBATCHES", "DTYPES"),
    *("MASTER_DTYPE", "PARAMETERS", "REMAT"),
)


def _literal(given: dict[str, ast.expr], name: str) -> Any:
    return literal_of(TARGET, name, given[name])
