"""Count a recurrent mixer between its projections, on one device."""

from shardwise.models.activations import SCAN_CHUNK, recurrent_state
from shardwise.models.components import SCAN
from shardwise.models.flops import chunked_scan_flops_per_token, conv_shape, scan_flops_per_token
from shardwise.models.specs import (
    DeltaNet,
    Layer,
    Recurrence,
    RecurrentMixer,
    SelectiveScan,
    ShortConv,
)
from shardwise.planner.step.shape import LayerShape
from shardwise.units import dtype_bytes
from shardwise.work import Op, make_op


def recurrence(layer: Layer, shape: LayerShape) -> list[Op]:
    """Three kernels: the convolution, which reads and writes its channels; the recurrence, which
    reads them, writes its output and keeps the f32 state of every chunk; and the gated norm of the
    output, two reads and a write."""
    mixer, tokens = layer.mixer, shape.tokens / shape.degree("tensor")
    assert isinstance(mixer, RecurrentMixer)
    size = tokens * dtype_bytes(shape.activations)
    channels, _ = conv_shape(mixer)
    width, chunk = _width(mixer), SCAN_CHUNK.get(mixer.kind)
    states = 2 * 4.0 * tokens * recurrent_state(mixer) / chunk if chunk else 0.0
    flops = {shape.activations: chunked_scan_flops_per_token(layer) * tokens}
    moved = (max(channels, 3 * width) + width) * size + states
    convolution = make_op("scan.conv", SCAN, "elementwise", hbm_bytes=2 * channels * size)
    return [
        *([convolution] if channels else []),
        make_op("scan", SCAN, "scan", flops=flops, hbm_bytes=moved),
        make_op("scan.gate", SCAN, "elementwise", hbm_bytes=3 * width * size),
    ]


def own_convolutions(layer: Layer, shape: LayerShape) -> list[Op]:
    """Depthwise convolutions of a layer of attention: each reads and writes its channels."""
    filters = [extra for extra in layer.extras if extra.role == "conv"]
    if not filters:
        return []
    channels = sum(extra.size // dict(extra.dims)["W"] for extra in filters)
    tokens = shape.tokens / shape.degree("tensor")
    flops = {shape.activations: scan_flops_per_token(layer) * tokens}
    moved = 2 * channels * tokens * dtype_bytes(shape.activations)
    return [make_op("attention.conv", SCAN, "elementwise", flops=flops, hbm_bytes=moved)]


def _width(mixer: RecurrentMixer) -> int:
    """Elements of a mixer's output per token."""
    match mixer:
        case SelectiveScan() | ShortConv() | Recurrence():
            return mixer.width
        case DeltaNet():
            return mixer.heads * mixer.value_head_dim
        case _:
            return mixer.heads * mixer.head_dim
