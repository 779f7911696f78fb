"""Vision towers with their projectors: real tensors, counted as a component of their own.

Each function takes the tower's section and the text section (whose width the projector meets).
Shapes were read off the classes of transformers 5.23.0 that are named in the docstrings.
"""

from shardwise.models.config import Tower, TowerTensor
from shardwise.models.reader import Reader


def _linear(name: str, d_in: int, d_out: int, bias: bool, repeats: int = 1) -> list[TowerTensor]:
    tensors = [TowerTensor(name=f"{name}.weight", shape=(d_out, d_in), repeats=repeats)]
    if bias:
        tensors.append(TowerTensor(name=f"{name}.bias", shape=(d_out,), repeats=repeats))
    return tensors


def _norm(name: str, width: int, bias: bool, repeats: int = 1) -> list[TowerTensor]:
    parts = ("weight", "bias") if bias else ("weight",)
    return [TowerTensor(name=f"{name}.{p}", shape=(width,), repeats=repeats) for p in parts]


def _block(
    name: str, d: int, f: int, layers: int, bias: bool, attn_bias: bool
) -> list[TowerTensor]:
    """Encoder layer with two LayerNorms, four d x d projections and a plain MLP."""
    tensors = _norm(f"{name}.norm1", d, True, layers) + _norm(f"{name}.norm2", d, True, layers)
    for part in "qkvo":
        tensors += _linear(f"{name}.{part}", d, d, attn_bias, layers)
    tensors += _linear(f"{name}.fc1", d, f, bias, layers)
    return tensors + _linear(f"{name}.fc2", f, d, bias, layers)


def siglip(r: Reader, text: Reader) -> Tower:
    """SigLIP encoder and Gemma 3 projector (SiglipVisionModel, Gemma3MultiModalProjector)."""
    d, patch = r.size("hidden_size"), r.size("patch_size")
    side = r.size("image_size") // patch
    f = r.size("intermediate_size")
    tensors = [
        TowerTensor(name="patch.weight", shape=(d, r.size("num_channels"), patch, patch)),
        TowerTensor(name="patch.bias", shape=(d,)),
        TowerTensor(name="positions", shape=(side * side, d)),
        *_block("layers", d, f, r.size("num_hidden_layers"), True, True),
        *_norm("post_norm", d, True),
        TowerTensor(name="projector.weight", shape=(d, text.size("hidden_size"))),
        *_norm("projector.norm", d, False),
    ]
    if r.flag("vision_use_head"):
        tensors.append(TowerTensor(name="pool.probe", shape=(1, 1, d)))
        tensors += _linear("pool.qkv", d, 3 * d, True) + _linear("pool.out", d, d, True)
        tensors += _norm("pool.norm", d, True)
        tensors += _linear("pool.fc1", d, f, True) + _linear("pool.fc2", f, d, True)
    return Tower(name="vision", tensors=tuple(tensors))


def gemma4_vision(r: Reader, text: Reader) -> Tower:
    """Gemma 4 encoder: gated MLP, q/k norms, four norms per layer (Gemma4VisionModel)."""
    d, layers = r.size("hidden_size"), r.size("num_hidden_layers")
    heads, kv_heads = r.size("num_attention_heads"), r.size("num_key_value_heads")
    h, f = r.size("head_dim"), r.size("intermediate_size")
    tensors = [
        TowerTensor(name="positions", shape=(2, r.size("position_embedding_size"), d)),
        *_linear("patch", 3 * r.size("patch_size") ** 2, d, False),
        *_linear("layers.q", d, heads * h, False, layers),
        *_linear("layers.k", d, kv_heads * h, False, layers),
        *_linear("layers.v", d, kv_heads * h, False, layers),
        *_linear("layers.o", heads * h, d, False, layers),
        *_norm("layers.q_norm", h, False, layers),
        *_norm("layers.k_norm", h, False, layers),
        *_linear("layers.gate", d, f, False, layers),
        *_linear("layers.up", d, f, False, layers),
        *_linear("layers.down", f, d, False, layers),
        *_norm("layers.norms", d, False, 4 * layers),
        *_linear("projector", d, text.size("hidden_size"), False),
    ]
    return Tower(name="vision", tensors=tuple(tensors))


def llama4_vision(r: Reader, text: Reader) -> Tower:
    """Llama 4 encoder, pixel-shuffle adapter and projector (Llama4VisionModel)."""
    d, patch = r.size("hidden_size"), r.size("patch_size")
    side = r.size("image_size") // patch
    f, out = r.size("intermediate_size"), r.size("projector_output_dim")
    middle = r.size("projector_input_dim")
    tensors = [
        TowerTensor(name="class", shape=(d,)),
        TowerTensor(name="positions", shape=(side * side + 1, d)),
        *_linear("patch", r.size("num_channels") * patch * patch, d, False),
        *_norm("pre_norm", d, True),
        *_norm("post_norm", d, True),
        *_block("layers", d, f, r.size("num_hidden_layers"), True, True),
        *_linear("adapter.fc1", f, middle, False),
        *_linear("adapter.fc2", out, out, False),
        *_linear("projector", r.size("vision_output_dim"), text.size("hidden_size"), False),
    ]
    return Tower(name="vision", tensors=tuple(tensors))


def mllama_vision(r: Reader, text: Reader) -> Tower:
    """Llama 3.2 encoder: local and gated global layers, tile embeddings (MllamaVisionModel)."""
    d, patch, f = r.size("hidden_size"), r.size("patch_size"), r.size("intermediate_size")
    patches = (r.size("image_size") // patch) ** 2 + 1
    tiles, ratios = r.size("max_num_tiles"), r.get("supported_aspect_ratios")
    if not isinstance(ratios, list) or not ratios:
        raise r.error("supported_aspect_ratios", ratios, "it must be a list of pairs")
    rows = len(ratios) + 1
    local, whole = r.size("num_hidden_layers"), r.size("num_global_layers")
    tensors = [
        TowerTensor(name="class", shape=(d,)),
        TowerTensor(name="patch", shape=(d, r.size("num_channels"), patch, patch)),
        TowerTensor(name="positions", shape=(patches, d)),
        TowerTensor(name="tile_positions", shape=(rows, tiles * patches * d)),
        TowerTensor(name="tile_embeddings", shape=(rows, tiles * d), repeats=2),
        TowerTensor(name="position_gates", shape=(1,), repeats=3),
        *_norm("pre_norm", d, True),
        *_norm("post_norm", d, True),
        *_block("local", d, f, local, True, False),
        *_block("global", d, f, whole, True, False),
        TowerTensor(name="global.gates", shape=(1,), repeats=2 * whole),
        *_linear("projector", r.size("vision_output_dim"), text.size("hidden_size"), True),
    ]
    return Tower(name="vision", tensors=tuple(tensors))


def qwen_vision(r: Reader, text: Reader) -> Tower:
    """Qwen3-VL encoder and patch mergers (Qwen3VLVisionModel); one merger per deepstack layer."""
    d, patch = r.size("hidden_size"), r.size("patch_size")
    merged = d * r.size("spatial_merge_size") ** 2
    out = r.size("out_hidden_size")
    deep = r.integers("deepstack_visual_indexes") or []
    pixels = (r.size("in_channels"), r.size("temporal_patch_size"), patch, patch)
    tensors = [
        TowerTensor(name="patch.weight", shape=(d, *pixels)),
        TowerTensor(name="patch.bias", shape=(d,)),
        TowerTensor(name="positions", shape=(r.size("num_position_embeddings"), d)),
        *_block("layers", d, r.size("intermediate_size"), r.size("depth"), True, True),
        *_norm("merger.norm", d, True),
        *_linear("merger.fc1", merged, merged, True),
        *_linear("merger.fc2", merged, out, True),
    ]
    if deep:
        tensors += _norm("deepstack.norm", merged, True, len(deep))
        tensors += _linear("deepstack.fc1", merged, merged, True, len(deep))
        tensors += _linear("deepstack.fc2", merged, out, True, len(deep))
    return Tower(name="vision", tensors=tuple(tensors))
