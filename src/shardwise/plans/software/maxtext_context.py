"""What MaxText 0.2.5 runs of sequences that are cut over the mesh axis `context`.

Where no other file is named, the rules are those of `set_derived_and_validate_values` in
src/maxtext/configs/types.py. On GPUs MaxText attends with `cudnn_flash_te`.
"""

import numpy as np

from shardwise.models.specs import Attention, LatentAttention
from shardwise.plans.software.candidates import Candidates
from shardwise.plans.software.limit import about_choices, of_choice
from shardwise.plans.software.shared import left_after
from shardwise.plans.train import MESH_AXES

GATHER, RING, EXCHANGE = "all_gather", "ring", "ulysses"


def _unless(c: Candidates, *methods: str) -> np.ndarray:
    """Where a limit of some methods has nothing to say: they do not cut any sequence."""
    return (c.degree("context") == 1) | (c.structure.context_method not in methods)


def _tpu(c: Candidates) -> bool:
    return c.piece.chip.vendor == "google"


def _latent(c: Candidates) -> bool:
    return any(isinstance(layer.mixer, LatentAttention) for layer in c.cfg.groups)


def _fused_packed(c: Candidates) -> bool:
    """Whether a fused kernel gets documents of one sequence (src/maxtext/utils/train_utils.py)."""
    return bool(c.structure.packed_lengths) and c.structure.attention_kernel == "flash"


def _whole(c: Candidates) -> bool:
    """Whether every token of every layer sees all before it, and nothing else
    (src/maxtext/layers/attention_op.py)."""
    mixers = [layer.mixer for layer in c.cfg.groups if isinstance(layer.mixer, Attention)]
    return all(mixer.kind == "full" and not mixer.sinks for mixer in mixers)


def _in_zigzag(c: Candidates) -> np.ndarray:
    """`context_parallel_load_balance`, which cuts a sequence into twice as many pieces as devices
    and gives each a pair (`reorder_sequence` of src/maxtext/utils/max_utils.py)."""
    context = c.degree("context")
    return (context % 2 == 0) & (c.sequence_length % (2 * context) == 0)


def _kv_heads(c: Candidates) -> np.ndarray:
    """`_validate_kv_head_sharding` of src/maxtext/layers/attentions.py."""
    cut = c.degree("tensor")
    if c.structure.context_method == EXCHANGE:
        cut = cut * c.degree("context")
    heads = {g.mixer.kv_heads for g in c.cfg.groups if isinstance(g.mixer, Attention)}
    return np.all([number % cut == 0 for number in heads], axis=0) if heads else cut > 0


KV_HEADS = about_choices(
    "mesh",
    ("context_method",),
    _kv_heads,
    "tensor, and context under ulysses with it, divides the key-value heads",
    "use degrees that divide them",
)

CONTEXT = (
    about_choices(
        "attention_kernel",
        ("attention_kernel", "context_method"),
        lambda c: (c.structure.attention_kernel == "flash") | _unless(c, RING, EXCHANGE),
        "ring and ulysses run only in its flash kernel",
        "set attention_kernel to flash",
    ),
    of_choice(
        "context_method",
        lambda c: _tpu(c) | _unless(c, EXCHANGE),
        "ulysses runs only on TPUs",
        "set context_method to ring",
    ),
    of_choice(
        "context_method",
        lambda c: (not _latent(c)) | _unless(c, EXCHANGE),
        "ulysses does not run latent attention",
        "set context_method to all_gather",
    ),
    of_choice(
        "context_method",
        lambda c: _whole(c) | _unless(c, RING, EXCHANGE, *(() if _tpu(c) else (GATHER,))),
        "ring, ulysses and all methods on GPUs attend to all earlier tokens, without sinks",
        lambda c: "set context_method to all_gather" if _tpu(c) else "use context=1",
    ),
    about_choices(
        "context_method",
        ("context_method", "packed_lengths"),
        lambda c: (not (_tpu(c) and _latent(c) and c.structure.packed_lengths)) | _unless(c, RING),
        "on TPUs ring does not run packed sequences with latent attention",
        "set context_method to all_gather",
    ),
    about_choices(
        "context_method",
        ("attention_kernel", "context_method", "packed_lengths"),
        lambda c: _tpu(c) | (not _fused_packed(c)) | _unless(c, GATHER),
        "on GPUs packed sequences need ring over context",
        "set context_method to ring",
    ),
    about_choices(
        "mesh",
        ("context_method",),
        lambda c: (
            (not _tpu(c)) | (c.sequence_length % c.degree("context") ** 2 == 0) | _unless(c, RING)
        ),
        "on TPUs with ring, context squared divides the tokens of a sequence",
        "use a smaller degree of context, or set context_method to all_gather",
    ),
    about_choices(
        "mesh",
        ("context_method",),
        lambda c: _in_zigzag(c) | _unless(c, RING, GATHER),
        "context is even and 2 x context divides the tokens of a sequence, except with ulysses",
        "use a degree of context that does",
    ),
    about_choices(
        "mesh",
        ("context_method",),
        lambda c: (
            (left_after(c, *MESH_AXES[: MESH_AXES.index("context")]) == 1) | _unless(c, EXCHANGE)
        ),
        "ulysses stays inside a slice",
        "give the axes outside context the number of slices as a factor",
    ),
    about_choices(
        "mtp_layers",
        ("context_method", "mtp_layers"),
        lambda c: (c.structure.mtp_layers == 0) | (not _tpu(c)) | _unless(c, RING),
        "on TPUs its ring does not predict several tokens",
        "set mtp_layers to 0, or context_method to all_gather",
    ),
)
"""In the order of what they name."""
