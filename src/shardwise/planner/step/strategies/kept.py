"""What software keeps of the tensors that a layer's gradients need.

An autograd tape keeps all of them. A compiler keeps what the backward pass reads and cannot fuse
into what reads it. Megatron-LM's fused kernels keep their inputs alone: that of an MLP's activation
with its gate (`bias_swiglu_fusion`), which weighs the experts' inputs to their last matmul too, so
that nobody needs what the experts yield (`weighted_bias_swiglu_impl`). Transformer Engine keeps
what its matmuls read as they quantised it; the core of attention keeps its own output beside that.
"""

from dataclasses import replace

from shardwise.models import ModelConfig
from shardwise.models.activations import Activation, saved_activations, saved_scores
from shardwise.models.specs import Layer
from shardwise.planner.step.shape import TrainShape

CORE = "attention output"


def kept_activations(cfg: ModelConfig, layer: Layer, shape: TrainShape) -> tuple[Activation, ...]:
    """The activations of one layer that some policy keeps."""
    saved = tuple(a for a in saved_activations(cfg, layer) if not _remade(a, shape))
    if shape.quantises_kept:
        saved += tuple(replace(a, name=f"{CORE}, quantised", fed=True) for a in saved if _core(a))
    if shape.attention_kernel == "scores":
        saved += saved_scores(layer, float(shape.sequence_length))
    return saved


def _core(activation: Activation) -> bool:
    return activation.name == CORE


def _remade(activation: Activation, shape: TrainShape) -> bool:
    if not shape.eager:
        return activation.remade
    gate = activation.remade and activation.kind == "activation"
    weighed = activation.name.startswith("experts") and activation.kind == "mlp_out"
    return shape.stack_row.fuses_mlp and (gate or weighed)
