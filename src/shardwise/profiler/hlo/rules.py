"""What every HLO operation is: one table, so that none is dropped; a name that it lacks is unknown.

Names are those of XLA's `hlo_opcode.h` (openxla/xla, the version in jaxlib 0.10).
"""

from collections.abc import Mapping
from typing import Literal

Rule = Literal[
    "free",
    "nested",
    "matmul",
    "elementwise",
    "reduction",
    "movement",
    "gather",
    "sort",
    "algebra",
    "collective",
    "transfer",
    "start",
    "done",
    "custom",
    "unknown",
]


OPCODES: Mapping[Rule, str] = {
    # Names and views: no work is done.
    "free": """parameter constant tuple get-tuple-element bitcast after-all add-dependency domain
        opt-barrier partition-id replica-id get-dimension-size set-dimension-size""",
    # What runs other computations.
    "nested": "while conditional call fusion",
    "matmul": "dot convolution ragged-dot",
    # One operation per element of the output.
    "elementwise": """abs acos acosh add and asin asinh atan2 atanh cbrt ceil clamp compare complex
        convert cosine cosh count-leading-zeros divide erf exponential exponential-minus-one floor
        imag is-finite log log-plus-one logistic map maximum minimum multiply negate not or popcnt
        power real reduce-precision remainder round-nearest-afz round-nearest-even rsqrt select
        shift-left shift-right-arithmetic shift-right-logical sign sine sinh sqrt
        stochastic-convert subtract tan tanh xor bitcast-convert iota rng rng-bit-generator
        rng-get-and-update-state batch-norm-grad batch-norm-inference batch-norm-training""",
    # One operation per element of the input, or of every window.
    "reduction": "reduce reduce-window select-and-scatter scan",
    # Bytes move and nothing is computed.
    "movement": """copy transpose reshape broadcast concatenate pad reverse slice dynamic-slice
        dynamic-update-slice dynamic-reshape""",
    "gather": "gather scatter",
    "sort": "sort topk",
    "algebra": "cholesky triangular-solve fft",
    "collective": """all-gather all-reduce reduce-scatter all-to-all ragged-all-to-all
        collective-permute all-gather-start all-reduce-start reduce-scatter-start all-to-all-start
        ragged-all-to-all-start collective-permute-start""",
    # To another slice, to the host or from it.
    "transfer": "send recv infeed outfeed",
    # Asynchronous pairs; a start that is a collective is above.
    "start": "copy-start async-start",
    "done": """copy-done async-done async-update all-gather-done all-reduce-done
        reduce-scatter-done all-to-all-done ragged-all-to-all-done collective-permute-done
        send-done recv-done""",
    "custom": "custom-call",
}
"""The opcodes of each rule. The collective-broadcast is missing on purpose, and so is unknown: what
it costs depends on the network's own algorithm."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_RULES: Mapping[str, Rule] = {
    opcode: rule for rule, opcodes in OPCODES.items() for opcode in _words(opcodes)
}

FREE_CALLS = _words(
    """AllocateBuffer ConcatBitcast AssumeGatherIndicesInBound Sharding SPMDFullToShardShape
    SPMDShardToFullShape AsyncCollectiveStart AsyncCollectiveDone LayoutConstraint SliceId
    PrepareAsyncCallStart PrepareAsyncCallDone GatherScatterIndicesBitpacked"""
)
"""Targets of custom calls that name or reserve memory, or mark a place, and do no work."""

PRODUCT_CALLS = _words(
    """__cublas$gemm __cublas$lt$matmul __cublas$lt$matmul$f8 __cudnn$convForward
    __cudnn$convBiasActivationForward"""
)
"""Targets that are a dot or a convolution of a GPU's libraries; their second result is scratch."""

CALLS: dict[str, Rule] = {
    **dict.fromkeys(("TopK", "__gpu$TopK", "PartialReduce"), "sort"),
    **dict.fromkeys(("X64Combine", "X64SplitLow", "X64SplitHigh"), "movement"),
}
"""Targets that stand for an operation of the table: what they cost is what they move."""


def rule(opcode: str) -> Rule:
    """The rule of an opcode; "unknown" where there is none."""
    return _RULES.get(opcode, "unknown")
