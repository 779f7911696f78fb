"""The software that serves, a row each: what it can lay out, and whose measured constants price it.

`plan serve --for NAME` plans for one row, so that what it answers can be exported to that software
and run. The constants are in `roofline/engines.py`; a row without any of its own names those that
stand in for it, and says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shardwise.boundary import read_toml
from shardwise.errors import unknown
from shardwise.hardware import Chip
from shardwise.plans.serve import (
    CHECKPOINT,
    ENGINE_CACHES,
    ENGINE_WEIGHTS,
    KV_SHARDINGS,
    KvSharding,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSoftware:
    """One server.

    `engine` names the constants that it is priced by, measured on chips of the vendors `measured`,
    and `tpu_engine` those that it has on TPUs, if these are others. It cuts layers into stages
    where `stages`, a KV cache in one of `kv_shardings`, D of weights that stay in place where
    `cuts_width`, and the heads of attention beside experts that are cut, too, where
    `heads_beside_experts`; on chips of the vendors `tensor_alone` nothing but heads and widths.
    `weights` and `caches` are the dtypes that it stores them in. It runs on chips of the vendors
    `vendors` (empty: all). `note` says what its times are where they are not its own.
    """

    name: str
    title: str
    engine: str
    tpu_engine: str = ""
    measured: tuple[str, ...] = ()
    kv_shardings: tuple[KvSharding, ...] = ("heads",)
    stages: bool = False
    cuts_width: bool = False
    heads_beside_experts: bool = False
    tensor_alone: tuple[str, ...] = ()
    weights: tuple[str, ...] = (CHECKPOINT, "bf16", "fp8", "int8", "int4", "nvfp4")
    caches: tuple[str, ...] = ("bf16", "fp8")
    vendors: tuple[str, ...] = ()
    note: str = ""

    def runs_on(self, chip: Chip) -> bool:
        """Whether there is such a server for a chip."""
        return not self.vendors or chip.vendor in self.vendors

    def engine_on(self, chip: Chip) -> str:
        """What prices its plans on a chip."""
        return self.tpu_engine or self.engine if chip.vendor == "google" else self.engine

    def is_priced_by(self, engine: str) -> bool:
        """Whether plans for it have these constants, on some chip."""
        return engine in (self.engine, self.tpu_engine)


VLLM = ServingSoftware(name="vllm", title="vLLM", engine="vllm", measured=("nvidia",), stages=True)
SGLANG = ServingSoftware(
    name="sglang",
    title="SGLang",
    engine="sglang",
    measured=("nvidia",),
    stages=True,
    tensor_alone=("google",),
)
TRTLLM = ServingSoftware(
    name="trtllm",
    title="TensorRT-LLM",
    engine="trtllm",
    measured=("nvidia",),
    stages=True,
    vendors=("nvidia",),
)
JAX = ServingSoftware(
    name="jax",
    title="JAX",
    engine="ideal",
    tpu_engine="jax",
    kv_shardings=KV_SHARDINGS,
    cuts_width=True,
    heads_beside_experts=True,
    weights=(CHECKPOINT, *ENGINE_WEIGHTS),
    caches=ENGINE_CACHES,
    note="our server is not measured on accelerators: the chip's own times, on TPUs as compiled "
    "steps take them (docs/lab/fit_jax_serving.md), nothing for the host",
)

SERVING_SOFTWARE: Mapping[str, ServingSoftware] = {
    row.name: row for row in (VLLM, SGLANG, TRTLLM, JAX)
}


def default_compute(chip: Chip) -> str:
    """What servers multiply in: bf16 where the chip has it, else f16 or f32. A chip without any of
    them is refused when its peak is asked for."""
    return next((d for d in ("bf16", "f16", "f32") if d in chip.peak_flops), "bf16")


ANY = "any"
"""In place of a name: whichever serves cheapest among those that were measured."""

FORMER = {"ideal": JAX.name, "others": ANY}
"""What constants are called in plans, and the software to ask for instead."""


def serving_software(name: str) -> tuple[ServingSoftware, ...]:
    """The rows of a name, several for "any"; BadRequest lists the names."""
    if name == ANY:
        return tuple(row for row in SERVING_SOFTWARE.values() if row.measured)
    if name.endswith(".toml"):  # constants that were calibrated on a server here
        return (_calibrated(name),)
    if name not in SERVING_SOFTWARE:
        remedy = f"write --for {FORMER[name]}" if name in FORMER else ""
        raise unknown("software", name, (*SERVING_SOFTWARE, ANY), remedy)
    return (SERVING_SOFTWARE[name],)


def _calibrated(path: str) -> ServingSoftware:
    """The row whose constants a file replaces: the file's table is named after them."""
    tables = read_toml(Path(path), "the engine file")
    named = (r for r in SERVING_SOFTWARE.values() if any(map(r.is_priced_by, tables)))
    row = next(named, VLLM)
    title = f"{row.title} ({Path(path).name})"
    return replace(
        row, name=path, title=title, engine=path, tpu_engine="", measured=("here",), note=""
    )
