"""Inside a child: time small programs on all devices here at once. Rows are per device.

Every program repeats its op so often that starting it costs little, each run feeding the next. A
row has "what", the median "seconds" of one op, and what the op does: "flops", or "bytes" of memory
traffic, which of a collective are V as in `work.Collective`.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

from shardwise.boundary.child import function_named
from shardwise.errors import BadRequest
from shardwise.profiler.child import stage
from shardwise.profiler.micro.reference import product_timer
from shardwise.work import CollectiveKind

SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
DTYPES = {"f32": "float32", "bf16": "bfloat16"}
COLLECTIVES: tuple[CollectiveKind, ...] = (
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "permute",
)
WIRE_BYTES = (2**14, 2**17, 2**20, 2**23)
MEMORY_BYTES = (2**20, 2**23, 2**26, 2**28)
ENOUGH_BYTES, MOST_BYTES = 2**26, 2**30
"""Bytes of an array that is beyond the caches, and those that arrays read and written may take on
all devices together where they are larger: virtual ones share the host's memory."""
LONGEST = 10
"""Products are made larger until one would take so many times the length of a program."""
MOST_REPEATS = 4096
LEAST_REPEATS = 4
REFERENCE = 1024
"""Size of the product that is timed after each figure."""


def machine_job(devices: int | None, attention: str, program_seconds: float) -> dict[str, Any]:
    """Measure the first `devices` (None for all). `attention` is "module:function" of a kernel for
    queries [B, T, N, H] that are keys and values too. Ops are repeated until a program takes
    `program_seconds`: starting one takes 20 to 200 us on CPUs, and a machine with other work runs
    short programs between its turns, which no long one can have.

    Raises BadRequest where fewer are here.
    """
    import jax

    here = jax.devices()
    if devices is not None and len(here) < devices:
        raise BadRequest(f"{devices} devices were asked for and {len(here)} are here")
    used = here[: devices or len(here)]
    bench = _Bench(used, program_seconds)
    rows: list[dict[str, Any]] = []
    beside: list[float] = []
    product = product_timer(REFERENCE)
    parts = (_matmuls, _memory, _elementwise, _small, _collectives)
    for part in (*(p(bench) for p in parts), _attention(bench, function_named(attention))):
        for row in part:
            rows.append(row)
            beside.append(product())
    return {
        "rows": rows,
        "reference_seconds": statistics.median(beside),
        "kind": used[0].device_kind,
        "platform": used[0].platform,
        "devices": len(used),
        "memory_bytes": _memory_of(used),
        "cores": os.cpu_count() or 1,
        "versions": {"jax": jax.__version__, "jaxlib": version("jaxlib")},
    }


class _Bench:
    """The devices as a mesh of one axis, and how long a program takes at least."""

    def __init__(self, devices: Sequence[Any], least: float) -> None:
        import jax
        import numpy as np

        self.mesh = jax.sharding.Mesh(np.array(devices), ("x",))
        self.devices = len(devices)
        self.least = least

    def seconds(self, op: Callable[..., Any], *shapes: Any) -> float:
        """Seconds of one `op(carry, *others)` -> carry; `shapes` are (shape, dtype) per device, or
        tuples of them."""
        times = LEAST_REPEATS
        while True:
            run = self.program(op, shapes, times)
            run()
            once = run()
            if once >= self.least or times >= MOST_REPEATS:
                break
            wanted = times * self.least / max(once, 1e-6)
            times = min(MOST_REPEATS, max(2 * times, round(wanted * 1.2)))
        more = 2 if once > self.least * 5 else 4
        return statistics.median([once, *(run() for _ in range(more))]) / times

    def program(
        self, op: Callable[..., Any], shapes: Sequence[Any], times: int
    ) -> Callable[[], float]:
        """A program of `times` ops, one after the other, on every device; its wall time."""
        import jax
        from jax import P

        def local(*arrays: Any) -> Any:
            carry, *others = jax.tree.map(lambda a: a[0], arrays)
            body = lambda _, c: op(c, *others)  # noqa: E731
            return jax.tree.map(lambda a: a[None], jax.lax.fori_loop(0, times, body, carry))

        spec = P("x")
        whole = jax.jit(
            jax.shard_map(
                local,
                mesh=self.mesh,
                in_specs=(spec,) * len(shapes),
                out_specs=spec,
                check_vma=False,
            )
        )
        at = jax.NamedSharding(self.mesh, spec)
        arrays = [_filled(shape, self.devices, at) for shape in shapes]
        compiled = whole.lower(*arrays).compile()

        def run() -> float:
            begun = time.perf_counter()
            jax.block_until_ready(compiled(*arrays))
            return time.perf_counter() - begun

        return run


def _filled(shape: Any, devices: int, at: Any) -> Any:
    """An array, or a tuple of arrays, of small numbers."""
    import jax
    import jax.numpy as jnp

    if isinstance(shape[0][0], tuple):
        return tuple(_filled(each, devices, at) for each in shape)
    dims, dtype = shape
    made = jax.jit(lambda: jnp.full((devices, *dims), 1e-3, dtype), out_shardings=at)()
    return jax.block_until_ready(made)


def _matmuls(bench: _Bench) -> Iterator[dict[str, Any]]:
    """Squares of every size, until one takes too long, and products of many rows by few."""
    for dtype, name in DTYPES.items():
        past = 0.0
        for n in SIZES:
            if past * 8 > LONGEST * bench.least:
                break
            stage(f"matmul {dtype} {n}")
            past = bench.seconds(lambda c, w: c @ w, ((n, n), name), ((n, n), name))
            yield _product(dtype, n, n, n, past)
        for m, n in ((256, 1024), (2048, 512)):
            if past * 8 > LONGEST * bench.least and 2 * m * n * n > 2 * SIZES[4] ** 3:
                continue
            spent = bench.seconds(lambda c, w: c @ w, ((m, n), name), ((n, n), name))
            yield _product(dtype, m, n, n, spent)


def _product(dtype: str, m: int, k: int, n: int, seconds: float) -> dict[str, Any]:
    flops = 2.0 * m * k * n
    return {
        "what": "matmul",
        "dtype": dtype,
        "size": [m, k, n],
        "flops": flops,
        "seconds": seconds,
    }


def _memory(bench: _Bench) -> Iterator[dict[str, Any]]:
    """One read and one write of every byte."""
    for size in MEMORY_BYTES:
        if size > ENOUGH_BYTES and 2 * size * bench.devices > MOST_BYTES:
            break
        stage(f"memory {size >> 20} MiB")
        n = size // 4
        seconds = bench.seconds(lambda c: c * 1.0001, ((n,), "float32"))
        yield {"what": "memory", "size": [size], "bytes": 2.0 * size, "seconds": seconds}


def _elementwise(bench: _Bench) -> Iterator[dict[str, Any]]:
    """What fused work reaches: an optimizer's update, a norm, a gate, and a gate turned, as the
    gradients of weights read activations. "bytes" are those that a fused program moves."""
    import jax
    import jax.numpy as jnp

    def adam(c: Any, g: Any) -> Any:
        p, m, v = c
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        return p - 1e-3 * m * jax.lax.rsqrt(v + 1e-8), m, v

    def norm(c: Any, g: Any) -> Any:
        return c * jax.lax.rsqrt(jnp.mean(c * c, axis=-1, keepdims=True) + 1e-6) * g

    def gate(c: Any, g: Any) -> Any:
        return jax.nn.silu(c) * g

    def turned(c: Any, g: Any) -> Any:
        return (jax.nn.silu(c) * g).T

    n = 2048
    square = ((n, n), "float32")
    size = 4.0 * n * n
    for name, op, shapes, moved in (
        ("adam", adam, ((square,) * 3, square), 7 * size),
        ("norm", norm, (square, ((n,), "float32")), 3 * size),
        ("gate", gate, (square, square), 3 * size),
        ("turned", turned, (square, square), 3 * size),
    ):
        stage(f"elementwise {name}")
        yield {
            "what": "elementwise",
            "size": [name],
            "bytes": moved,
            "seconds": bench.seconds(op, *shapes),
        }


def _attention(bench: _Bench, kernel: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Causal attention, forward and backward; FLOPs of the causal half, 2 + 5 products."""
    import jax

    b, t, n, h = 2, 512, 8, 64

    def both(q: Any) -> Any:
        return q + 1e-6 * jax.grad(lambda x: kernel(x).sum())(q)

    stage("attention")
    seconds = bench.seconds(both, ((b, t, n, h), "float32"))
    flops = 3.5 * 4 * b * n * t * t * h / 2
    yield {"what": "attention", "dtype": "f32", "flops": flops, "seconds": seconds, "size": [t]}


def _small(bench: _Bench) -> Iterator[dict[str, Any]]:
    """Ops too small to compute anything: what each costs in a program."""
    import jax.numpy as jnp

    stage("overhead of an op")
    seconds = bench.seconds(lambda c, w: c @ w, ((8, 8), "float32"), ((8, 8), "float32"))
    yield {"what": "overhead", "size": ["matmul"], "seconds": seconds}
    seconds = bench.seconds(lambda c: jnp.roll(c, 1), ((64,), "float32"))
    yield {"what": "overhead", "size": ["elementwise"], "seconds": seconds}


def _collectives(bench: _Bench) -> Iterator[dict[str, Any]]:
    """Each kind by V; a gather's result is cut again and a scatter's repeated, to feed the next."""
    import jax
    import jax.numpy as jnp

    g = bench.devices
    if g == 1:
        return
    ring = [(i, (i + 1) % g) for i in range(g)]
    whole = {
        "all_gather": lambda c: jax.lax.all_gather(c, "x", tiled=True)[: c.shape[0]] * 0.5,
        "reduce_scatter": lambda c: jnp.tile(jax.lax.psum_scatter(c, "x", tiled=True), g) * 0.1,
        "all_reduce": lambda c: jax.lax.psum(c, "x") * 0.1,
        "all_to_all": lambda c: jax.lax.all_to_all(c, "x", 0, 0, tiled=True) * 0.5,
        "permute": lambda c: jax.lax.ppermute(c, "x", ring) * 0.5,
    }
    for kind in COLLECTIVES:
        for size in WIRE_BYTES:
            stage(f"{kind} {size >> 10} KiB")
            # What one device holds of V before it.
            share = {"all_gather": g, "all_to_all": g}.get(kind, 1)
            n = max(size // 4 // share // g * g, g)
            seconds = bench.seconds(whole[kind], ((n,), "float32"))
            v = 4.0 * n * share
            yield {"what": kind, "size": [int(v)], "bytes": v, "seconds": seconds}


def _memory_of(devices: Sequence[Any]) -> float:
    """Bytes that one device can use: the driver's limit, or its share of the host's memory."""
    stats = devices[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return float(stats["bytes_limit"])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / len(devices)
