"""Vectors of prompts: what the model knows after them, without a cache and beside the engine.

    tokens [B, T] -> layers -> final norm -> the last token of each row, or the mean -> length 1

Which token it is, and whether a vector has length 1, is what sentence-transformers writes beside a
checkpoint (modules.json, 1_Pooling/config.json); without that the last one, as vLLM has it for
decoders ("Pooling models" of its documentation).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.boundary import is_file, read_json
from shardwise.errors import BadRequest
from shardwise.models import ModelConfig
from shardwise.plans.served_steps import power
from shardwise.runtime.attention.best import best_attention
from shardwise.runtime.model import call_of, embed
from shardwise.runtime.norms import norm
from shardwise.runtime.options import Options
from shardwise.runtime.quant import product
from shardwise.runtime.stack import run_stack
from shardwise.runtime.text.text_files import CONFIG, REMEDY, read_object

Pooling = Literal["last", "mean"]
POOLINGS: Mapping[str, Pooling] = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
}
SHORTEST = 16
"""Tokens of a row at least, so that programs are few."""
MODULES, POOLED = "modules.json", "1_Pooling"


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedder:
    """Makes vectors of a model on one device. `budget` tokens, padding too, are computed at once,
    or one prompt. `sizes` are the dims to which a vector may be cut; None: not at all."""

    params: Mapping[str, Any]
    cfg: ModelConfig
    compute: str
    budget: int
    pooling: Pooling = "last"
    normalized: bool = True
    sizes: frozenset[int] | None = None
    _program: Any = field(init=False)

    def __post_init__(self) -> None:
        options = Options(compute=self.compute, kernel=best_attention, experts="ragged")
        program = partial(_pooled, self.cfg, options, self.pooling)
        object.__setattr__(self, "_program", jax.jit(program))

    def check(self, dimensions: int) -> None:
        """Raise BadRequest for a size to which the model's vectors are not made to be cut."""
        if self.sizes is None:
            raise BadRequest(
                f"dimensions is {dimensions}, and this model is not trained for shorter vectors "
                "(config.json has no matryoshka_dimensions); leave it out"
            )
        if dimensions not in self.sizes:
            known = ", ".join(map(str, sorted(self.sizes)))
            raise BadRequest(f"dimensions is {dimensions}; this model's vectors have {known}")

    def batches(self, prompts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Numbers of prompts that are computed together, those of like lengths."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        batch: list[int] = []
        for i in order:
            if batch and power(len(batch) + 1, 1) * self._padded(prompts[i]) > self.budget:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def vectors(
        self, prompts: Sequence[Sequence[int]], dimensions: int | None = None
    ) -> np.ndarray:
        """One for each prompt, float32 [B, D]."""
        B, T = power(len(prompts), 1), max(map(self._padded, prompts))
        tokens_BT, lengths_B = np.zeros((B, T), np.int32), np.ones(B, np.int32)
        for row, prompt in enumerate(prompts):
            tokens_BT[row, : len(prompt)], lengths_B[row] = prompt, len(prompt)
        found_BD = np.asarray(self._program(self.params, tokens_BT, lengths_B))
        found_BD = found_BD[: len(prompts), :dimensions]
        if self.normalized:
            lengths_B1 = np.linalg.norm(found_BD, axis=1, keepdims=True)
            found_BD = found_BD / np.maximum(lengths_B1, np.finfo(np.float32).tiny)
        return found_BD

    def _padded(self, prompt: Sequence[int]) -> int:
        size = power(len(prompt), SHORTEST)
        return min(size, self.cfg.learned_tokens) if self.cfg.position_rows else size


def _pooled(
    cfg: ModelConfig,
    options: Options,
    pooling: Pooling,
    params: Mapping[str, Any],
    tokens_BT: jax.Array,
    lengths_B: jax.Array,
) -> jax.Array:
    """Vectors [B, D] in float32; tokens behind a row's length change nothing before them."""
    call = call_of(tokens_BT, cfg, options)
    x_BTD = embed(params, tokens_BT, cfg, call)
    x_BTD, _ = run_stack(params["layers"], x_BTD, cfg, call)
    if pooling == "last":
        x_BTD = jnp.take_along_axis(x_BTD, (lengths_B - 1)[:, None, None], axis=1)
    outside = {name: value for name, value in params.items() if name != "layers"}
    p = options.use(-1, outside)
    if cfg.final_norm:
        x_BTD = norm(p, "norm.final", x_BTD, call.numerics)
    if "embedding.out" in p:
        x_BTD = product("BTD,DM->BTM", x_BTD, p["embedding.out"])
    x_BTD = x_BTD.astype(jnp.float32)
    if pooling == "last":
        return x_BTD[:, 0]
    counted_BT1 = (jnp.arange(x_BTD.shape[1])[None] < lengths_B[:, None])[..., None]
    sums_BD = jnp.where(counted_BT1, x_BTD, 0).sum(1)
    return sums_BD / lengths_B[:, None].astype(jnp.float32)


def vectors_of(folder: Path, width: int) -> Mapping[str, Any]:
    """Fields of an `Embedder`, by the files of a checkpoint whose vectors have `width` dims. Raises
    BadRequest for a pooling that it does not have."""
    listed = folder / MODULES
    modules = read_json(listed, MODULES, remedy=REMEDY) if is_file(listed) else []
    modules = [str(one.get("type", "")) for one in modules if isinstance(one, dict)]
    found: dict[str, Any] = {"sizes": _sizes(folder / CONFIG, width)}
    if not any(kind.endswith("Pooling") for kind in modules):
        return found
    path = folder / POOLED / CONFIG
    on = [name for name, value in read_object(path).items() if value is True]
    modes = [name for name in on if name.startswith("pooling_mode_")]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise BadRequest(
            f"'{path}' asks for {' and '.join(modes) or 'no pooling'}; embeddings need one of "
            f"{' and '.join(POOLINGS)}"
        )
    normalized = any(kind.endswith("Normalize") for kind in modules)
    return found | {"pooling": POOLINGS[modes[0]], "normalized": normalized}


def _sizes(path: Path, width: int) -> frozenset[int] | None:
    """Dims that a model is trained for, beside its whole `width`."""
    config = read_object(path)
    sizes = config.get("matryoshka_dimensions")
    if isinstance(sizes, list) and all(type(one) is int and 0 < one <= width for one in sizes):
        return frozenset((*sizes, width))
    return frozenset(range(1, width + 1)) if config.get("is_matryoshka") is True else None
