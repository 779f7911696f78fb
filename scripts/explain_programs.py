"""Programs with one planted fault each, and their clean twins, for the tests of `explain`.

`build(devices, name, faulty, variant)` gives a program for `profiler.ahead`; `CASES` says for which
slices and meshes each is compiled. `python scripts/explain_programs.py FOLDER [NAME ...]` compiles
them, all if none is named (kept in the cache, so that it can be stopped and started again), and
writes FOLDER/NAME.hlo.gz and FOLDER/index.json. Sizes, meshes and axis names differ between the
variants of a fault.
"""

import gzip
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.hardware import parse_slice
from shardwise.hardware.device_order import mesh_coordinates
from shardwise.profiler.ahead import compile_ahead, target_of

PROGRAMS: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class Case:
    """A slice, the mesh on it and what sizes are multiplied by."""

    on: str
    mesh: dict[str, int]
    scale: int = 1


CASES = {
    "a": Case("v5e:2x4", {"data": 4, "tensor": 2}),
    "b": Case("v5p:2x2x2", {"rows": 2, "cols": 4}, scale=2),
}
TORUS = {
    "a": Case("v5e:8x8", {"tensor": 16, "data": 4}),
    "b": Case("v6e:8x8", {"model": 4, "batch": 16}),
}
GOOD = ("good_mlp", "good_data", "good_fsdp", "good_decode", "good_remat")


@dataclass(frozen=True)
class Made:
    function: Any
    arguments: tuple[Any, ...]
    mesh: Any


def program(build: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS[build.__name__] = build
    return build


def build(devices: list[Any], name: str, faulty: bool, variant: str) -> Made:
    """One program on the devices of its case, which are in the order of the mesh."""
    case = cases(name)[variant]
    shape = tuple(case.mesh.values())
    mesh = jax.sharding.Mesh(np.array(devices, dtype=object).reshape(shape), tuple(case.mesh))
    function, arguments, more = PROGRAMS[name](Shapes(mesh, case.scale), faulty)
    return Made(jax.jit(function, **more), tuple(arguments), mesh)


def cases(name: str) -> dict[str, Case]:
    if name == "axis_order":
        return TORUS
    return CASES if name not in GOOD else {"a": CASES["a"]}


@dataclass(frozen=True)
class Shapes:
    """Abstract arrays on a mesh of two axes: `outer` cuts data, `inner` widths."""

    mesh: Any
    scale: int

    @property
    def outer(self) -> str:
        return self.mesh.axis_names[0]

    @property
    def inner(self) -> str:
        return self.mesh.axis_names[1]

    def __call__(self, shape: tuple[int, ...], *spec: Any, dtype: str = "bfloat16") -> Any:
        at = jax.NamedSharding(self.mesh, jax.P(*spec))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=at)

    def lay(self, x: Any, *spec: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, jax.NamedSharding(self.mesh, jax.P(*spec)))


def _mlp(x: Any, w1: Any, w2: Any) -> Any:
    return jax.nn.relu(x @ w1) @ w2


@program
def unsharded_embedding(s: Shapes, faulty: bool) -> Any:
    """The table of a small vocabulary-heavy model lies whole on every device."""
    D, F, V, B = 512 * s.scale, 2048, 32768 * s.scale, 4096

    def loss(params: Any, tokens: Any) -> Any:
        x = s.lay(params["embedding"][tokens], s.outer, None)
        x = x + _mlp(x, params["w1"], params["w2"])
        return jnp.square(x.astype(jnp.float32)).mean()

    cut = () if faulty else (s.inner, s.outer)
    params = {
        "embedding": s((V, D), *cut),
        "w1": s((D, F), s.outer, s.inner),
        "w2": s((F, D), s.inner, s.outer),
    }

    def step(params: Any, tokens: Any) -> Any:
        grads = jax.grad(loss)(params, tokens)
        return jax.tree.map(lambda w, g: w - 1e-3 * g, params, grads)

    return step, (params, s((B,), s.outer, dtype="int32")), {"donate_argnums": 0}


def _deep(s: Shapes, wrap: Callable[..., Any], layers: int, tokens: int, D: int, F: int) -> Any:
    def layer(x: Any, w: Any) -> Any:
        h = jax.nn.gelu(x @ w["up"]) * jnp.tanh(x @ w["gate"])
        return x + h @ w["down"], None

    def loss(w: Any, x: Any) -> Any:
        y, _ = jax.lax.scan(wrap(layer), x, w)
        return jnp.square(y.astype(jnp.float32)).mean()

    weights = {
        "up": s((layers, D, F), None, None, s.inner),
        "gate": s((layers, D, F), None, None, s.inner),
        "down": s((layers, F, D), None, s.inner, None),
    }
    return jax.grad(loss), (weights, s((tokens, D), s.outer, None)), {}


@program
def missing_remat(s: Shapes, faulty: bool) -> Any:
    """Every activation of 32 layers is kept for the backward pass, which the memory is full of."""
    wrap = (lambda f: f) if faulty else jax.checkpoint
    return _deep(s, wrap, 32, 131072 * s.scale, 1024, 4096 * s.scale)


@program
def gather_in_decode(s: Shapes, faulty: bool) -> Any:
    """Weights stored in pieces are gathered for a few tokens."""
    L, D, F, B = 8, 2048, 8192 * s.scale, 16

    def step(w: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            if faulty:
                w = {k: s.lay(v, *used[k]) for k, v in w.items()}
            h = s.lay(jax.nn.relu(x @ w["up"]), None, inner)
            return s.lay(x + h @ w["down"], None, None), None

        return jax.lax.scan(layer, x, w)[0]

    inner = s.inner if faulty else (s.outer, s.inner)
    used = {"up": (None, s.inner), "down": (s.inner, None)}
    stored = s.outer if faulty else None
    weights = {"down": s((L, F, D), None, inner, stored), "up": s((L, D, F), None, stored, inner)}
    return step, (weights, s((B, D))), {}


@program
def f32_matmul(s: Shapes, faulty: bool) -> Any:
    """A matmul of float32 at the highest precision among bf16 ones."""
    T, D, F = 8192, 1024 * s.scale, 4096

    def step(x: Any, w1: Any, w2: Any) -> Any:
        h = jax.nn.relu(x @ w1)
        if faulty:
            wide = (h.astype(jnp.float32) * jnp.float32(1.1), w2)
            return jnp.matmul(*wide, precision="highest").astype(x.dtype)
        return h @ w2

    w2 = s((F, D), s.inner, dtype="float32" if faulty else "bfloat16")
    return step, (s((T, D), s.outer), s((D, F), None, s.inner), w2), {}


@program
def bad_padding(s: Shapes, faulty: bool) -> Any:
    """Arrays whose last dim is a fraction of a tile."""
    T = 2**20 * s.scale
    shape = (T, 9) if faulty else (T * 9 // 128, 128)

    def step(x: Any, y: Any) -> Any:
        return jnp.exp(x) * y + x

    return step, (s(shape, s.outer), s(shape, s.outer)), {}


@program
def replicated_optimizer(s: Shapes, faulty: bool) -> Any:
    """Adam's moments on every device of the data axis, where each could update a piece."""
    D, F, B = 2048, 8192 * s.scale, 16384

    def loss(w: Any, x: Any) -> Any:
        y = _mlp(x, w["up"].astype(x.dtype), w["down"].astype(x.dtype))
        return jnp.square(y.astype(jnp.float32)).mean()

    def step(w: Any, mu: Any, nu: Any, x: Any) -> Any:
        g = jax.grad(loss)(w, x)
        if not faulty:
            g = {k: s.lay(v, *spec[k]) for k, v in g.items()}
        mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, g)
        nu = jax.tree.map(lambda n, g: 0.99 * n + 0.01 * g * g, nu, g)
        new = jax.tree.map(lambda w, m, n: w - 1e-3 * m / (jnp.sqrt(n) + 1e-8), w, mu, nu)
        return new, mu, nu

    whole = {"up": (None, s.inner), "down": (s.inner, None)}
    cut = {"up": (s.outer, s.inner), "down": (s.inner, s.outer)}
    spec = whole if faulty else cut
    shapes = {"up": (D, F), "down": (F, D)}
    kept = {k: s(shapes[k], *spec[k], dtype="float32") for k in shapes}
    return step, (kept, kept, kept, s((B, D), s.outer)), {"donate_argnums": (0, 1, 2)}


@program
def needless_relayout(s: Shapes, faulty: bool) -> Any:
    """A large array is handed on transposed: a copy that computes nothing."""
    T, D, F = 16384, 1024, 4096 * s.scale

    def step(x: Any, w: Any) -> Any:
        h = jax.nn.relu(x @ w)
        return h, (x.T if faulty else x + 1)

    return step, (s((T, D), s.outer), s((D, F), None, s.inner)), {}


@program
def all_reduce_for_scatter(s: Shapes, faulty: bool) -> Any:
    """Sums that only a piece of is used are summed whole on every device."""
    T, D, F = 8192, 2048 * s.scale, 4096
    n = s.mesh.shape[s.inner]

    def block(x: Any, w: Any) -> Any:
        part = jnp.tanh(x @ w)
        if not faulty:
            return jax.lax.psum_scatter(part, s.inner, scatter_dimension=1, tiled=True)
        whole = jax.lax.psum(part, s.inner)
        # The sum is also looked at, so that the compiler keeps it.
        peek = whole[0, 0].astype(jnp.float32) * 1e-9
        at = jax.lax.axis_index(s.inner) * (whole.shape[1] // n)
        piece = jax.lax.dynamic_slice_in_dim(whole, at, whole.shape[1] // n, 1)
        return piece * (1 + peek).astype(piece.dtype)

    P = jax.P
    inside = jax.shard_map(
        block,
        mesh=s.mesh,
        in_specs=(P(s.outer, s.inner), P(s.inner, None)),
        out_specs=P(s.outer, s.inner),
        check_vma=False,
    )
    return inside, (s((T, F), s.outer, s.inner), s((F, D), s.inner, None)), {}


@program
def axis_order(s: Shapes, faulty: bool) -> Any:
    """The axis that moves most lies on strided links: it stands first in the mesh."""
    busy, quiet = (s.outer, s.inner) if faulty else (s.inner, s.outer)
    T, D, F = 16384, 4096, 16384

    def step(x: Any, w1: Any, w2: Any) -> Any:
        h = s.lay(jax.nn.relu(x @ w1), quiet, busy)
        return s.lay(h @ w2, quiet, None)

    return step, (s((T, D), quiet), s((D, F), None, busy), s((F, D), busy, None)), {}


@program
def host_transfer(s: Shapes, faulty: bool) -> Any:
    """An array goes to the host's memory and back within a step."""
    T, D, F = 8192, 2048 * s.scale, 4096

    def step(x: Any, w1: Any, w2: Any) -> Any:
        h = x @ w1
        if faulty:
            there = jax.NamedSharding(s.mesh, jax.P(s.outer, s.inner), memory_kind="pinned_host")
            here = jax.NamedSharding(s.mesh, jax.P(s.outer, s.inner), memory_kind="device")
            h = jax.device_put(jax.device_put(h, there), here)
        return jax.nn.relu(h) @ w2

    return step, (s((T, D), s.outer), s((D, F), None, s.inner), s((F, D), s.inner, None)), {}


@program
def good_mlp(s: Shapes, faulty: bool) -> Any:
    weights = s((4096, 8192), None, s.inner), s((8192, 4096), s.inner)
    return _mlp, (s((8192, 4096), s.outer), *weights), {}


@program
def good_data(s: Shapes, faulty: bool) -> Any:
    """Data parallelism alone, with plain gradient descent."""
    both = (s.outer, s.inner)

    def loss(w: Any, x: Any) -> Any:
        return jnp.square(_mlp(x, *w).astype(jnp.float32)).mean()

    def step(w: Any, x: Any) -> Any:
        return jax.tree.map(lambda w, g: w - 1e-3 * g, w, jax.grad(loss)(w, x))

    weights = (s((2048, 8192)), s((8192, 2048)))
    return step, (weights, s((65536, 2048), both)), {"donate_argnums": 0}


@program
def good_fsdp(s: Shapes, faulty: bool) -> Any:
    return _deep(s, jax.checkpoint, 4, 65536, 2048, 8192)


@program
def good_decode(s: Shapes, faulty: bool) -> Any:
    return PROGRAMS["gather_in_decode"](s, False)


@program
def good_remat(s: Shapes, faulty: bool) -> Any:
    """Activations are kept where there is room for them."""
    return _deep(s, lambda f: f, 4, 8192, 1024, 4096)


def placeless(text: str) -> str:
    """Text with files named from the repository's root, wherever that is."""
    return text.replace(f"{Path(__file__).resolve().parents[1]}/", "")


def main(folder: Path, names: list[str], builder: str = "explain_programs:build") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.json"
    index: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    for name in names or PROGRAMS:
        for variant, case in cases(name).items():
            for faulty in (False,) if name in GOOD else (True, False):
                piece = parse_slice(case.on)
                made = compile_ahead(
                    target_of(piece, mesh_coordinates(piece, case.mesh)),
                    builder,
                    {"name": name, "faulty": faulty, "variant": variant},
                )
                kept = [asdict(b) for b in made.buffers[:20]]
                label = f"{name}.{variant}.{'fault' if faulty else 'clean'}"
                with gzip.GzipFile(folder / f"{label}.hlo.gz", "wb", mtime=0) as file:
                    file.write(placeless(made.hlo).encode())
                index[label] = {
                    "name": name,
                    "faulty": faulty,
                    "on": case.on,
                    "mesh": case.mesh,
                    "fits": made.fits,
                    "buffers": json.loads(placeless(json.dumps(kept))),
                    "versions": dict(made.versions),
                }
                print(label, made.fits, f"{made.seconds['compile']:.1f} s", flush=True)
                path.write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
