"""Checks the words of a request that limit which training plans a search may choose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from shardwise.boundary import flag_of
from shardwise.boundary.options import option, several, switch
from shardwise.commands.base.inputs import (
    COARSE_ANSWER,
    OWN_RUNS,
    HardwareWords,
    Own,
    Words,
    check_choice,
    pairs,
    parse_part,
    parse_pins,
    parse_total,
    whole_number,
)
from shardwise.errors import BadRequest, Remark
from shardwise.hardware import Chip, Slice
from shardwise.models import ModelConfig
from shardwise.models.remat import REMAT_POLICIES
from shardwise.planner.checks import check_adapters
from shardwise.planner.price.memory import RESERVED
from shardwise.planner.search.request import COARSE, OBJECTIVES, SEARCHED, TrainRequest
from shardwise.plans import TrainDtypes
from shardwise.plans.adapters import QUANTIZED, parse_targets
from shardwise.plans.context_methods import CONTEXT_METHODS
from shardwise.plans.optimizers import OPTIMIZERS
from shardwise.plans.software import (
    SoftwareRow,
    software_row,
    usual_library,
    usual_software,
    usual_stack,
)
from shardwise.plans.software.trainer import TRAINER
from shardwise.plans.software.usual import usual_choices, usual_dtypes
from shardwise.plans.stacks import STACKS, WANTED, StackName, stack_row
from shardwise.plans.train import Structure
from shardwise.scheduling.pipeline import PIPELINE_KINDS
from shardwise.units import parse_bytes

OFFLOADED = ("optimizer", "none")
"""What --offload takes; activations are offloaded by --remat offload, which searches try, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainChoices(HardwareWords):
    """What a search of training plans may not choose, and what is best. None leaves the choice
    open.

    The stack of `software` prices the plan; a plan for no program is priced by the stack of the
    chip's usual one, or that of `sets` {"stack": NAME}. Dtypes follow `dtype` and the program where
    not given. With `fastest` no memory is kept free where no `margin` is given. `evidence` moves
    and narrows what is expected of plans like its runs (docs/runs.md).
    """

    pins: Words = several(
        "Fix a mesh degree.", flag="--pin", metavar="AXIS=DEGREE", group="Choices of the plan"
    )
    remat: str | None = option(
        "Fix the remat policy.",
        values=REMAT_POLICIES,
        group="Choices of the plan",
        meaning="which activations are kept for the backward pass",
    )
    schedule: str | None = option(
        "Fix the pipeline schedule.", values=PIPELINE_KINDS, group="Choices of the plan"
    )
    zero: int | str | None = option(
        "Fix the ZeRO stage over replicas.",
        kind="whole",
        metavar="0|1|2",
        group="Choices of the plan",
    )
    context_method: str | None = option(
        "Fix how attention works on a sequence sharded over `context`.",
        values=CONTEXT_METHODS,
        group="Choices of the plan",
    )
    expert_imbalance: float | str | None = option(
        "Load of the device with the busiest experts over the mean load, such as 1.2. Default: 1, "
        "as in benchmarks.",
        metavar="RATIO",
        group="Choices of the plan",
        meaning="load of the device with the busiest experts over the mean",
    )
    software: str | None = option(
        "Program that runs the plan, or any to search every plan that can be priced. Default: "
        "what users of the chip run (TPU: maxtext, GPU: megatron or torchtitan); jax is our own "
        "trainer (shardwise train).",
        values=WANTED,
        flag="--for",
        group="Choices of the plan",
        meaning="the program that shall run the plan",
    )
    optimizer: str = option(
        values=OPTIMIZERS,
        default="adam",
        show_default=True,
        group="Choices of the plan",
        meaning="the optimizer",
    )
    offload: str | None = option(
        "Keep the optimizer's state in host memory, or never. Default: only if nothing else fits "
        "the slice.",
        values=OFFLOADED,
        group="Choices of the plan",
        meaning="what lies in the memory of the hosts",
    )
    lora: int | str | None = option(
        "Train LoRA adapters of this rank; the weights are frozen.",
        kind="whole",
        metavar="RANK",
        group="Choices of the plan",
        meaning="the rank of LoRA adapters, beside which the weights are frozen",
    )
    targets: str | Sequence[str] | None = option(
        "Matrices with adapters, separated by commas (q_proj,v_proj). Default: all of the layers.",
        metavar="NAMES",
        group="Choices of the plan",
        meaning="the matrices that have adapters",
    )
    quantize: str | None = option(
        "How the frozen weights are stored (QLoRA): nf4 with double quantisation, int8, or a "
        "4-bit checkpoint of gptq or awq.",
        values=QUANTIZED[1:],
        group="Choices of the plan",
        meaning="how the frozen matrices beside adapters are stored",
    )
    max_hbm: float | str | None = option(
        "Bytes per chip to stay under, such as 80GiB.", group="Targets"
    )
    margin: float | str | None = option(
        "Share of usable memory to leave free, if a plan can, such as 10%. Default: enough for 19 "
        "of 20 predictions of this kind.",
        metavar="SHARE",
        group="Targets",
        meaning="the share of memory that a plan leaves free where one does",
    )
    fastest: bool = switch(
        "Take the fastest plan that fits. Without it: the simplest of the plans that "
        "predictions cannot tell apart, with memory left free (see --margin).",
        group="Targets",
        meaning="the fastest plan that fits, not the simplest of those as good",
    )
    objective: str = option(
        "time: the fastest step on the slice. cost: the fewest dollars per token, counting only "
        "chips in use; with --days the cheapest slice that meets the deadline, counting all its "
        "chips. chips: the smallest part of the slice on which a plan fits, and the fastest "
        "plan there.",
        values=OBJECTIVES,
        default="time",
        show_default=True,
        group="Targets",
        meaning="what is made best: time, cost, or chips",
    )
    exhaustive: bool = switch(
        "Price every legal plan, even if a lower bound shows that it cannot be the best: the same "
        "answer, more slowly.",
        group="Choices of the plan",
    )
    coarse: bool = option(COARSE_ANSWER)
    dtype: str = option(
        "Dtype of the matmuls, such as bf16, fp8, mxfp8, nvfp4 or int8.",
        default="bf16",
        show_default=True,
        group="Choices of the plan",
        before="pins",
    )
    param_dtype: str | None = option(
        "Dtype of the stored parameters.", group="Choices of the plan", before="pins"
    )
    grad_dtype: str | None = option(
        "Dtype of the gradients, as reduced and summed.", group="Choices of the plan", before="pins"
    )
    master: str | None = option(
        "Dtype of the optimizer's own copy of the parameters, or none.",
        group="Choices of the plan",
        before="pins",
    )
    moments: str | None = option(
        "Dtype of the optimizer's moments.", group="Choices of the plan", before="pins"
    )
    evidence: Own | None = option(OWN_RUNS)

    @property
    def fixed(self) -> Mapping[str, tuple[str | int]]:
        """The choices of a search that are made already, by field of the plan: one value each."""
        given = {name: getattr(self, keyword) for keyword, name in FIXED.items()}
        return {name: (value,) for name, value in given.items() if value is not None}

    @property
    def chip_sets(self) -> Words:
        """Those that are about the chip: all but the stack that prices a plan for no program."""
        texts = _texts(self.sets)
        return {name: text for name, text in texts.items() if name != "stack"}

    def _tuned(self, structure: Structure) -> Structure:
        """The choices with the adapters that were asked for, and what lies in host memory."""
        if self.offload == "optimizer":
            structure = replace(structure, offload_optimizer=True)
        if not self.lora:
            return structure
        return replace(
            structure,
            lora_rank=int(self.lora),
            lora_targets=parse_targets(self.targets),
            quantize=self.quantize or "none",  # type: ignore[arg-type]
            library=usual_library(structure.stack, int(self.lora)),
        )

    def programs(self, chip: Chip) -> tuple[tuple[SoftwareRow | None, ...], ...]:
        """The programs to plan for, None for no program: the one that was asked for, or those that
        the chip's users train with."""
        if self.software is None and self.lora:
            return ((TRAINER,), (None,)) if chip.vendor in TRAINER.vendors else ((None,),)
        if self.software is None:
            return usual_software(chip)
        return ((None if self.software == ANY else software_row(self.software),),)

    def dtypes(self, row: SoftwareRow | None) -> TrainDtypes:
        """The dtypes of the training state: as asked, else the usual ones of the program."""
        others = {"param": self.param_dtype, "grad": self.grad_dtype}
        others |= {"master": self.master, "moments": self.moments}
        usual = usual_dtypes(row, self.dtype, self.param_dtype)
        return replace(usual, **{k: v for k, v in others.items() if v})

    def request(
        self,
        cfg: ModelConfig,
        model: str | Path,
        piece: Slice,
        sequences: int,
        length: int,
        row: SoftwareRow | None = None,
    ) -> TrainRequest:
        """The search of one slice for one program, or for none in particular."""
        stack = self._stack(row, piece)
        limit, given = piece.chip.require("hbm_usable_bytes"), self.max_hbm
        most = limit if given is None else min(limit, parse_bytes(given, "--max-hbm"))
        request = TrainRequest(
            cfg=cfg,
            model=str(model),
            piece=piece,
            sequences=sequences,
            sequence_length=length,
            pins=parse_pins(self.pins),
            searched={**(COARSE if self.coarse else SEARCHED), **self.fixed},
            structure=self._tuned(self._structure(cfg, row, stack)),
            objective=self.objective,  # type: ignore[arg-type]
            max_hbm_bytes=most / piece.chip.jax_devices_per_chip / self._blocks,
            software=row,
            chips=self.hardware.kept_of(str(piece)),
        )
        check_adapters(request.structure, cfg)
        request = request if self.fastest else request.as_told_apart
        if self.margin is None:
            return request
        return replace(request, margin=parse_part(self.margin, "--margin"))

    def _structure(self, cfg: ModelConfig, row: SoftwareRow | None, stack: StackName) -> Structure:
        """The choices that all plans of the search have. Raises BadRequest for uneven experts of a
        model or a program that has none."""
        structure = Structure(
            dtypes=self.dtypes(row),
            optimizer=self.optimizer,  # type: ignore[arg-type]
            stack=stack,
            constants=self.constants,  # type: ignore[arg-type]
            **usual_choices(row, cfg),
        )
        if self.expert_imbalance is None:
            return structure
        if not cfg.has_experts:
            raise BadRequest(
                f"--expert-imbalance needs routed experts, and {cfg.name} has none; leave it out"
            )
        load = parse_total(self.expert_imbalance, "--expert-imbalance")
        if load < 1:
            raise BadRequest(
                f"--expert-imbalance {load:g} is below 1, where every device has the mean load; "
                "write a number such as 1.2"
            )
        return replace(structure, expert_dispatch="ragged", expert_imbalance=load)

    @property
    def _blocks(self) -> float:
        """What an allocator takes over the tensors in it, where adapters are trained: most of what
        such a step holds comes and goes, so that little of it can be given back. Of five published
        runs that ran out of memory two lay between this and the whole memory by our count."""
        return RESERVED if self.lora else 1.0

    def _stack(self, row: SoftwareRow | None, piece: Slice) -> StackName:
        """What prices the plan. Raises BadRequest for a stack that does not run on the chip."""
        if row is not None:
            return row.stack_on(piece.chip)
        usual = usual_stack(piece.chip, int(self.lora or 0))
        stack = _texts(self.sets).get("stack", usual)
        if piece.chip.vendor == "google" and not stack_row(stack).tpus:
            use = " or ".join(name for name in STACKS if stack_row(name).tpus)
            raise BadRequest(
                f"software stack '{stack}' does not run on {piece.chip.id}, a TPU; use "
                f"--set stack={use}"
            )
        return stack  # type: ignore[return-value]

    def checked(self) -> Self:
        """The same, its numbers read. Raises BadRequest for a word that is not a choice, and for a
        choice without effect."""
        zero = None if self.zero is None else whole_number(self.zero, "--zero", most=2)
        rank = None if self.lora is None else whole_number(self.lora, "--lora", most=2**24)
        for flag, value in (("--targets", self.targets), ("--quantize", self.quantize)):
            if value and not rank:
                raise BadRequest(
                    f"{flag} {value} takes effect only with adapters; give --lora RANK too"
                )
        check_choice(self.offload, "--offload", OFFLOADED)
        check_choice(self.quantize, "--quantize", QUANTIZED[1:])
        if self.coarse and self.exhaustive:
            raise BadRequest("--coarse tries few plans, --exhaustive prices all; give one")
        if self.margin is not None:
            parse_part(self.margin, "--margin")
        for keyword, name in FIXED.items():
            if keyword != "zero":
                check_choice(getattr(self, keyword), flag_of(self, keyword), SEARCHED[name])
        check_choice(self.software, "--for", WANTED)
        check_choice(self.optimizer, "--optimizer", OPTIMIZERS)
        check_choice(self.objective, "--objective", OBJECTIVES)
        self._check_stack()
        _check_effect(parse_pins(self.pins), self.schedule, zero, self.context_method)
        return replace(self, zero=zero, lora=rank)

    def _check_stack(self) -> None:
        """Raise BadRequest for a stack that there is not, or beside a program: that has its own."""
        stack = _texts(self.sets).get("stack")
        check_choice(stack, "--set stack", STACKS)
        if stack is not None and self.software != ANY:
            raise BadRequest(
                f"--set stack={stack} needs --for any: with a program named, its own stack prices "
                "the plan"
            )


def _texts(sets: Words) -> dict[str, str]:
    return pairs(sets, "--set", "PATH=VALUE", "chip.hbm_bandwidth=3e12")


ANY = WANTED[-1]
_COARSELY = (
    "--coarse left out offloaded activations and rarer pipeline schedules; for 9 of 10 runs it "
    "finds the plan of the full search, and the step time is within 1 % (docs/lab/page.md)"
)


def coarsely(coarse: bool) -> list[str]:
    """What a coarse answer says of itself."""
    return [Remark(_COARSELY)] if coarse else []


FIXED = {
    "remat": "remat",
    "zero": "zero",
    "schedule": "pipeline_schedule",
    "context_method": "context_method",
}
"""Keyword -> field of the plan, of choices that a search makes where they are not fixed."""


def _check_effect(
    pins: Mapping[str, int], schedule: str | None, zero: int | None, method: str | None
) -> None:
    """Raise BadRequest for a choice about an axis that is pinned to one."""
    for flag, value, axes in (
        ("--schedule", schedule, ("stage",)),
        ("--context-method", method, ("context",)),
        ("--zero", zero, ("data", "replica")),
    ):
        if value is not None and all(pins.get(axis) == 1 for axis in axes):
            pinned = " and ".join(f"{axis}=1" for axis in axes)
            raise BadRequest(
                f"{flag} {value} cannot take effect with {pinned} pinned; leave one of them out"
            )
