"""Scaling laws, and the deck's exercises on a processor that does one thing at a time.

Laws are those of Hoffmann et al. 2022 (arXiv 2203.15556, section 3.3 and appendix D.3), to which
the deck points; loads and cycles are the deck's (a load 10 ns, an instruction 1 ns).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.errors import BadRequest, check_known
from shardwise.work import Quantity

LEAST_LOSS = 1.69
"""Loss in nats per token that no model goes below: E of the fit."""
OF_PARAMS, PARAMS_POWER = 406.4, 0.34
"""A and alpha of the fit."""
OF_TOKENS, TOKENS_POWER = 410.7, 0.28
"""B and beta of the fit."""
TOKENS_PER_PARAM = 20.0
"""Tokens per parameter of compute-optimal models, as the paper's table of them rounds it."""


def loss_law(params: Quantity, tokens: Quantity) -> Quantity:
    """Nats per token after training so many parameters on so many tokens: E + A / N^alpha + B /
    D^beta."""
    of_params = OF_PARAMS / np.power(params, PARAMS_POWER)
    return LEAST_LOSS + of_params + OF_TOKENS / np.power(tokens, TOKENS_POWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimalModel:
    """The parameters and tokens that make the most of some FLOPs, and the loss that they reach."""

    params: Quantity
    tokens: Quantity
    loss: Quantity


def compute_optimal(flops: Quantity) -> OptimalModel:
    """Least loss of 6 N D FLOPs by `loss_law`: N = G (C/6)^a, D = (C/6)^b / G, with
    a = beta / (alpha + beta), b = 1 - a, G = (alpha A / (beta B))^(1 / (alpha + beta))."""
    both = PARAMS_POWER + TOKENS_POWER
    scale = (PARAMS_POWER * OF_PARAMS / (TOKENS_POWER * OF_TOKENS)) ** (1 / both)
    spent = np.divide(flops, 6)
    params = scale * np.power(spent, TOKENS_POWER / both)
    tokens = np.power(spent, PARAMS_POWER / both) / scale
    return OptimalModel(params=params, tokens=tokens, loss=loss_law(params, tokens))


def optimal_tokens(params: Quantity) -> Quantity:
    """Tokens by the rule of thumb: 20 per parameter."""
    return TOKENS_PER_PARAM * params


def total_seconds(compute: Quantity, comms: Quantity, overlap: Quantity = 0.0) -> Quantity:
    """The deck's sum: compute + communication - what of both runs at once. Raises BadRequest for
    more overlap than the shorter of them."""
    if np.any(np.greater(overlap, np.minimum(compute, comms))) or np.any(np.less(overlap, 0)):
        raise BadRequest(
            f"overlap is {overlap}; it is at most the shorter of compute and comms, and 0 or more"
        )
    return compute + comms - overlap


# A dot product in instructions --------------------------------------------------------------------

DOT_PRODUCT = """
    li   t0, 0
loop:
    lw   t1, 0(a0)
    lw   t2, 0(a1)
    mul  t1, t1, t2
    add  t0, t0, t1
    addi a0, a0, 4
    addi a1, a1, 4
    addi a2, a2, -1
    bnez a2, loop
    sw   t0, 0(a3)
"""
"""RISC-V (RV32IM): a0 and a1 point to the vectors, a2 is their length, a3 where the sum goes."""
WORD, LEFT, RIGHT, OUT = 4, 0x1000, 0x200000, 0x800


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarRun:
    """A program run instruction by instruction: its answer, how often it went to memory and how
    many other instructions it ran, seconds of both, FLOPs (or integer operations of the product)
    per byte, and its text."""

    value: int
    memory_accesses: int
    instructions: int
    compute_seconds: float
    comms_seconds: float
    intensity: float
    program: str


def scalar_dot(
    left: Sequence[int],
    right: Sequence[int],
    instruction_seconds: float = 1e-9,
    access_seconds: float = 1e-8,
) -> ScalarRun:
    """The deck's exercise: a dot product of whole numbers in RISC-V, run.

    2n loads and a store against n multiplications and n additions: 2 operations per 8 bytes, so it
    waits for memory. Raises BadRequest for vectors of different length.
    """
    a, b = (np.atleast_1d(v).astype(int).tolist() for v in (left, right))
    if len(a) != len(b) or not 0 < len(a) <= 4096:
        raise BadRequest(
            f"left has {len(a)} numbers and right {len(b)}; give as many of each, up to 4,096"
        )
    memory = {LEFT + WORD * i: value for i, value in enumerate(a)}
    memory |= {RIGHT + WORD * i: value for i, value in enumerate(b)}
    registers = {"a0": LEFT, "a1": RIGHT, "a2": len(a), "a3": OUT}
    accesses, others = _run(DOT_PRODUCT, registers, memory)
    return ScalarRun(
        value=memory[OUT],
        memory_accesses=accesses,
        instructions=others,
        compute_seconds=others * instruction_seconds,
        comms_seconds=accesses * access_seconds,
        intensity=2 * len(a) / (WORD * accesses),
        program=DOT_PRODUCT.strip("\n"),
    )


def _run(program: str, registers: dict[str, int], memory: dict[int, int]) -> tuple[int, int]:
    """Run a program to its end; how many loads and stores, and how many other instructions."""
    lines = [line.strip() for line in program.strip().splitlines()]
    labels = {line[:-1]: at for at, line in enumerate(lines) if line.endswith(":")}
    accesses = others = at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if line.endswith(":"):
            continue
        name, _, rest = line.partition(" ")
        words = [word.strip() for word in rest.split(",")]
        if name in ("lw", "sw"):
            accesses += 1
            offset, _, base = words[1].removesuffix(")").partition("(")
            place = registers[base] + int(offset)
            if name == "lw":
                registers[words[0]] = memory[place]
            else:
                memory[place] = registers[words[0]]
            continue
        others += 1
        if name == "bnez":
            at = labels[words[1]] if registers[words[0]] else at
            continue
        check_known("instruction", name, _ARITHMETIC)
        values = [registers[w] if w in registers else int(w) for w in words[1:]]
        registers[words[0]] = _ARITHMETIC[name](*values)
    return accesses, others


_ARITHMETIC = {
    "li": lambda a: a,
    "add": lambda a, b: a + b,
    "addi": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
}
