"""tests/kept: programs for TPUs whose compiled text tests read, so that CI need not compile them.

    python scripts/kept_programs.py [NAME ...]

Compiles by libtpu for slices that are not here (about ten CPU seconds each; kept in the cache of
`shardwise compile`), all or those named, and writes tests/kept/NAME.hlo.gz, of some NAME.json.gz
with their stages, and index.json, which has of each program a hash of what was lowered: a test
lowers them anew, and one that has changed must be made again.
"""

import gzip
import hashlib
import json
import sys
from contextlib import chdir
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import jax.numpy as jnp
from made import made

from shardwise.commands.program.compiling import compile_function
from shardwise.hardware import parse_slice
from shardwise.hardware.device_order import mesh_coordinates
from shardwise.profiler.ahead import Limits, target_of
from shardwise.profiler.ahead.compile import environment
from shardwise.profiler.ahead.job import topology_devices
from shardwise.profiler.ahead.user import user_program
from shardwise.profiler.child import run_function
from shardwise.runtime.attention import Scoring
from shardwise.runtime.attention import ring_attention as attention
from shardwise.runtime.attention.paged import Paging
from shardwise.runtime.attention.ragged import ragged_attention
from shardwise.runtime.collective_matmul import (
    all_gather_matmul,
    matmul_reduce_scatter_bidirectional,
)

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "tests" / "kept"
SCHEMA = 1
SQUARE = {"X": 4, "Y": 4}
PROGRAMS = {
    "ring_attention": ("v5e:4x4", {"data": 4, "context": 4}),
    "gather_matmul": ("v5e:4x4", SQUARE),
    "matmul_scatter": ("v5e:4x4", SQUARE),
    "ffw": ("v2:2x2", {"x": 2, "y": 2, "core": 2}),
    "decode_mlp": ("v5e:2x4", {"fsdp": 4, "tensor": 2}),
    "ragged_v4": ("v4:2x2x1", {"x": 4}),
    "ragged_v5e": ("v5e:2x2", {"x": 4}),
    "ragged_v5p": ("v5p:2x2x1", {"x": 4}),
    "ragged_v6e": ("v6e:2x2", {"x": 4}),
    "ragged_tpu7x": ("tpu7x:2x2x1", {"x": 8}),
}
"""The slice and the mesh of each; its function and its arguments, which those of one word share,
are below."""
STAGED = ("decode_mlp",)
"""Of these the texts of all stages are kept, too."""


def main():
    """Compile the programs, then write the folder."""
    head, hashes = made(), lowered()
    for name in sys.argv[1:] or PROGRAMS:
        on, mesh = PROGRAMS[name]
        with chdir(HERE), TemporaryDirectory() as folder:
            limits = Limits(stages=Path(folder) if name in STAGED else None)
            compiled = compile_function(
                *names_of(name), parse_slice(on), mesh, limits=limits
            ).compiled
            _write(f"{name}.hlo.gz", compiled.hlo)
            if limits.stages is not None:
                with gzip.open(limits.stages / f"{compiled.key}.json.gz", "rt") as file:
                    _write(f"{name}.json.gz", file.read())
        print(name, file=sys.stderr, flush=True)
    rows = [
        {"name": name, "slice": on, "mesh": mesh, "lowered": hashes[name]}
        for name, (on, mesh) in PROGRAMS.items()
    ]
    doc = {"schema_version": SCHEMA, **head, "rows": rows}
    (FOLDER / "index.json").write_text(json.dumps(doc, indent=1) + "\n", encoding="utf-8")


def names_of(name):
    """The function of a program and that of its arguments."""
    word = name.partition("_v")[0].partition("_tpu")[0]
    return f"kept_programs:{word}", f"kept_programs:{word}_args"


def _write(name, text):
    """A packed text without the path of this checkout."""
    with gzip.GzipFile(FOLDER / name, "wb", mtime=0) as file:
        file.write(text.replace(f"{HERE.parent}/", "").encode())


def lowered():
    """A hash of every program as it is given to the compiler, from a child; nothing is compiled."""
    cases, around = [], {"PYTHONPATH": str(HERE)}
    for name, (on, mesh) in PROGRAMS.items():
        piece = parse_slice(on)
        target = target_of(piece, mesh_coordinates(piece, mesh))
        around |= environment(target)
        cases.append({"name": name, "target": asdict(target)})
    with chdir(HERE):
        return run_function("kept_programs:hashes", {"cases": cases}, environment=around)


def hashes(cases):
    """What runs in the child of `lowered`. Kernels carry the places of their sources, which differ
    from one installation to the next: without those."""
    jax.config.update("jax_traceback_in_locations_limit", 0)
    found = {}
    for case in cases:
        name = case["name"]
        devices = topology_devices(case["target"])
        program = user_program(devices, *names_of(name), PROGRAMS[name][1])
        text = program.function.lower(*program.arguments).as_text()
        found[name] = hashlib.sha256(text.encode()).hexdigest()
    return found


def array(mesh, shape, *spec, dtype="bfloat16"):
    """An argument: its shape, and which axes of the mesh cut each dim."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.NamedSharding(mesh, jax.P(*spec)))


# The programs -------------------------------------------------------------------------------------


def ring_attention(q, k, v, positions):
    """The gradients of attention round a ring of `context`: 8,192 tokens, 8 query and 2 KV heads of
    128."""
    spec = jax.P("data", "context")

    def attend(q, k, v, positions):
        scoring = Scoring(
            scale=0.1,
            softcap=None,
            window=None,
            chunk=None,
            q_positions_BT=positions,
            k_positions_BS=positions,
        )
        return attention(q, k, v, scoring, axis="context")

    forward = jax.shard_map(attend, in_specs=(spec,) * 4, out_specs=spec)

    def loss(*x):
        return forward(*x).astype(jnp.float32).sum()

    return jax.grad(loss, (0, 1, 2))(q, k, v, positions)


def ring_attention_args(mesh):
    cut = "data", "context"
    q, k = (array(mesh, (4, 8192, heads, 128), *cut) for heads in (8, 2))
    return q, k, k, array(mesh, (4, 8192), *cut, dtype="int32")


def gather_matmul(x, w):
    """`all_gather_matmul`: In[B_X, D_Y] . W[D, F_Y] with the gather over Y in pieces."""
    ins = jax.P("X", "Y"), jax.P(None, "Y")
    function = partial(all_gather_matmul, axis="Y")
    return jax.shard_map(function, in_specs=ins, out_specs=jax.P("X", "Y"))(x, w)


def gather_matmul_args(mesh):
    return array(mesh, (4096, 8192), "X", "Y"), array(mesh, (8192, 8192), None, "Y")


def matmul_scatter(x, w):
    """`matmul_reduce_scatter_bidirectional`: In[B_X, D_Y] . W[D_Y, F], summed over Y in pieces."""
    ins = jax.P("X", "Y"), jax.P("Y", None)
    function = partial(matmul_reduce_scatter_bidirectional, axis="Y")
    return jax.shard_map(function, in_specs=ins, out_specs=jax.P("X", "Y"))(x, w)


def matmul_scatter_args(mesh):
    return array(mesh, (4096, 8192), "X", "Y"), array(mesh, (8192, 8192), "Y", None)


def ffw(x, w_in, w_out):
    """Chapter 9's feed-forward block: 4-way data parallel over chips, 2-way model parallel over the
    cores of each."""
    with jax.named_scope("ffw_up"):
        tmp = x @ w_in
    with jax.named_scope("ffw_down"):
        out = tmp @ w_out
    return jax.lax.with_sharding_constraint(out, jax.P(("x", "y"), None, "core"))


def decode_mlp(x, w_in, w_out):
    """examples/decode_mlp.py with its products cut over `tensor`, too: x + relu(x W_in) W_out."""
    with jax.named_scope("mlp"):
        hidden = jax.nn.relu(x @ w_in)
        return x + hidden @ w_out


def decode_mlp_args(mesh):
    shapes = (64, 8192), (8192, 28672), (28672, 8192)
    specs = ("fsdp",), ("fsdp", "tensor"), ("tensor", "fsdp")
    return tuple(array(mesh, s, *p) for s, p in zip(shapes, specs, strict=True))


def ffw_args(mesh):
    x = array(mesh, (32, 1024, 8192), ("x", "y"), None, None)
    w_in, w_out = ((8192, 32768), (None, "core")), ((32768, 8192), ("core", None))
    return x, *(array(mesh, shape, *spec) for shape, spec in (w_in, w_out))


def ragged(q, pages, tables, positions):
    """Attention to pages by JAX's kernel (`runtime/attention/ragged.py`): rows that decode and
    blocks of a prompt in one call, of ten KV heads in five groups."""

    def step(q, pages, tables, positions):
        paging = Paging(tables[:8], tables[8:], jnp.zeros(4, jnp.int32), 64)
        places = {"q_positions_BT": positions[None], "k_positions_BS": positions[None]}
        scoring = Scoring(scale=0.1, softcap=None, window=None, chunk=None, **places)
        return ragged_attention(q, pages, 1, paging.ragged(positions), scoring)

    local = jax.shard_map(step, in_specs=jax.P(), out_specs=jax.P(), check_vma=False)
    return local(q, pages, tables, positions)


def ragged_args(mesh):
    tokens = 8 + 4 * 16
    return (
        array(mesh, (tokens, 20, 128)),
        array(mesh, (2, 16, 5, 64, 4, 128)),
        array(mesh, (12, 8), dtype="int32"),
        array(mesh, (tokens,), dtype="int32"),
    )


if __name__ == "__main__":
    main()
