"""LoRA's choices (arXiv 2106.09685): which matrices have adapters, how the frozen ones are stored.

A matrix is called by the last part of its row's name ("q" of attention.q), as PEFT calls it with
"_proj" left out; a component ("attention") means all of its matrices.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from shardwise.errors import BadRequest, check_known
from shardwise.models import Parameter

Quantized = Literal["none", "int8", "nf4", "gptq", "awq"]
QUANTIZED: tuple[Quantized, ...] = get_args(Quantized)
ADAPTERS = (".lora_a", ".lora_b")
"""How the names of LoRA's rows end."""
EVERY = ("all", "all-linear", "all_linear")
"""What other programs call every matrix of the layers."""

NF4_BLOCK, NF4_OUTER = 64, 256
"""Elements that share a scale, and scales that share one of their own (QLoRA, arXiv 2305.14314,
section 3: double quantisation; bitsandbytes' defaults)."""


GROUP = 128
"""Elements of 4 bits that share a 16-bit scale and a 4-bit zero, of GPTQ (arXiv 2210.17323) and AWQ
(arXiv 2306.00978): the group of the checkpoints that people publish (AutoGPTQ's and AutoAWQ's
quantize_config). GPTQ's index of groups, 4 bytes per input, is below 0.001 of a byte an element."""


def quantized_bytes(kind: Quantized, row: Parameter) -> float:
    """Bytes per element of a quantised matrix, its constants included: nf4 has half a byte, a scale
    of one byte per block and an f32 per 256 scales; int8 a byte, and an f32 per row of outputs
    (LLM.int8(), arXiv 2208.07339); gptq and awq half a byte, and a scale and a zero per group."""
    if kind == "nf4":
        return 0.5 + (1 + 4 / NF4_OUTER) / NF4_BLOCK
    if kind in ("gptq", "awq"):
        return 0.5 + (2 + 0.5) / GROUP
    return 1.0 + 4 / row.contracted


def can_adapt(row: Parameter) -> bool:
    """Whether adapters can stand beside a row: a matrix of the layers, routed experts apart."""
    return row.role == "matmul" and row.group is not None and "E" not in row.batch


def targeted(row: Parameter, targets: Sequence[str]) -> bool:
    """Whether a row has adapters; without targets every matrix has."""
    return can_adapt(row) and (
        not targets or row.component in targets or short_name(row) in targets
    )


def short_name(row: Parameter) -> str:
    """What a matrix is called: "q" of attention.q."""
    return row.name.rpartition(".")[2]


def parse_targets(text: str | Sequence[str] | None) -> tuple[str, ...]:
    """Targets as people write them: names with commas, with or without PEFT's "_proj".

    >>> parse_targets("q_proj, v_proj"), parse_targets("all-linear"), parse_targets(None)
    (('q', 'v'), (), ())
    """
    words = text.split(",") if isinstance(text, str) else (text or ())
    names = [word.strip().removesuffix("_proj") for word in words]
    return () if not names or any(n in EVERY for n in names) else tuple(dict.fromkeys(names))


def targets_of(rows: Sequence[Parameter], targets: Sequence[str]) -> tuple[str, ...]:
    """The targets that a model has, as PEFT passes over a name that no module has; all of them
    where it has none, which PEFT refuses (peft/tuners/tuners_utils.py)."""
    known = {n for row in rows if can_adapt(row) for n in (short_name(row), row.component)}
    return tuple(name for name in targets if name in known) or tuple(targets)


def check_targets(rows: Sequence[Parameter], targets: Sequence[str], model: str) -> None:
    """Raise BadRequest for a target that no matrix of a model is called by."""
    able = [row for row in rows if can_adapt(row)]
    known = dict.fromkeys(n for row in able for n in (short_name(row), row.component))
    for name in targets:
        check_known("matrix to adapt", name, known, f"{model} has these")
    if not able:
        raise BadRequest(f"{model} has no matrix that adapters can stand beside")
