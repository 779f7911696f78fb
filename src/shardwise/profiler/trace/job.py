"""Inside a child: run a program on the devices here, time its steps, capture some of them.

The steps are timed without the profiler first, each to its end; then a few are captured. JAX is
imported here alone.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from shardwise.boundary.child import function_named
from shardwise.errors import BadRequest
from shardwise.profiler.child import stage
from shardwise.profiler.micro.reference import product_timer
from shardwise.profiler.trace.events import MODULES, MOST_EVENTS, OPS, STATS

CAPTURE_OPTIONS = {
    "gpu": {"xla_gpu_enable_command_buffer": "", "xla_gpu_graph_min_graph_size": 2**20}
}
"""Of the program that is captured, by JAX's platform. What runs as a CUDA graph is one event in a
capture, without its kernels, so there the kernels are launched one by one; steps are timed before,
with graphs."""
WITHOUT = 5
"""Steps of that program that are timed, to say what it costs."""
CAPTURED = 3
"""Steps that are captured: a loop of 80 layers makes thousands of events a step."""


def run_job(
    builder: str,
    arguments: Mapping[str, Any],
    steps: int,
    devices: int,
    keep: str | None,
    reference: int = 0,
) -> dict[str, Any]:
    """Compile `builder(devices, **arguments)` here, run it `steps` times and capture some.

    `builder` is "module:function" as for `ahead.compile_ahead`; `devices` are taken in JAX's order.
    The answer has "seconds" (of each step), "hlo", "mesh", "kind", "lines" (as `events.lines_of`
    takes) and "compile_seconds". With `keep` the capture's files are left in that folder. With
    `reference` n, n x n x n products in float32 on one device are timed between the steps, as
    "reference_seconds" of one: a measure of how busy the machine was meanwhile. "without_graphs"
    are seconds of the program that is captured, where `CAPTURE_OPTIONS` make it another one.
    Raises BadRequest where fewer devices are here.
    """
    import jax

    here = jax.devices()
    if len(here) < devices:
        raise BadRequest(
            f"the program runs on {devices} devices and {len(here)} of kind "
            f"'{here[0].device_kind}' are here; use --cpu-devices {devices} to run it on virtual "
            "CPU devices, or a smaller plan"
        )
    program = function_named(builder)(here[:devices], **arguments)
    stage("compiling")
    begun = time.perf_counter()
    lowered = program.function.lower(*program.arguments)
    executable = lowered.compile()
    took = time.perf_counter() - begun
    stage("making arguments")
    runner = _Runner(executable, lowered, program.arguments)
    for _ in range(2):
        runner.step()
    seconds: list[float] = []
    beside: list[float] = []
    product = product_timer(reference) if reference else None
    for i in range(steps):
        stage(f"step {i + 1} of {steps}")
        seconds.append(runner.step())
        if product is not None:
            beside.append(product())
    stage("capturing")
    without: list[float] = []
    if options := CAPTURE_OPTIONS.get(here[0].platform):
        runner.executable = lowered.compile(compiler_options=options)
        runner.step()
        without = [runner.step() for _ in range(min(steps, WITHOUT))]
    return {
        "seconds": seconds,
        "reference_seconds": beside,
        "without_graphs": without,
        "compile_seconds": took,
        "hlo": executable.as_text(),
        "mesh": dict(program.mesh.shape),
        "kind": here[0].device_kind,
        "platform": here[0].platform,
        "lines": _captured(runner, min(steps, CAPTURED), keep),
    }


class _Runner:
    """Runs an executable again and again; what it takes over comes from what it gave back."""

    def __init__(self, executable: Any, lowered: Any, arguments: Sequence[Any]) -> None:
        import jax

        self.executable = executable
        given, self.tree = jax.tree.flatten(tuple(arguments))
        infos, tree = jax.tree.flatten(lowered.args_info)
        self.keywords = tree == self.tree  # (args, kwargs), as those of a user's function
        self.donated = [bool(info.donated) for info in infos]
        self.leaves = [_made(x) for x in given]

    def step(self) -> float:
        """Run once to the end; its seconds."""
        import jax

        args = jax.tree.unflatten(self.tree, self.leaves)
        args, kwargs = args if self.keywords else (args, {})
        begun = time.perf_counter()
        out = self.executable(*args, **kwargs)
        jax.block_until_ready(out)
        seconds = time.perf_counter() - begun
        self.take_back(jax.tree.leaves(out))
        return seconds

    def take_back(self, out: list[Any]) -> None:
        """The first output of its shape and dtype in place of each argument that was given away, as
        XLA lays one over the other; a new array where there is none."""
        left = list(out)
        for i, donated in enumerate(self.donated):
            if not donated:
                continue
            old = self.leaves[i]
            same = (
                n
                for n, x in enumerate(left)
                if (x.shape, x.dtype) == (old.shape, old.dtype)
                and x.sharding.is_equivalent_to(old.sharding, x.ndim)
            )
            found = next(same, None)
            self.leaves[i] = _made(old) if found is None else left.pop(found)


def _made(x: Any) -> Any:
    """An array for an abstract argument, where it lies: small random floats, or zeros. Numbers of
    the host stay."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    if isinstance(x, np.ndarray) or not hasattr(x, "shape"):
        return x
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.key(0)
    return _filler(tuple(x.shape), x.dtype, getattr(x, "sharding", None))()


@cache
def _filler(shape: tuple[int, ...], dtype: Any, at: Any) -> Any:
    """What makes arrays of a kind, compiled once: layers are alike."""
    import jax
    import jax.numpy as jnp

    def fill() -> Any:
        if jnp.issubdtype(dtype, jnp.floating):
            drawn = jax.random.normal(jax.random.key(0), shape, jnp.float32)
            return (0.02 * drawn).astype(dtype)
        return jnp.zeros(shape, dtype)

    return jax.jit(fill, out_shardings=at)


def _captured(runner: _Runner, steps: int, keep: str | None) -> list[dict[str, Any]]:
    import jax

    with tempfile.TemporaryDirectory(prefix="shardwise-trace-") as folder:
        where = Path(keep or folder)
        before = set(where.rglob("*.xplane.pb"))
        with jax.profiler.trace(str(where)):
            for _ in range(steps):
                runner.step()
        made = sorted(set(where.rglob("*.xplane.pb")) - before)
        return [row for path in made for row in read_planes(str(path))]


def read_planes(path: str) -> list[dict[str, Any]]:
    """The lines of an `.xplane.pb` that hold compiled ops, as plain values; seconds."""
    import jax

    try:
        data = jax.profiler.ProfileData.from_file(path)
    except Exception as error:
        raise BadRequest(
            f"trace '{path}' is no capture of jax.profiler, or a part of one: "
            f"{str(error).splitlines()[0]}; capture or copy it anew"
        ) from None
    rows, left = [], MOST_EVENTS
    for plane in data.planes:
        for line in plane.lines:
            every = line.name in (OPS, MODULES)
            plain = (_plain(e) for e in line.events)
            events = list(islice((e for e in plain if every or "hlo_op" in e[3]), left + 1))
            left -= len(events)
            if left < 0:
                raise BadRequest(
                    f"trace '{path}' has more than {MOST_EVENTS:,} events of compiled ops; capture "
                    "fewer steps"
                )
            if events:
                rows.append({"plane": plane.name, "line": line.name, "events": events})
    return rows


def _plain(event: Any) -> list[Any]:
    stats = {k: v for k, v in event.stats if k in STATS and isinstance(v, str | int | float)}
    return [event.name, event.start_ns / 1e9, event.duration_ns / 1e9, stats]
