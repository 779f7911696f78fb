"""TrainPlan: how one training step is laid out on a slice."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from math import prod
from typing import Any, Literal, Self, get_args

from shardwise.errors import BadRequest, check_known
from shardwise.models import ModelConfig
from shardwise.models.components import COMPONENTS
from shardwise.models.remat import RematKind, RematPolicy, Saved
from shardwise.plans.adapters import Quantized
from shardwise.plans.chip_changes import AS_LISTED, ChipChanges
from shardwise.plans.context_methods import ContextMethod, context_row
from shardwise.plans.laws import (
    BATCH,
    BATCH_AXES,
    EXPERTS,
    HEADS,
    MICROBATCHES,
    SEQUENCE,
    SPREAD_EXPERTS,
    ULYSSES,
)
from shardwise.plans.libraries import Library, LibraryRow, library_row
from shardwise.plans.optimizers import Optimizer
from shardwise.plans.ranges import Ranges, check_range, check_ranges
from shardwise.plans.stacks import (
    GRAPH_SCOPES,
    OVERLAPPED,
    AttentionKernel,
    Dispatcher,
    Gathers,
    GraphScope,
    Overlapped,
    Reduces,
    StackName,
    StackRow,
    Wanted,
    stack_row,
)
from shardwise.scheduling.pipeline import (
    PIPELINE_KINDS,
    PLAIN,
    PipelineKind,
    ScheduleRow,
    schedule_row,
)
from shardwise.units import dtype_bytes

MESH_AXES = ("replica", "stage", "data", "fsdp", "expert", "context", "tensor")
"""Mesh axes by role, outermost first: the first cross slices, the last sit on the nearest links."""

STORAGE_AXES = ("fsdp", "expert", "context")
"""Axes that can store a parameter in pieces and gather it before use (ZeRO-3): each sees tokens of
its own, so each must sum gradients anyway."""

Placing = Literal["fastest", "finish"]
PLACINGS: tuple[Placing, ...] = get_args(Placing)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainDtypes:
    """Storage and compute dtypes; `master` is "none" where the optimizer keeps no own copy."""

    param: str = "bf16"
    compute: str = "bf16"
    grad: str = "bf16"
    master: str = "f32"
    moments: str = "f32"

    def __post_init__(self) -> None:
        for name in (self.param, self.compute, self.grad, self.moments):
            dtype_bytes(name)
        if self.master != "none":
            dtype_bytes(self.master)


RANGES: Ranges = {
    "slices": (1, 1e6),
    "box": (1, 1e6),
    "global_batch_sequences": (1, 1e12),
    "sequence_length": (1, 1e12),
    "microbatches": (1, 1e12),
    "expert_capacity": (1, 1e6),  # the mean load is 1
    "expert_imbalance": (1, 1e6),
    "lora_rank": (0, 2**24),
    "mtp_layers": (0, 1000),
    "logit_chunks": (1, 1e6),
    "packed_lengths": (1, 1e12),
}
"""What each number of a training plan can be."""
MOST_LAYERS = 10_000
"""Of a stage; a config.json may have as many in all (`models/reader.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """The choices of a training step that are no degree, each written here and nowhere again.

    A plan has them, the numbers that are counted of it (`planner/step/shape.py`) have them, and a
    search tries some of them (`planner/search/request.py`) and leaves the others alone.

    `zero` is 0, 1 or 2: what replicas keep in pieces, the optimizer state (1) and gradients (2).
    The `storage_axes` shard parameters, gradients and optimizer state (ZeRO-3; experts already lie
    apart over `expert`): those of `expert` and `context` that are not among them replicate
    parameters like `data`. What they store is gathered `weight_gather`: before every pass, once for
    both passes of a microbatch, or once a step; its gradients are summed and scattered
    `gradient_reduce`: after every microbatch, or once a step, until when they are whole. With
    `sequence_parallel` the activations between matmuls are sharded over `tensor`. With
    `virtual_stages` each pipeline stage is cut into so many chunks.

    `remat_kinds` overrides the policy `remat` by kind of activation. `expert_capacity` is the slots
    of an expert over its mean load (dense dispatch), `expert_imbalance` the load of the busiest
    device over the mean (ragged dispatch). `lora_rank` 0 trains the parameters themselves, else
    adapters beside the matrices of `lora_targets` (none named: all of the layers), whose own
    weights are stored as `quantize` says. `library` is whose layers and loss run op by
    op. `frozen` names components that are not trained. `packed_lengths` are the documents of one
    sequence, () for one document. `attention_kernel` names the library that is called, "flash" what
    the software calls by itself; "scores" writes the T x S scores to memory. `cuda_graph` are the
    parts of the step that graphs start, `grouped_kernel` whether the products of a layer's experts
    are one kernel, `dispatcher` what sends tokens to them, and `wide` components that stay in 16
    bits beside router and head.
    With `logit_chunks` the loss is made of so many pieces of a microbatch one after the other; the
    backward pass makes the logits of each again. `fused_loss`: it is one kernel that reads the
    logits as the head's matmul wrote them, and makes no copy in float32.
    `stack` is the software whose constants price the plan. What it does by default, unless the plan
    says it: whether matmuls of weight gradients add into the sum (`gradient_accumulation`), whose
    transfers run beside compute (`overlap`), and whether elementwise work is fused (`compiled`),
    with it that of the loss.
    """

    zero: int = 1
    storage_axes: tuple[str, ...] = STORAGE_AXES
    weight_gather: Gathers = "per_pass"
    gradient_reduce: Reduces = "per_microbatch"
    sequence_parallel: bool = True
    remat: RematPolicy = "block"
    remat_kinds: Mapping[RematKind, Saved] = field(default_factory=dict, hash=False)
    attention_kernel: AttentionKernel = "flash"
    pipeline_schedule: PipelineKind = PLAIN
    virtual_stages: int = 1
    context_method: ContextMethod = "all_gather"
    expert_dispatch: Literal["dense", "ragged"] = "dense"
    expert_capacity: float = 1.0
    expert_imbalance: float = 1.0
    expert_over_tensor: bool = False
    offload_optimizer: bool = False
    optimizer: Optimizer = "adam"
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = ()
    quantize: Quantized = "none"
    library: Library = "plain"
    frozen: tuple[str, ...] = ()
    mtp_layers: int = 0
    logit_chunks: int = 1
    packed_lengths: tuple[int, ...] = ()
    dtypes: TrainDtypes = field(default_factory=TrainDtypes)
    stack: StackName = "xla"
    gradient_accumulation: Literal["fused", "separate"] | None = None
    overlap: tuple[Overlapped, ...] | None = None
    compiled: bool | None = None
    fused_loss: bool | None = None
    cuda_graph: tuple[GraphScope, ...] = ()
    grouped_kernel: Literal["per_expert", "fused"] = "per_expert"
    dispatcher: Dispatcher | None = None
    wide: tuple[str, ...] = ()
    constants: Literal["vendor", "book"] = "vendor"

    @property
    def choices(self) -> dict[str, Any]:
        """Every choice by name."""
        return {name: getattr(self, name) for name in CHOICES}

    @property
    def schedule(self) -> ScheduleRow:
        """What is known of the pipeline schedule."""
        return schedule_row(self.pipeline_schedule)

    def trains_component(self, component: str) -> bool:
        """Whether a component of the model gets gradients: none does beside adapters."""
        return not self.lora_rank and component not in self.frozen

    @property
    def stack_row(self) -> StackRow:
        """What the stack does beside the algebra."""
        return stack_row(self.stack)

    @property
    def rings_off(self) -> bool:
        """Whether a plan keeps a compiler from rings beside its products: it lists what overlaps,
        and not tensor (MaxText's benchmarks/xla_flags_library.py, DISABLE_COLLECTIVE_MATMUL)."""
        return self.overlap is not None and "tensor" not in self.overlap

    @property
    def hidden(self) -> frozenset[Overlapped]:
        """Whose transfers run beside compute. Tensor's do where its activations lie in pieces
        between blocks, a pipeline's where its schedule has several chunks to go on with, those of
        experts where it pairs passes."""
        hidden = self.stack_row.overlap if self.overlap is None else frozenset(self.overlap)
        absent: set[Overlapped] = set()
        if not self.sequence_parallel:
            absent.add("tensor")
        if self.virtual_stages == 1:
            absent.add("pipeline")
        paired: set[Overlapped] = {"expert"} if self.paired else set()
        return (hidden | paired) - absent

    @property
    def fuses_accumulation(self) -> bool:
        """Whether the matmuls of weight gradients add into the sum themselves."""
        if self.gradient_accumulation is None:
            return self.stack_row.fuses_accumulation
        return self.gradient_accumulation == "fused"

    @property
    def kernel(self) -> AttentionKernel:
        """What attention runs as, by name where the software has a default of its own."""
        plain = self.attention_kernel == "flash"
        return self.stack_row.attention_kernel if plain else self.attention_kernel

    @property
    def fuses_elementwise(self) -> bool:
        """Whether a compiler fuses elementwise work."""
        return self.stack_row.compiled if self.compiled is None else self.compiled

    @property
    def library_row(self) -> LibraryRow:
        """What its library makes beside what the stack does."""
        row = library_row(self.library)
        return row.compiled if self.fuses_elementwise else row

    @property
    def fuses_loss(self) -> bool:
        """Whether the loss is one kernel on the logits of the head's matmul."""
        return self.fuses_elementwise if self.fused_loss is None else self.fused_loss

    @property
    def ends(self) -> str:
        """Where embedding and head lie: "apart" on two devices, on one because the stages are
        "folded", or on two that both hold both ("doubled")."""
        return _ENDS[self.schedule.arrangement]

    @property
    def paired(self) -> bool:
        """Whether a forward pass runs together with the backward pass of another microbatch, so
        that either's compute hides the other's exchange of tokens. On one stage, with one chunk,
        none does."""
        return self.schedule.pairs_passes and self.virtual_stages > 1

    @property
    def ragged(self) -> bool:
        """Whether experts take as many tokens as choose them, rather than slots."""
        return self.expert_dispatch == "ragged"

    def sent_by(self, vendor: str) -> Dispatcher | None:
        """What sends tokens to experts on the chips of a vendor: what the choices name, else what
        the software does; None for an exchange of its own, once to each device. DeepEP has no
        slots to fill."""
        if self.dispatcher is not None or not self.stack_row.deepep_on:
            return self.dispatcher
        return "deepep" if self.ragged and vendor == self.stack_row.deepep_on else "alltoall"

    def with_pairing(self, paired: bool) -> Self:
        """The structure with a schedule that pairs passes, or with one that does not."""
        if self.paired == paired:
            return self
        kinds = (PLAIN, *PIPELINE_KINDS)
        kind = next(kind for kind in kinds if schedule_row(kind).pairs_passes == paired)
        chunks = schedule_row(kind).chunks[0]
        return replace(self, pipeline_schedule=kind, virtual_stages=chunks)


USUAL = Structure()
"""Every choice as it is where nobody says otherwise."""
CHOICES = tuple(f.name for f in fields(Structure))
"""Names of all choices."""
_ENDS = {"line": "apart", "fold": "folded", "mirror": "doubled"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan(Structure):
    """The choices of one training step: its numbers here, all others in `Structure`.

    `mesh` maps each axis to its degree, outermost first: `data` and `replica` replicate the
    parameters, `storage_axes` shard them. The mesh covers `slices` slices (of GPUs: switched
    domains), and in each of them a `box`: so many chips along each physical axis. `placement`
    "fastest" gives each mesh axis the fastest links that are left; the other fills a physical axis
    before it begins the next, so that the rings of the others stay whole. `layers_per_stage` has
    one entry per stage. `software` is the program that the plan is for ("any": none in
    particular). `chips` has what differs from the catalogue's chip.
    """

    model: str
    model_hash: str
    slice: str
    mesh: Mapping[str, int]
    box: tuple[int, ...]
    global_batch_sequences: int
    sequence_length: int
    microbatches: int
    layers_per_stage: tuple[int, ...]
    slices: int = 1
    placement: Placing = "fastest"
    software: Wanted = "any"
    chips: ChipChanges = AS_LISTED

    def __post_init__(self) -> None:
        check_mesh(self.mesh)
        if self.zero not in (0, 1, 2):
            raise BadRequest(
                f"zero is {self.zero}; it takes 0, 1 or 2 (ZeRO-3 is the mesh axis 'fsdp')"
            )
        check_ranges(self, RANGES)
        if len(self.layers_per_stage) != self.degree("stage"):
            raise BadRequest(
                f"layers_per_stage has {len(self.layers_per_stage)} entries for "
                f"{self.degree('stage')} stages; give one number of layers per stage"
            )
        for layers in self.layers_per_stage:
            check_range("an entry of layers_per_stage", layers, -MOST_LAYERS, MOST_LAYERS)
        if any(layers < 1 for layers in self.layers_per_stage):
            raise BadRequest(
                f"layers_per_stage {list(self.layers_per_stage)} leaves a stage without layers; "
                "give every stage at least one or use fewer stages"
            )
        self._check_choices()
        counts = {**self.mesh, MICROBATCHES: self.microbatches}
        for law, size in (
            (BATCH, self.global_batch_sequences),
            (SEQUENCE, self.sequence_length),
        ):
            if problem := law.problem(size, counts):
                raise BadRequest(problem)

    def _check_choices(self) -> None:
        """Raise BadRequest for a choice that contradicts another or cannot take effect."""
        chunks = schedule_row(self.pipeline_schedule).chunks
        if self.degree("stage") == 1:
            chunks = (1,)
        if self.virtual_stages not in chunks:
            raise BadRequest(
                f"virtual_stages is {self.virtual_stages}; the schedule '{self.pipeline_schedule}' "
                f"over {self.degree('stage')} stage(s) takes {', '.join(map(str, chunks))}"
            )
        if min(self.layers_per_stage) < self.virtual_stages:
            raise BadRequest(
                f"virtual_stages is {self.virtual_stages}, but a stage has only "
                f"{min(self.layers_per_stage)} layers; use at most that many"
            )
        for axis in self.storage_axes:
            check_known("storage axis", axis, STORAGE_AXES)
        if "fsdp" not in self.storage_axes:
            raise BadRequest(
                "storage_axes lacks 'fsdp'; name it, and replicate over mesh axis 'data'"
            )
        for name in self.overlap or ():
            check_known("overlap", name, OVERLAPPED)
        for name in self.cuda_graph:
            check_known("scope of cuda_graph", name, GRAPH_SCOPES)
        for name in self.wide:
            check_known("wide component", name, COMPONENTS)
        if self.zero == 2 and self.gradient_reduce == "per_step":
            raise BadRequest(
                "zero is 2, which sums gradients after every microbatch, but gradient_reduce is "
                "per_step; set zero to 1 or gradient_reduce to per_microbatch"
            )
        if self.packed_lengths and sum(self.packed_lengths) != self.sequence_length:
            raise BadRequest(
                f"packed_lengths add up to {sum(self.packed_lengths)} tokens; "
                f"sequence_length is {self.sequence_length}, so make them equal"
            )

    def degree(self, axis: str) -> int:
        """Degree of a mesh axis; 1 where the mesh does not name it."""
        return self.mesh.get(axis, 1)

    @property
    def degrees(self) -> dict[str, int]:
        """Degree of every mesh axis, those of 1 too, outermost first: what `place` lays down."""
        return {axis: self.degree(axis) for axis in MESH_AXES}

    @property
    def devices(self) -> int:
        """Devices of the mesh."""
        return prod(self.mesh.values())

    @property
    def batch_shards(self) -> int:
        """Into how many parts the sequences of the batch are cut."""
        return prod(self.degree(axis) for axis in BATCH_AXES)

    @property
    def tokens(self) -> int:
        """Tokens of one step: B*T."""
        return self.global_batch_sequences * self.sequence_length


def broken_laws(plan: TrainPlan, cfg: ModelConfig) -> Iterator[str]:
    """Why a plan's mesh does not suit its model, a sentence for each law that it breaks."""
    laws = [HEADS, EXPERTS]
    if context_row(plan.context_method).cuts_heads and plan.degree("context") > 1:
        laws.append(ULYSSES)
    if plan.expert_over_tensor:
        laws.append(SPREAD_EXPERTS)
    for law in laws:
        problem = law.problem(cfg, plan.mesh)
        if problem:
            yield problem


def check_layers(plan: TrainPlan, cfg: ModelConfig) -> None:
    """Raise BadRequest where the stages do not hold the model's layers."""
    if sum(plan.layers_per_stage) != cfg.layers:
        raise BadRequest(
            f"layers_per_stage {list(plan.layers_per_stage)} adds up to "
            f"{sum(plan.layers_per_stage)} layers; {cfg.name} has {cfg.layers}"
        )


def mesh_text(mesh: Mapping[str, int]) -> str:
    """A mesh in one line.

    >>> mesh_text({"fsdp": 1024, "tensor": 4})
    'fsdp=1024 x tensor=4'
    """
    return " x ".join(f"{axis}={degree}" for axis, degree in mesh.items()) or "one device"


MOST_DEGREE = 2**27
"""Of a mesh axis: more devices than any slice has."""


def check_mesh(mesh: Mapping[str, int]) -> None:
    """Raise BadRequest for an axis that no role has, or a degree below one."""
    for axis, degree in mesh.items():
        check_known("mesh axis", axis, MESH_AXES, "axes are named by their role")
        if degree < 1:
            raise BadRequest(f"mesh axis '{axis}' has degree {degree}; a degree is at least 1")
        check_range(f"the degree of mesh axis '{axis}'", degree, 1, MOST_DEGREE)
    order = [axis for axis in MESH_AXES if axis in mesh]
    if list(mesh) != order:
        raise BadRequest(
            f"mesh axes stand in the order {', '.join(mesh)}; write them outermost first: "
            f"{', '.join(order)}"
        )


def spread(layers: int, stages: int) -> tuple[int, ...]:
    """Layers per stage as even as they go; the first and the last, which also hold the embedding
    and the logits, get fewer where some must (as Llama-3-405B did: 126 over 16 stages).

    >>> spread(126, 16)[0], spread(126, 16)[1], spread(126, 16)[-1]
    (7, 8, 7)
    """
    whole, more = divmod(layers, stages)
    order = [*range(1, stages - 1), 0, stages - 1] if stages > 1 else [0]
    extra = set(order[:more])
    return tuple(whole + (stage in extra) for stage in range(stages))
