"""LoRA adapters as PEFT writes them, added to the tensors of a checkpoint while it is read.

    W + scale B A      A [r, in], B [out, r]; scale alpha / r, or alpha / sqrt(r) (rsLoRA)

Hu et al., arXiv 2106.09685; the names and files are PEFT's (adapter_config.json,
adapter_model.safetensors). A sum is made in float32 and rounded once.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.boundary import read_json
from shardwise.errors import BadRequest, shown
from shardwise.runtime.tensor_file import Entry, read_header

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
HEAD = "base_model.model."
NAMED = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])\.weight")


@dataclass(frozen=True, slots=True)
class AdaptedEntry:
    """A tensor with what its adapter adds to it; `turned` where the file has it [in, out]."""

    base: Entry
    a: Entry
    b: Entry
    scale: float
    turned: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.base.shape

    @property
    def dtype(self) -> Any:
        return self.base.dtype

    def open(self) -> np.ndarray:
        """The sum, in float32."""
        a, b, base = (np.asarray(x.open(), np.float32) for x in (self.a, self.b, self.base))
        more = self.scale * (b @ a)
        return base + (more.T if self.turned else more)


def adapted(entries: Mapping[str, Entry], folder: Path) -> dict[str, Entry | AdaptedEntry]:
    """The tensors of a checkpoint with those of an adapter's folder. Raises BadRequest for one that
    does more than LoRA, or is of another model."""
    path = folder / TENSORS
    config = read_json(folder / CONFIG, CONFIG)
    _check(config, folder / CONFIG)
    found: dict[str, Entry | AdaptedEntry] = dict(entries)
    pairs: dict[str, dict[str, Entry]] = defaultdict(dict)
    for name, entry in read_header(path).items():
        inner = name.removeprefix(HEAD)
        if match := NAMED.fullmatch(inner):
            pairs[match["module"]][match["side"]] = entry
        elif inner in entries and entries[inner].shape == entry.shape:
            found[inner] = entry  # of modules_to_save, and biases
        else:
            raise _wrong(path, name)
    for module, sides in pairs.items():
        weight = f"{module}.weight"
        if weight not in entries or set(sides) != {"A", "B"}:
            raise _wrong(path, HEAD + module)
        a, b = sides["A"], sides["B"]
        turned, base = config.get("fan_in_fan_out") is True, entries[weight]
        shape = (*b.shape[:1], *a.shape[1:])
        if a.shape[:1] != b.shape[1:] or (shape[::-1] if turned else shape) != base.shape:
            raise BadRequest(
                f"'{path}': {module} has A {list(a.shape)} and B {list(b.shape)}, and the model's "
                f"'{weight}' is {list(base.shape)}; use an adapter of this model"
            )
        found[weight] = AdaptedEntry(base, a, b, _scale(config, module, a.shape[0]), turned)
    return found


def _check(config: Any, path: Path) -> None:
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise BadRequest(f"'{path}': peft_type is {shown(kind)}; it must be 'LORA'")
    if config.get("use_dora"):
        raise BadRequest(f"'{path}': use_dora is true; merge it with PEFT and serve the result")
    alphas = [config.get("lora_alpha"), *(config.get("alpha_pattern") or {}).values()]
    if not all(type(alpha) in (int, float) for alpha in alphas):
        raise BadRequest(f"'{path}': lora_alpha is {shown(alphas[0])}; it must be a number")


def _scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    patterns = (config.get("alpha_pattern") or {}).items()
    alpha = config["lora_alpha"]
    alpha = next((a for p, a in patterns if re.fullmatch(rf"(.*\.)?({p})", module)), alpha)
    return alpha / (sqrt(rank) if config.get("use_rslora") else rank)


def _wrong(path: Path, name: str) -> BadRequest:
    return BadRequest(
        f"'{path}': the model has no weight for '{name[:200]}'; use an adapter of this model "
        "that changes linear layers (lora_A and lora_B)"
    )
