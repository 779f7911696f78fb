"""Stacks of training software as rows: what each does beside the algebra of the plan.

Counting reads these facts; what a stack reaches of a chip's rates is in `roofline/stacks.py`, by
the same names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from shardwise.errors import entry_of
from shardwise.plans.context_methods import ContextMethod

PublishedStack = Literal["xla", "megatron", "fsdp", "nanotron"]
"""Stacks that published runs are of, and their constants fitted on."""
StackName = Literal[PublishedStack, "jax", "jax_gpu"]
STACKS: tuple[StackName, ...] = get_args(StackName)

Runner = Literal["maxtext", "megatron", "torchtitan", "jax"]
"""Programs that train a plan (`software/`)."""
Wanted = Literal["maxtext", "megatron", "torchtitan", "jax", "any"]
"""What a plan may be for; "any": every choice that can be priced, whether something runs it or
not."""
WANTED: tuple[Wanted, ...] = get_args(Wanted)

Overlapped = Literal["data", "tensor", "context", "expert", "pipeline"]
"""Whose transfers may run beside compute: of parameters and gradients (data), or of activations."""
OVERLAPPED: tuple[Overlapped, ...] = get_args(Overlapped)
AttentionKernel = Literal["flash", "scores", "sdpa", "fa2", "fa3", "cudnn"]
"""What attention runs as: "flash" is the kernel that the software calls by itself."""
GraphScope = Literal["full", "attn", "mlp", "moe_router", "moe_preprocess", "mamba"]
"""Parts of a step that CUDA graphs capture, as Megatron-LM names them (`--cuda-graph-scope`)."""
GRAPH_SCOPES: tuple[GraphScope, ...] = get_args(GraphScope)
Dispatcher = Literal["alltoall", "deepep", "hybridep"]
"""What sends tokens to experts, as Megatron-LM names it."""
Gathers = Literal["per_pass", "per_microbatch", "per_step"]
GATHERS: tuple[Gathers, ...] = get_args(Gathers)
Reduces = Literal["per_microbatch", "per_step"]
REDUCES: tuple[Reduces, ...] = get_args(Reduces)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRow:
    """One stack of software.

    `eager`: ops run one by one, as PyTorch does, so that every cast makes a copy; a compiler cuts
    arrays evenly instead. `tpus`: it runs on TPUs. `recompute_whole`: a recomputed block is run to
    its end, although nobody needs its result. `sums_apart`: a microbatch's gradients stand beside
    the sum of the earlier ones until all are there. `keeps_gathered`: inputs that tensor gathers
    are kept whole for the weight gradients, rather than in pieces and gathered again.
    `fuses_mlp`: an MLP's activation, gate and experts' weights are one kernel that keeps its inputs
    alone. `keeps_quantised`: what quantised matmuls read is kept as they read it. `wide_softmax`:
    where attention writes its scores, op by op, their softmax is in f32. `loss_in_place`:
    the loss turns the f32 logits into their gradient where they lie. `loss_copies`: f32 arrays of
    the size of the logits that the loss makes besides where the vocabulary is cut over tensor.
    `buckets`: gradients of several layers are summed over their copies at once.
    `stores_widely`: what fsdp stores in pieces is cut over expert and context too.
    `context_method`: how its attention meets a sequence that is cut. `overlap`: whose transfers it
    runs beside compute. `compiled`: a compiler fuses its elementwise work. `splits_biases`: biases
    of experts are added one by one. `attention_kernel`: what attention runs as, "flash" where that
    is the best kernel of the chip. `piped_gather` and `piped_reduce`: how often fsdp gathers
    weights and sums gradients under a pipeline.
    `fills_stages`: pipeline stages get layers one after the other until each exceeds its share.
    `whole_heads`: weights of attention are laid out by head, so that each fills tiles by itself.
    `tiles_cut_rows`: in a ring of rows that are not dealt attention is a loop over tiles of scores,
    not the kernel of the chip; of dealt rows the kernel meets a block at a time, and what merges
    its answers runs beside it, as what puts gathered keys in order does. `stacks_kept`: what layers
    keep for the backward pass goes into one array of all layers and out of it again. `own_flags`:
    its steps are compiled with the trainer's flags of `plans/software/xla_flags.py`. `deepep_on`:
    the vendor of chips on which it sends tokens to experts by DeepEP where a plan names no
    dispatcher, and elsewhere by an all-to-all; where "" an exchange of its own sends a token once
    to each device.
    """

    name: StackName
    eager: bool = True
    tpus: bool = False
    recompute_whole: bool = False
    sums_apart: bool = True
    keeps_gathered: bool = False
    fuses_mlp: bool = False
    keeps_quantised: bool = False
    wide_softmax: bool = False
    loss_in_place: bool = False
    loss_copies: int = 0
    buckets: bool = False
    stores_widely: bool = True
    context_method: ContextMethod = "all_gather"
    overlap: frozenset[Overlapped] = frozenset({"data", "context"})
    compiled: bool = False
    splits_biases: bool = False
    piped_gather: Gathers = "per_pass"
    piped_reduce: Reduces = "per_microbatch"
    fills_stages: bool = False
    attention_kernel: AttentionKernel = "flash"
    whole_heads: bool = False
    tiles_cut_rows: bool = False
    stacks_kept: bool = False
    own_flags: bool = False
    deepep_on: str = ""

    @property
    def fuses_accumulation(self) -> bool:
        """Whether the matmuls of weight gradients add into the sum themselves."""
        return not self.sums_apart


STACK_ROWS = (
    # XLA drops what nobody reads, and cuts the gathers and scatters of tensor into rings of
    # permutes beside the products (collective matmuls).
    StackRow(
        name="xla",
        eager=False,
        tpus=True,
        compiled=True,
        overlap=frozenset({"data", "tensor", "context"}),
    ),
    # Its CheckpointFunction runs blocks whole; its matmuls add to the sum of gradients themselves
    # (gradient accumulation fusion). Under interleaving it sends and receives beside the passes
    # (overlap_p2p_comm), and with sequence parallelism it cuts gathers and scatters of tensor into
    # pieces beside the products (tp_comm_overlap, on in NVIDIA's recipes). Its fused kernels and
    # Transformer Engine: `planner/step/strategies/remat.py`. Its cross entropy writes the softmax
    # over the f32 logits and returns it as their gradient (core/tensor_parallel/cross_entropy.py).
    # Its flex dispatcher wants DeepEP, which is of CUDA (core/transformer/moe/fused_a2a.py).
    StackRow(
        name="megatron",
        deepep_on="nvidia",
        recompute_whole=True,
        sums_apart=False,
        fuses_mlp=True,
        keeps_quantised=True,
        loss_in_place=True,
        buckets=True,
        stores_widely=False,
        splits_biases=True,
        context_method="ring",
        overlap=frozenset({"data", "tensor", "context", "pipeline"}),
    ),
    # PyTorch's non-reentrant checkpoint stops early. Its pipeline stages gather weights and reduce
    # gradients once a step (torch/distributed/pipelining/stage.py). Its sharded loss sums an
    # exponential and an update in f32 (torch/distributed/tensor/parallel/loss.py). Autocast runs a
    # softmax in f32 (torch.amp, "CUDA Ops that can autocast to float32"), and so do LitGPT's
    # `F.softmax(scores, dim=-1, dtype=torch.float)` and transformers' `eager_attention_forward`.
    StackRow(
        name="fsdp",
        attention_kernel="sdpa",
        wide_softmax=True,
        loss_copies=1,
        piped_gather="per_step",
        piped_reduce="per_step",
    ),
    # Checkpoints as Megatron-LM; tp_recompute_allgather is off. Stages are built in the order of
    # the blocks (src/nanotron/models/base.py, build_model).
    StackRow(
        name="nanotron",
        attention_kernel="fa2",
        recompute_whole=True,
        keeps_gathered=True,
        fills_stages=True,
    ),
    # Our own trainer (`runtime/`), as XLA compiles it: weights [D, N, H], attention over `context`
    # by `runtime/attention/flash.py`, transfers over tensor that wait (docs/lab/fit_jax.md).
    StackRow(
        name="jax",
        eager=False,
        tpus=True,
        compiled=True,
        overlap=frozenset({"data", "context"}),
        whole_heads=True,
        tiles_cut_rows=True,
        stacks_kept=True,
        own_flags=True,
    ),
    # The same trainer as XLA compiles it for GPUs: cuDNN's attention, products by cuBLAS and Triton
    # (docs/lab/fit_jax.md).
    StackRow(
        name="jax_gpu",
        eager=False,
        compiled=True,
        overlap=frozenset({"data", "tensor", "context"}),
        stacks_kept=True,
    ),
)
_BY_NAME: Mapping[str, StackRow] = {row.name: row for row in STACK_ROWS}


def stack_row(name: str) -> StackRow:
    """The row of a stack; BadRequest for a name that there is not.

    >>> stack_row("xla").eager, stack_row("fsdp").eager
    (False, True)
    """
    return entry_of("software stack", name, _BY_NAME)
