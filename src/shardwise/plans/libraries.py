"""Whose layers, loss and optimizer a PyTorch program runs op by op, as rows: what they make and
keep beside what the plan's stack does. Under a compiler layers and optimizers all do the same."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

Library = Literal[
    "plain",
    "transformers",
    "lit_gpt",
    "litgpt",
    "prime_rl",
    "scaling",
    "automodel",
    "automodel_bf16",
    "mlperf_nemo",
    "liger",
    "megatron_zero3",
]
LIBRARIES: tuple[Library, ...] = get_args(Library)


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryRow:
    """`f32_norms`: an RMSNorm works on an f32 copy of its input, which stays for the backward pass.
    `output_logits`: the f32 logits of the model's output live through the backward pass of the
    loss, beside what the cross entropy makes. `listed_moments`: Adam makes the square roots of all
    second moments at once (torch/optim/adamw.py, _multi_tensor_adamw). `whole_qkv`: values are a
    view of one product of queries, keys and values, which keeps all of it. `keeps_inputs`:
    quantised matrices keep their inputs, although nothing reads them. `repeats_kv`: attention gets,
    and keeps, keys and values once for every head of queries. `gathers_logits`: every device of
    tensor has all of the logits, and computes the whole loss op by op. `narrow_loss`: PyTorch's
    cross entropy reads and writes 16-bit logits as they are. `sums_computed`: gradients that wait
    whole for their reduction are summed in the dtype of computing, each layer's where it is
    made; `sums_wide`: in f32, in which they are reduced, too. `weighs_inside`: experts' activations
    and weights are one kernel that keeps its inputs alone. `narrow_gates`: inputs of an MLP's
    activation are kept in fp8. `pieced_loss`: head and loss are one kernel over pieces, whose
    logits take what the stream takes. `gathers_matrices`: parameters are gathered, and their
    gradients scattered, matrix by matrix. `narrow_softmax`: that of attention is a kernel in 16
    bits."""

    name: Library
    f32_norms: bool = False
    output_logits: bool = False
    listed_moments: bool = False
    whole_qkv: bool = False
    keeps_inputs: bool = False
    repeats_kv: bool = False
    gathers_logits: bool = False
    narrow_loss: bool = False
    sums_computed: bool = False
    sums_wide: bool = False
    weighs_inside: bool = False
    narrow_gates: bool = False
    pieced_loss: bool = False
    gathers_matrices: bool = False
    narrow_softmax: bool = False

    @property
    def compiled(self) -> "LibraryRow":
        """What is left of it where layers are compiled: the loss, which has an option of its own,
        and what attention gets, which is no compiler's kernel."""
        return replace(
            self, f32_norms=False, listed_moments=False, whole_qkv=False, keeps_inputs=False
        )


_ROWS = (
    LibraryRow(name="plain"),
    # Hugging Face's (PEFT, TRL, axolotl, ms-swift): LlamaRMSNorm and its like, ForCausalLMLoss, and
    # `adamw_torch`. bitsandbytes keeps no inputs since 0.43 (MatMul4Bit of autograd/_functions.py).
    # Its Trainer accumulates in `no_sync`; FSDP then sums whole gradients in its reduce_dtype
    # (pytorch/pytorch#125191), which accelerate sets to that of mixed precision
    # (FullyShardedDataParallelPlugin.set_mixed_precision).
    LibraryRow(
        name="transformers",
        f32_norms=True,
        output_logits=True,
        listed_moments=True,
        sums_computed=True,
    ),
    # LitGPT of 2023 (lit_gpt/model.py, lora.py) with bitsandbytes 0.41.
    LibraryRow(name="lit_gpt", listed_moments=True, whole_qkv=True, keeps_inputs=True),
    # LitGPT since 2024 (litgpt/model.py): RMSNorm, and the note above its repeated keys and values.
    # Its model is in bf16 whole ("bf16-true"), and no autocast widens the loss
    # (litgpt/pretrain.py; lightning-thunder's thunder/benchmarks/benchmark_litgpt.py).
    LibraryRow(name="litgpt", f32_norms=True, repeats_kv=True, narrow_loss=True),
    # prime-rl: `forward` casts logits to f32 (trainer/models/layers/lm_head.py), and its output
    # lives through the backward pass (trainer/sft/train.py).
    LibraryRow(name="prime_rl", output_logits=True),
    # Aleph Alpha's scaling: its head gathers what each device of tensor has
    # (core/nn/linear/column_parallel_linear.py), and the loss is PyTorch's in f32
    # (transformer/model/losses/cross_entropy.py).
    LibraryRow(name="scaling", gathers_logits=True),
    # NeMo AutoModel: its MixedPrecisionPolicy reduces in f32 (components/distributed/config.py), in
    # which PyTorch's FSDP2 sums what waits (to_accumulated_grad_if_needed of
    # torch/distributed/fsdp/_fully_shard/_fsdp_param.py), and experts run
    # weighted_bias_swiglu_impl, quick_geglu_deepep and their like (components/moe/experts.py). Its
    # loss is PyTorch's of an f32 copy, gathered over tensor (components/loss/masked_ce.py).
    LibraryRow(name="automodel", gathers_logits=True, sums_wide=True, weighs_inside=True),
    # The same with `fp32_upcast: false`, as most of its examples/llm_benchmark have it.
    LibraryRow(name="automodel_bf16", narrow_loss=True, sums_wide=True, weighs_inside=True),
    # NVIDIA's LoRA in MLPerf: FP8_ACT=1 of its configurations of whole models on a GPU, Megatron's
    # activation_func_fp8_input_store (core/transformer/transformer_config.py).
    LibraryRow(name="mlperf_nemo", narrow_gates=True),
    # Liger's fused linear cross entropy in Hugging Face's models: as many pieces as the vocabulary
    # is wider than the stream (src/liger_kernel/ops/fused_linear_cross_entropy.py).
    LibraryRow(name="liger", listed_moments=True, pieced_loss=True),
    # DeepSpeed's ZeRO-3 in Megatron-LM (arXiv 2104.04473, section 5.2): it gathers what a module
    # needs, up to stage3_max_live_parameters of 1e9, which a matrix of such models exceeds
    # (deepspeed/runtime/zero/config.py); Megatron's softmax is a kernel in 16 bits
    # (megatron/fused_kernels).
    LibraryRow(name="megatron_zero3", gathers_matrices=True, narrow_softmax=True),
)
TRANSFORMERS: Library = "transformers"
"""What trains adapters on GPUs, where nobody says otherwise."""
_BY_NAME: Mapping[str, LibraryRow] = {row.name: row for row in _ROWS}


def library_row(name: Library) -> LibraryRow:
    """The row of a library."""
    return _BY_NAME[name]
