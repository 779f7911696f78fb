"""What each opcode must have: operands of some shape, attributes within their range.

One row for each need of the passes (`flops.py`, `traffic.py`, `loops.py`, `collectives.py`, ...);
what no pass reads is not checked.
"""

import json
import re
from collections.abc import Callable
from math import prod
from typing import NoReturn

from shardwise.errors import BadRequest, shown
from shardwise.profiler.hlo.flops import matmul_dtype, matmul_of, multiplies, window_sizes
from shardwise.profiler.hlo.groups import read_pairs, read_tiles
from shardwise.profiler.hlo.kernels import stated_flops
from shardwise.profiler.hlo.loops import MOST_RUNS
from shardwise.profiler.hlo.numbers import MOST, integer
from shardwise.profiler.hlo.rules import rule
from shardwise.profiler.hlo.shapes import Array, arrays
from shardwise.profiler.hlo.text import NO_CYCLES, Computation, Instruction, Module
from shardwise.profiler.hlo.transfers import check_transfer

DIRECTIONS = frozenset({"EQ", "NE", "LT", "LE", "GT", "GE"})
_ONE = """copy convert bitcast bitcast-convert reshape transpose slice reverse broadcast copy-start
    get-tuple-element opt-barrier dynamic-slice reduce sort cholesky fft while conditional send
    copy-done async-done async-update all-gather-done all-reduce-done reduce-scatter-done
    all-to-all-done ragged-all-to-all-done collective-permute-done send-done recv-done"""
_TWO = "dot convolution add subtract compare dynamic-update-slice gather triangular-solve"
LEAST = {
    **dict.fromkeys(_ONE.split(), 1),
    **dict.fromkeys(_TWO.split(), 2),
    "ragged-dot": 2,
    "scatter": 3,
}
"""Operands that an opcode has at least."""
MOST_OPERANDS = {"add": 2, "subtract": 2, "compare": 2, "while": 1, "get-tuple-element": 1}
CALLED = {"fusion": 1, "call": 1, "async-start": 1, "while": 2, "conditional": 1}
"""Computations that it runs at least."""
MOST_METADATA = 100_000
_METADATA_NUMBER = re.compile(r"(?:source_line|stack_frame_id)=(?!\d{1,9}(?!\w))")
_COUNTED = re.compile(r'"(estimated_cycles|known_trip_count)":(?:\{"n":)?"?([^",}\]]*)')


def check_instruction(module: Module, computation: Computation, found: Instruction) -> None:
    """Raise BadRequest, which says what is wrong, for an instruction that lacks what is read."""
    given, opcode = len(found.operands), found.opcode
    if given < LEAST.get(opcode, 0) or given > MOST_OPERANDS.get(opcode, given):
        _refuse(f"it has {given} operands, and {LEAST.get(opcode, 0)} belong to it")
    if opcode in CALLED:
        _check_called(module, found)
    if opcode in CHECKS:
        CHECKS[opcode](computation, found)
    if rule(opcode) == "collective":
        _check_collective(module, found)
    if opcode == "send":
        check_transfer(module, found)
    if rule(opcode) in ("sort", "algebra", "reduction"):
        _check_dims(computation, found)
    if multiplies(found):
        _check_product(computation, found)
    if opcode == "custom-call":
        stated_flops(found)
    _check_words(found)


def check_sharding(parameter: Instruction, devices: int) -> None:
    """Raise BadRequest for an argument whose sharding is not of the program's devices."""
    read_tiles(parameter.attribute("sharding"), devices)


def _refuse(reason: str) -> NoReturn:
    raise BadRequest(reason)


def _check_called(module: Module, found: Instruction) -> None:
    if found.opcode == "while":
        called = [found.attribute(key).lstrip("%") for key in ("condition", "body")]
        if not all(called):
            _refuse("it lacks its condition or its body")
    elif len(found.called) < CALLED[found.opcode]:
        _refuse("it names no computation that it runs")
    if found.opcode in ("fusion", "call"):
        inside = module.computations[found.called[0]]
        if len(inside.parameters) != len(found.operands):
            _refuse(
                f"it has {len(found.operands)} operands and '{inside.name}' "
                f"{len(inside.parameters)} parameters"
            )


def _check_collective(module: Module, found: Instruction) -> None:
    permute = "permute" in found.opcode
    if not found.operands:
        _refuse("it has no operand")
    paired = found.opcode.endswith("-start") and found.opcode != "all-reduce-start"
    if paired and not isinstance(found.shape, Array) and len(found.shape) < 2:
        _refuse("its shape must be (operands, results, ...)")
    if permute:
        text = found.attribute("source_target_pairs")
        for pair in read_pairs(text):
            if max(pair) >= module.devices:
                _refuse(f"pairs {shown(text)} name more than the program's {module.devices}")


def _check_product(computation: Computation, found: Instruction) -> None:
    if len(found.operands) < 2 or not next(arrays(found.shape), None):
        _refuse("a product needs two operands and a result")
    if not all(next(arrays(computation.shape_of(name)), None) for name in found.operands[:2]):
        _refuse("an operand of a product is not an array")
    product = matmul_of(computation, found)
    if min(product.m, product.n, product.k, product.batch) < 0:
        _refuse("its dims are negative")
    matmul_dtype(computation, found)


def _check_dims(computation: Computation, found: Instruction) -> None:
    """What sorts, reductions and algebra read of their dims and windows."""
    first = next(arrays(found.shape), None)
    if rule(found.opcode) != "reduction":
        if first is None:
            _refuse("its shape has no array")
        dims = found.integers("fft_length" if found.opcode == "fft" else "dimensions")
        if found.opcode == "sort" and max(dims, default=0) >= max(len(first.dims), 1):
            _refuse(f"it sorts along dim {max(dims)} of {len(first.dims)}")
    if found.operands and next(arrays(computation.shape_of(found.operands[0])), None) is None:
        _refuse("its operand is not an array")
    if prod(window_sizes(found)) > MOST:
        _refuse(f"its window has over {MOST} places")


def _check_words(found: Instruction) -> None:
    config = found.attribute("backend_config")
    if config.startswith(('{"', "{}")):  # a custom call of a GPU has a notation of its own
        try:
            json.loads(config, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            _refuse(f"its backend_config is not JSON: {shown(str(error))}")
        for key, text in _COUNTED.findall(config):
            if text != NO_CYCLES:
                integer(text, f"'{key}' of its backend_config", most=MOST_RUNS)
    metadata = found.attribute("metadata")
    if len(metadata) > MOST_METADATA:
        _refuse(f"its metadata has {len(metadata):,} characters; {MOST_METADATA:,} are read")
    if _METADATA_NUMBER.search(metadata):
        _refuse("its metadata has a number of a line or of a frame that is none")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


# Rows by opcode -----------------------------------------------------------------------------------


def _element(computation: Computation, found: Instruction) -> None:
    whole = computation.shape_of(found.operands[0])
    if isinstance(whole, Array):
        _refuse(f"'{found.operands[0]}' is not a tuple")
    integer(found.attribute("index"), "its index", most=len(whole) - 1)


def _tuple(computation: Computation, found: Instruction) -> None:
    if isinstance(found.shape, Array) or len(found.shape) != len(found.operands):
        _refuse(f"its shape is not a tuple of its {len(found.operands)} operands")


def _compare(computation: Computation, found: Instruction) -> None:
    if found.attribute("direction") not in DIRECTIONS:
        _refuse(f"its direction is {shown(found.attribute('direction'))}, which is none")


def _update(computation: Computation, found: Instruction) -> None:
    name = found.operands[1 if found.opcode == "dynamic-update-slice" else -1]
    if not isinstance(computation.shape_of(name), Array):
        _refuse(f"what it writes, '{name}', is not an array")


def _one_array(computation: Computation, found: Instruction) -> None:
    if not isinstance(found.shape, Array):
        _refuse("its shape is not an array")


def _copied(computation: Computation, found: Instruction) -> None:
    if found.shape == ():
        _refuse("its shape is empty")


def _transpose(computation: Computation, found: Instruction) -> None:
    given = computation.shape_of(found.operands[0])
    rank = len(given.dims) if isinstance(given, Array) else -1
    if sorted(found.integers("dimensions")) != list(range(rank)) or rank < 0:
        _refuse(
            f"its dimensions {shown(found.attribute('dimensions'))} are not those of its operand"
        )


def _view(computation: Computation, found: Instruction) -> None:
    if isinstance(found.shape, Array) != isinstance(computation.shape_of(found.operands[0]), Array):
        _refuse("its shape and its operand's are an array and a tuple")


CHECKS: dict[str, Callable[[Computation, Instruction], None]] = {
    "get-tuple-element": _element,
    "tuple": _tuple,
    "compare": _compare,
    "dynamic-update-slice": _update,
    "scatter": _update,
    "dynamic-slice": _one_array,
    "copy-start": _copied,
    "transpose": _transpose,
    "copy": _view,
}
