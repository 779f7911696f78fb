"""What a plan has where nobody says otherwise: the same for a search and for a plan by hand."""

from dataclasses import replace
from typing import Any

from shardwise.models import ModelConfig
from shardwise.plans.software.row import SoftwareRow
from shardwise.plans.train import TrainDtypes


def default_dtypes(compute: str) -> TrainDtypes:
    """bf16 parameters and gradients with f32 master copy and moments; f32 throughout for f32."""
    if compute == "f32":
        return TrainDtypes(param="f32", compute="f32", grad="f32", master="none")
    return TrainDtypes(compute=compute)


def usual_dtypes(row: SoftwareRow | None, compute: str) -> TrainDtypes:
    """Those that a program's users leave as they are; None stands for no program."""
    usual = row.usual if row else {}
    own = {k.partition(".")[2]: v for k, v in usual.items() if k.startswith("dtypes.")}
    return replace(default_dtypes(compute), **own)


def usual_choices(row: SoftwareRow | None, cfg: ModelConfig) -> dict[str, Any]:
    """All other choices that a program's users leave as they are, for a model."""
    idle = () if cfg.has_experts else ("expert_dispatch",)
    usual = row.usual if row else {}
    return {name: v for name, v in usual.items() if "." not in name and name not in idle}
