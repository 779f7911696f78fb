"""Export: a TrainPlan in the words of another framework or launcher, and back to the same plan.

One file per target: `maxtext.py`, `torchtitan.py`, `megatron.py`, `jax_mesh.py`, and the launchers
`xpk.py`, `skypilot.py` and `slurm.py` (`hardware.py` has the names of slices there). Of the first
three `maxtext_model.py` and `megatron_model.py` write what describes the model, `maxtext_read.py`,
`megatron_read.py` and `torchtitan_read.py` read files that anybody wrote (`megatron_yaml.py`
recipes, `nanotron.py` and `neox.py` those of two programs like it, `nemo_python.py` NeMo's in
Python, `torchtitan_python.py` TorchTitan's, `interpolation.py` what a YAML takes of its own keys,
`megatron_former.py` and `torchtitan_keys.py` names of before, `jax_trainers.py` EasyLM and
levanter), `which_model.py` says for which model, `megatron_shape.py` and `megatron_hybrid.py` build
one of its numbers, `effect.py` says which keys change nothing where they stand; `trainer/` has
transformers' Trainer: TRL, axolotl, accelerate and DeepSpeed; `known_flags.py` tells whose file one
is and which of its words nobody knows. A ServePlan goes through `serving.py` to
`vllm.py`, `sglang.py` and `trtllm.py`, each a `server_program.py` as our own `own_server.py`; the
three share `server_flags.py`; `server_command.py` finds a server's command in what anybody wrote;
`slurm_server.py` starts them as jobs; `one_host.py` starts several on one host,
`load_check.py` writes the load that checks the answer, `deploy/` what a cluster starts (`data/` has
the objects of a router). `flags.py` reads the flags of all that write a command, `script/` the bash
script around one, and `edit/` changes such files in place. Each target has `write(plan, cfg,
piece)`, the target's own text, and `read(text, devices)`, the fields of the plan that this text
says. What a target has no word for stands in comment lines beside the text (`notes.py`); what it
would run in another way are the limits of its row in `plans/software/`, all of which a refusal
names. Nothing is run or installed here: Python is read as a tree (`python_text.py`), and what came
from outside is quoted for the language that it is written in. Read `notes.py` first.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import prod

from shardwise.errors import BadRequest, Gives, Lacking, unknown
from shardwise.hardware import Slice
from shardwise.models import ModelConfig, load_model, parameters
from shardwise.planner.export import (
    jax_mesh,
    maxtext,
    maxtext_read,
    megatron,
    megatron_read,
    skypilot,
    slurm,
    torchtitan,
    torchtitan_read,
    trainer,
    which_model,
    xpk,
)
from shardwise.planner.export.notes import (
    Exporter,
    Fields,
    check_model,
    check_runs,
    exporter_of,
    fields_read,
    noted,
    train_plan,
    with_notes,
)
from shardwise.plans import TrainPlan, model_hash
from shardwise.plans.adapters import targets_of
from shardwise.plans.software import JAX, SOFTWARE, candidates_of_plan, usual_software
from shardwise.plans.software.maxtext import MAXTEXT
from shardwise.plans.software.megatron import MEGATRON
from shardwise.plans.software.torchtitan import TORCHTITAN
from shardwise.plans.software.trainer import TRAINER

ModelNamed = tuple[str, ModelConfig]
"""A model as a plan calls it, and its config."""


def _in_slurm(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> str:
    """A batch script that starts the plan's program, of a plan for none the first that runs it."""
    program = plan.software if plan.software != "any" else target_for(plan, cfg, piece)
    if not program:
        raise BadRequest(
            "slurm cannot express software any: no known program runs this plan; "
            f"export --to {', '.join((*SOFTWARE, 'trl'))} says why"
        )
    return slurm.write(plan, cfg, piece, program, export_plan(plan, cfg, piece, program))


def _inside(text: str) -> tuple[Exporter, str]:
    program, inner = slurm.inside(text)
    return exporter_of(EXPORTERS, program, "export target"), inner


def _of_slurm(text: str, devices: int | None = None) -> Fields:
    program, inner = slurm.inside(text)
    own = program == JAX.name
    return slurm.read_own(inner) if own else _inside(text)[0].read(inner, devices)


EXPORTERS: Mapping[str, Exporter] = {
    "maxtext": Exporter(
        write=maxtext.write,
        read=maxtext_read.read,
        lost=lambda _: maxtext.LOST,
        runner=lambda _: MAXTEXT,
        model=which_model.of_maxtext,
        check=which_model.check_maxtext,
    ),
    "torchtitan": Exporter(
        write=torchtitan.write,
        read=torchtitan_read.read,
        lost=lambda _: torchtitan.LOST,
        runner=lambda _: TORCHTITAN,
        model=which_model.of_torchtitan,
    ),
    "megatron": Exporter(
        write=megatron.write,
        read=megatron_read.read,
        lost=lambda _: megatron.LOST,
        runner=lambda _: MEGATRON,
        model=which_model.of_megatron,
        check=which_model.check_megatron,
    ),
    **{
        target: Exporter(
            write=write,
            read=partial(trainer.read, target=target),
            lost=lambda _: {},
            runner=lambda _: TRAINER,
            model=which_model.of_trainer,
            check=which_model.check_trainer,
            obstacles=obstacles,
        )
        for target, write, obstacles in (
            ("trl", trainer.write_trl, trainer.obstacles_accelerate),
            ("axolotl", trainer.write_axolotl, trainer.obstacles_axolotl),
            ("accelerate", trainer.write_accelerate, trainer.obstacles_accelerate),
            ("deepspeed", trainer.write_deepspeed, trainer.obstacles_deepspeed),
        )
    },
    "jax": Exporter(write=jax_mesh.write, read=jax_mesh.read, lost=lambda _: jax_mesh.LOST),
    "xpk": Exporter(
        write=xpk.write,
        read=xpk.read,
        lost=lambda _: xpk.LOST,
        runner=lambda _: MAXTEXT,
        obstacles=xpk.obstacles,
    ),
    "skypilot": Exporter(
        write=skypilot.write,
        read=skypilot.read,
        lost=skypilot.lost,
        runner=skypilot.runner,
        obstacles=skypilot.obstacles,
    ),
    "slurm": Exporter(
        write=_in_slurm,
        read=_of_slurm,
        lost=lambda _: {},
        model=lambda text: _inside(text)[0].model(_inside(text)[1]),
        check=lambda text, cfg: _inside(text)[0].check(_inside(text)[1], cfg),
        obstacles=slurm.obstacles,
        whole=True,
    ),
}
"""By the name that `--to` takes."""


def export_plan(plan: TrainPlan, cfg: ModelConfig, piece: Slice, target: str) -> str:
    """The plan as the text of a target; `parse_export` gives back the same plan.

    `cfg` and `piece` are the model and the slice that the plan names. Raises BadRequest for an
    unknown target, a model that is not the plan's, and with all obstacles at once for choices that
    the target cannot run.
    """
    exporter = exporter_of(EXPORTERS, target, "export target")
    check_model(plan, cfg)
    runner, found = exporter.runner(piece), exporter.obstacles(plan, piece)
    if runner is not None:
        found += runner.obstacles(candidates_of_plan(plan, cfg, piece))
    check_runs(target, found)
    text = exporter.write(plan, cfg, piece)
    if exporter.whole:
        return text
    return with_notes(text, target, plan, cfg, exporter.read(text), exporter.lost(piece))


def refusal(plan: TrainPlan, cfg: ModelConfig, piece: Slice, program: str) -> str:
    """Why a program that trains (a name of `SOFTWARE`) does not run a plan: what its exporter says,
    or for ours what our trainer does; "" where it runs it."""
    if program == JAX.name:
        found = JAX.obstacles(candidates_of_plan(plan, cfg, piece))
        return "; ".join(map(str, found))
    try:
        export_plan(plan, cfg, piece, program)
    except BadRequest as error:
        return str(error)
    return ""


def target_for(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> str:
    """The program that a plan is for, where it runs it; of a plan for none in particular the first
    that does, of what the chip's users run first, and TRL after all; "" where there is none."""
    usual = [row.name for group in usual_software(piece.chip) for row in group]
    every = dict.fromkeys([*usual, *SOFTWARE, TRAINER.name])
    names = every if plan.software == "any" else [plan.software]
    return next((name for name in names if not refusal(plan, cfg, piece, name)), "")


def parse_export(
    text: str, target: str, *, model: ModelNamed | None = None, piece: Slice | None = None
) -> TrainPlan:
    """The plan that an exported text says: its own words first, its notes for the rest.

    `model` (what a plan calls it, and its config) and `piece` are those that it is for, where the
    text does not say it. Raises BadRequest for text that is no such export, whose values make no
    plan, and for what is missing, by name.
    """
    exporter = exporter_of(EXPORTERS, target, "export target")
    devices = None if piece is None else piece.chips * _per_chip(piece)
    said = fields_read(lambda text: exporter.read(text, devices), text, target)
    fields = noted(text, said)
    for key in fields:
        if key.partition(".")[0] not in TrainPlan.__dataclass_fields__:
            raise unknown("key", key, TrainPlan.__dataclass_fields__, f"in the {target} export")
    if piece is not None:
        _check_slices(said, piece, target)
        fields |= {"slice": str(piece), "box": list(piece.shape), "slices": piece.count}
    if model is None and "model" not in fields:
        model = _found(exporter, text, target)
    if model is not None:
        name, cfg = model
        exporter.check(text, cfg)
        fields |= {"model": name, "model_hash": model_hash(cfg)}
        if targets := fields.get("lora_targets"):
            fields["lora_targets"] = list(targets_of(parameters(cfg), targets))
        stages = fields.get("mesh", {}).get("stage", 1)
        each, more = divmod(cfg.layers, stages)
        fields.setdefault("layers_per_stage", [each + (at < more) for at in range(stages)])
    return train_plan(fields, target)


def _check_slices(said: Fields, piece: Slice, target: str) -> None:
    """Raise BadRequest where the text's mesh is one of more such slices, or of fewer."""
    slices, devices = said.get("slices", 1), prod(said.get("mesh", {}).values())
    if slices > 1 and slices != piece.count and devices == piece.chips * _per_chip(piece):
        raise BadRequest(
            f"{target}: the text is for {slices} slices, and {piece} is {piece.count} of as many "
            "devices together; make them equal"
        )
    if slices == piece.count or devices != slices * piece.chips_each * _per_chip(piece):
        return
    right = f"{slices}*" if slices > 1 else ""
    raise BadRequest(
        f"{target}: the text is for {slices} slice(s), its mesh has {devices:,} devices; {piece} "
        f"is {piece.count}: give --on '{right}{replace(piece, count=1)}'"
    )


def _per_chip(piece: Slice) -> int:
    return piece.chip.jax_devices_per_chip


def _found(exporter: Exporter, text: str, target: str) -> ModelNamed:
    name = exporter.model(text)
    if name is None:
        raise Lacking(
            f"{target}: the text matches no known model",
            "give it with --model",
            Gives.MODEL,
        )
    return name, load_model(name)


__all__ = ["EXPORTERS", "export_plan", "parse_export", "refusal", "target_for"]
