"""A chapter as a sequence for a lecture: predict a number of the book, then see the machine or the
figure that shows why. Each row names a question and a state of a view; nothing else is in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.boundary.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class LectureStep(Record):
    """A question of the book to answer first, and what to look at then: a view in a state, its
    player or the figure of that id, and on what to look."""

    ask: str
    view: str
    state: Mapping[str, str]
    figure: str
    look: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LectureShown(Record):
    """The sequence of a chapter."""

    chapter: str
    title: str
    steps: Sequence[LectureStep]


_PLAYER = ""
_TITLES = {
    "1": "Rooflines", "2": "TPUs", "3": "Sharded matrices", "4": "Transformer math",
    "5": "Training", "6": "Training LLaMA", "7": "Inference", "8": "Serving LLaMA",
    "9": "Profiles", "10": "Programming in JAX", "gpus": "GPUs",
}  # fmt: skip
_ROWS: tuple[tuple[str, str, str, dict[str, str], str, str], ...] = (
    ("1", "head.1.h100_intensity", "roofline", {"on": "h100", "beside": "v5e"}, "roofline",
     "Below the knee bytes decide, above it FLOPs do."),
    ("1", "1.1.3", "roofline", {"on": "v5e", "dtype": "int8"}, "seconds",
     "int8 halves the bytes and doubles the peak."),
    ("1", "1.2", "roofline", {"on": "v5e", "weights": "int8"}, "seconds",
     "Only the weights shrink: the knee moves left."),
    ("2", "head.2.mxu_flops", "systolic", {}, _PLAYER,
     "Once the array is full, every cell multiplies and adds each cycle."),
    ("2", "2.1", "hbm", {}, _PLAYER, "Whichever of load and compute takes longer sets the pace."),
    ("2", "2.4.1.crit", "roofline", {"dtype": "int8", "k": "4096", "n": "16384"}, "padded",
     "Rows below a tile cost as much as the whole tile."),
    ("3", "pop.3.3a.line", "collective", {"network": "line", "shape": "4"}, _PLAYER,
     "Without a wrap the ends wait for blocks from the far end."),
    ("3", "3.10.3", "collective", {"kind": "all_to_all", "network": "one_way", "shape": "4"},
     _PLAYER, "Each block goes to one device alone, so half the bytes travel."),
    ("3", "3.4.crossover", "sharding", {}, "seconds",
     "Gather first, or reduce afterwards: the cheaper one depends on the dims."),
    ("4", "4.1.1", "models", {"model": "llama-3-8b", "beside": "llama-3-70b"}, "params",
     "Most parameters are the MLP's."),
    ("4", "head.4.8D", "models", {"model": "llama-3-70b", "seq": "65536"}, "flops",
     "Attention grows with the context, the matmuls do not."),
    ("4", "head.4.kv_8k", "models", {"model": "llama-3-70b", "kv": "int8"}, "params",
     "What a token keeps is layers x KV heads x head dim x 2."),
    ("5", "head.5.alpha", "training", {}, "fig.5.math_comms",
     "FSDP's line is flat, math grows: they cross at a batch."),
    ("5", "5.3.3.limit", "training", {}, "fig.5.interactive",
     "A tensor split moves the crossing to smaller batches."),
    ("5", "deck.pp_bubble", "pipeline", {"stages": "4", "microbatches": "8"}, _PLAYER,
     "Grey is the bubble: it shrinks with more microbatches."),
    ("6", "6.q4.chips", "models", {"model": "llama-3-70b"}, "params",
     "Weights, moments and checkpoints: what must fit before anything is fast."),
    ("6", "6.q8.xopt", "training", {"chips": "8960", "batch": "4194304"}, "fig.5.math_comms",
     "At 8960 chips a batch of 4M tokens leaves FSDP alone behind."),
    ("6", "6.q6", "pipeline", {"stages": "8", "microbatches": "8"}, _PLAYER,
     "Stages split layers where sequences cannot be split further."),
    ("7", "pop.7.1", "serving", {"input": "8192"}, "fig.8.breakdown",
     "With few sequences the weights are what a step reads."),
    ("7", "pop.7.2", "serving", {"input": "8192"}, "fig.8.pareto",
     "More at once: cheaper tokens, longer steps."),
    ("7", "head.7.prefix", "batching", {}, _PLAYER,
     "Prompts join between decode steps, a chunk at a time."),
    ("8", "8.kv_token", "models", {"model": "llama-3-70b", "kv": "int8"}, "params",
     "The cache is small beside the weights until many sequences run."),
    ("8", "8.step_4x4", "serving", {"chips": "16"}, "fig.8.breakdown",
     "Where the lines cross, another resource decides."),
    ("8", "fig.8.cost_reduction", "serving", {"chips": "16"}, "fig.8.pareto",
     "The first sequences at once are nearly free."),
    ("9", "9.ffw", "programs", {}, "timeline",
     "A profile says when each op runs, and what waits."),
    ("9", "9.qproj", "programs", {}, "roofline", "An op below the line loses what a kernel can."),
    ("10", "10.cm_bytes", "collective", {"shape": "4"}, _PLAYER,
     "Each hop can hide behind the product of the block that has arrived."),
    ("10", "10.1.latest", "sharding", {"expression": "A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]"},
     "mesh-A[I_X, J]", "A device computes with its own block alone."),
    ("gpus", "head.gpu.warps_resident", "hardware", {"chip": "h100", "beside": "v5p"}, "plane",
     "Many small cores or few large ones: the same bytes and FLOPs."),
    ("gpus", "gpu.quiz2.q2", "collective", {"network": "switch", "shape": "8"}, _PLAYER,
     "A switch lets all eight send to all eight at once."),
    ("gpus", "gpu.quiz4.q4", "collective",
     {"kind": "all_reduce", "network": "sharp", "shape": "8"}, _PLAYER,
     "Switches that add send each sum once."),
)  # fmt: skip


def _lecture(chapter: str) -> LectureShown:
    rows = [
        LectureStep(ask=ask, view=view, state=state, figure=figure, look=look)
        for own, ask, view, state, figure, look in _ROWS
        if own == chapter
    ]
    return LectureShown(chapter=chapter, title=_TITLES[chapter], steps=rows)


LECTURES: Mapping[str, LectureShown] = {chapter: _lecture(chapter) for chapter in _TITLES}
"""Every sequence, by chapter."""
