"""What a plan has where nobody says otherwise: the same for a search and for a plan by hand."""

from dataclasses import replace
from typing import Any

from shardwise.models import ModelConfig
from shardwise.plans.software.row import SoftwareRow
from shardwise.plans.train import TrainDtypes


def default_dtypes(compute: str, param: object = None) -> TrainDtypes:
    """bf16 parameters and gradients with f32 master copy and moments; f32 throughout for f32.
    Parameters that are stored in f32, as `param` asks for, are that copy themselves."""
    if compute == "f32":
        return TrainDtypes(param="f32", compute="f32", grad="f32", master="none")
    return TrainDtypes(compute=compute, master=master_of(param))


def master_of(param: object) -> str:
    """The dtype of the optimizer's own copy of parameters, where nobody says it.

    >>> master_of("bf16"), master_of("f32")
    ('f32', 'none')
    """
    return "none" if param in ("f32", "f64") else "f32"


def usual_dtypes(row: SoftwareRow | None, compute: str, param: object = None) -> TrainDtypes:
    """Those that a program's users leave as they are, beside a stored dtype that is asked for; None
    stands for no program."""
    usual = row.usual if row else {}
    own = {k.partition(".")[2]: v for k, v in usual.items() if k.startswith("dtypes.")}
    return replace(default_dtypes(compute, param), **own)


def usual_choices(row: SoftwareRow | None, cfg: ModelConfig) -> dict[str, Any]:
    """All other choices that a program's users leave as they are, for a model."""
    idle = () if cfg.has_experts else ("expert_dispatch",)
    usual = row.usual if row else {}
    return {name: v for name, v in usual.items() if "." not in name and name not in idle}
