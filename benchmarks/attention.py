"""How fast our attention is beside the naive one and JAX's, in one run.

    python benchmarks/attention.py [--rounds 5] [--gpu] [--tokens 1024,4096]

For each length: the naive kernel, our flash attention, `jax.nn.dot_product_attention` with XLA and,
with `--gpu`, cuDNN's. Causal, grouped heads; f32 on a CPU, bf16 on a GPU. Rounds are interleaved;
each figure is the median and the range in milliseconds, forward alone and forward with backward,
then TFLOP/s of the latter (14 B N H T^2 / 2, causal, no recomputation counted) and the memory that
the compiled program takes besides its inputs. A kernel whose scores would not fit is left out.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.runtime.attention import Scoring, dense_attention, flash_attention

Timed = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """B rows of T tokens, N query heads and K KV heads of width H."""

    B: int
    T: int
    N: int
    K: int
    H: int
    dtype: str

    @property
    def score_bytes(self) -> int:
        """One matrix of scores in f32."""
        return 4 * self.B * self.N * self.T**2

    @property
    def flops(self) -> float:
        """Two products forward and five backward, the visible half: recomputation is not counted
        for the naive kernel, so not for the others."""
        return 14 * self.B * self.N * self.H * self.T**2 / 2


def kernels(size: Size, gpu: bool, room: float) -> dict[str, Callable[..., jax.Array]]:
    """Functions of q, k, v and a Scoring, by name."""
    found: dict[str, Callable[..., jax.Array]] = {}
    if 4 * size.score_bytes < room:
        found["naive"] = dense_attention
        found["jax.nn xla"] = partial(library, implementation="xla")
    for block in (512, 1024) if gpu else (128, 256, 512):
        found[f"flash {block}"] = partial(flash_attention, block_T=block, block_S=block)
    if gpu:
        found["jax.nn cudnn"] = partial(library, implementation="cudnn")
    return found


def library(q: jax.Array, k: jax.Array, v: jax.Array, s: Scoring, implementation) -> jax.Array:
    """The same attention by `jax.nn`."""
    return jax.nn.dot_product_attention(
        q, k, v, scale=s.scale, is_causal=True, implementation=implementation
    )


def programs(kernel: Callable[..., jax.Array], size: Size) -> tuple[Timed, Timed, float]:
    """Forward and forward with backward, compiled, and the temporary bytes of the latter."""
    random = np.random.default_rng(0)
    heads = (size.N, size.K, size.K)
    arrays = [
        jnp.asarray(random.normal(size=(size.B, size.T, n, size.H)), size.dtype) for n in heads
    ]
    positions = jnp.broadcast_to(jnp.arange(size.T), (size.B, size.T))
    scoring = Scoring(
        scale=size.H**-0.5,
        softcap=None,
        window=None,
        chunk=None,
        in_order=True,
        q_positions_BT=positions,
        k_positions_BS=positions,
    )

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, s: Scoring) -> jax.Array:
        return kernel(q, k, v, s).astype(jnp.float32).sum()

    inputs = (*arrays, scoring)
    forward = jax.jit(kernel).lower(*inputs).compile()
    both = jax.jit(jax.value_and_grad(loss, (0, 1, 2))).lower(*inputs).compile()
    memory = both.memory_analysis()
    temp = memory.temp_size_in_bytes if memory else float("nan")
    return partial(forward, *inputs), partial(both, *inputs), temp


def milliseconds(program: Timed) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    jax.block_until_ready(program())
    return 1e3 * (time.perf_counter() - start)


def spread(values: list[float]) -> str:
    """Median, then the range."""
    return f"{statistics.median(values):9.2f} ({min(values):.2f}-{max(values):.2f})"


def measure(size: Size, gpu: bool, rounds: int, room: float) -> None:
    """Print a table for one size."""
    ready = {n: programs(kernel, size) for n, kernel in kernels(size, gpu, room).items()}
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in ready}
    for turn in range(rounds + 1):
        for name, (forward, both, _) in ready.items():
            pair = milliseconds(forward), milliseconds(both)
            if turn:  # the first warms up
                times[name][0].append(pair[0])
                times[name][1].append(pair[1])
    print(f"\n{size}")
    print(f"{'':14}{'forward ms':>32}{'with backward ms':>32}{'TFLOP/s':>10}{'temp MiB':>10}")
    for name, (forward, both) in times.items():
        rate = size.flops / statistics.median(both) / 1e9
        temp = ready[name][2] / 2**20
        print(f"{name:14}{spread(forward):>32}{spread(both):>32}{rate:10.3g}{temp:10.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gpu", action="store_true", help="sizes and kernels for one GPU")
    parser.add_argument("--tokens", default="", help="lengths, with commas between")
    options = parser.parse_args()
    lengths = "2048,4096,8192,16384" if options.gpu else "256,1024,2048"
    device = jax.devices()[0]
    print(f"{device.device_kind}, {os.cpu_count()} cores, JAX {jax.__version__}", end=", ")
    print(f"{options.rounds} interleaved rounds")
    for tokens in map(int, (options.tokens or lengths).split(",")):
        if options.gpu:
            # The same number of tokens at every length; heads as in Llama-3-8B.
            size = Size(B=max(1, 16384 // tokens), T=tokens, N=32, K=8, H=128, dtype="bfloat16")
        else:
            size = Size(B=1, T=tokens, N=8, K=4, H=64, dtype="float32")
        measure(size, options.gpu, options.rounds, 60e9 if options.gpu else 2e9)


if __name__ == "__main__":
    main()
