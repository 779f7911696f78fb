"""Real modules: many programs for many chips, as scripts/hlo_corpus.py packed them.

Whatever one of them holds is read, has a rule, and is an op of the Work: counted here a second way.
"""

import json
import math
import re
import tarfile
from functools import cache
from pathlib import Path

import pytest

from shardwise.hardware import load_chip, parse_slice
from shardwise.profiler.hlo import HloOp, Nested, Wait, module_work, read_module, rule, trip_counts
from shardwise.profiler.hlo.rules import FREE_CALLS
from shardwise.profiler.timeline import schedule

CORPUS = Path(__file__).with_name("corpus.tar.xz")
SLICES = {
    "v4": "v4:2x2x2",
    "v5e": "v5e:2x4",
    "v5p": "v5p:2x2x2",
    "v6e": "v6e:2x4",
    "tpu7x": "tpu7x:2x2x1",
    "h100": "h100:8",
}
PARTS = {"v5e": "2*v5e:2x2", "v5p": "2*v5p:2x2x1", "v6e": "2*v6e:2x2", "h100": "h100:8"}
"""The two slices of the program of that name; a GPU's devices are all in one."""
CHIPS = (*SLICES, "cpu")
UNKNOWN = {
    "Cholesky",
    "InvertDiagBlocksLowerTriangular",
    "__cublas$triangularSolve",
    "cusolver_potrf_ffi",
    "lapack_spotrf_ffi",
    "lapack_strsm_ffi",
}
"""Custom calls that say nothing of their work, and are reported."""


@cache
def texts():
    found = {}
    with tarfile.open(CORPUS, "r:xz") as archive:
        for entry in archive:
            data = archive.extractfile(entry)
            assert data is not None
            found[entry.name] = data.read().decode()
    return found


@cache
def programs(chip):
    ending = f".{chip}.txt"
    named = {name.removesuffix(ending): name for name in texts() if name.endswith(ending)}
    return {name: read_module(texts()[file]) for name, file in named.items()}


@cache
def works(chip):
    return {name: module_work(module) for name, module in programs(chip).items()}


def of_every_chip(names):
    for chip in CHIPS:
        for name in set(names) & set(programs(chip)):
            yield name, chip, module_work(programs(chip)[name])


def test_thirty_programs_for_six_chips():
    names = [set(programs(chip)) for chip in CHIPS]
    assert len(set.intersection(*sorted(names, key=len)[-6:])) >= 30
    assert CORPUS.stat().st_size <= 5_000_000
    made = json.loads(texts()["made.json"])
    assert {"jax", "libtpu", "refused"} <= set(made)


@pytest.mark.parametrize("chip", CHIPS)
def test_every_instruction_is_read_and_every_opcode_has_a_rule(chip):
    for name, module in programs(chip).items():
        text = texts()[f"{name}.{chip}.txt"]
        read = sum(len(c.instructions) for c in module.computations.values())
        assert read == len(re.findall(r"^ +(?:ROOT )?%[\w.\-]+ = ", text, re.M)), name
        opcodes = {i.opcode for c in module.computations.values() for i in c.instructions}
        assert not [opcode for opcode in opcodes if rule(opcode) == "unknown"], name
        assert module.scheduled, name


def run_by(module, name):
    """The computations that run as they stand: the entry, bodies, branches, called ones."""
    yield name
    for found in module.computation(name).instructions:
        if found.opcode in ("while", "conditional", "call"):
            for called in found.called:
                yield from run_by(module, called)


def items(block):
    for item in block:
        yield item
        if isinstance(item, Nested):
            yield from items(item.block)


@pytest.mark.parametrize("chip", CHIPS)
def test_everything_that_is_scheduled_is_an_op(chip):
    """But names and views, ends of what was begun, and branches with less to do."""
    for name, module in programs(chip).items():
        work = works(chip)[name]
        there = {i.name if isinstance(i, HloOp | Nested) else i.id for i in items(work.block)}
        waits = sum(isinstance(i, Wait) for i in items(work.block))
        assert waits == sum(item.asynchronous for item in work.ops), name
        every = [i for c in module.computations.values() for i in c.instructions]
        branched = any(i.opcode == "conditional" for i in every)
        for computation in set(run_by(module, module.entry)):
            for found in module.computation(computation).instructions:
                free = rule(found.opcode) in ("free", "done") or found.target in FREE_CALLS
                ended = "async-collective-done" in found.name or found.opcode == "recv"
                assert free or ended or branched or found.name in there, (name, found.name)


@pytest.mark.parametrize("chip", CHIPS)
def test_what_is_unknown_is_known(chip):
    found = {item.note for work in works(chip).values() for item in work.unknown()}
    assert {note.split("'")[1] for note in found} <= UNKNOWN


@pytest.mark.parametrize("chip", CHIPS)
def test_loops_are_counted_but_where_data_ends_them(chip):
    for name, module in programs(chip).items():
        counts = trip_counts(module).values()
        assert all(counts) or name == "while_unknown", name


ALIKE = (
    "matmul",
    "matmul_batched",
    "matmul_bias_gelu",
    "matmul_contracted_sharded",
    "matmul_transposed",
    "attention_chunked",
    "attention_forward",
    "mlp_forward",
    "mlp_tensor_parallel",
    "mlp_train_fsdp",
    "collective_matmul",
    "transformer_fsdp_tensor",
)


def test_dots_and_convolutions_count_the_same_flops_on_every_chip():
    """XLA on CPUs and GPUs has dots, on TPUs convolutions, some of them batched in windows."""
    flops = {}
    for name, _, work in of_every_chip(ALIKE):
        flops.setdefault(name, []).append(work.work.flops())
    for name in ALIKE:
        assert len(flops[name]) >= 6, name
        assert max(flops[name]) == min(flops[name]) > 0, name


@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [
        ("all_gather", "all_gather", (256 + 1024) * 1024 * 2),
        ("reduce_scatter", "reduce_scatter", 512 * 2048 * 4),
        ("all_reduce", "all_reduce", 2 * 512 * 1024 * 2 + 256 * 4),
        ("all_to_all", "all_to_all", 1024 * 2048 * 2),
        ("permute_ring", "permute", 7 * 1024 * 512 * 2),
        ("collective_matmul", "permute", 3 * 1024 * 1024 * 2),
    ],
)
def test_collectives_carry_the_same_bytes_on_every_chip(name, kind, size):
    found = list(of_every_chip((name,)))
    assert len(found) >= 6
    for _, chip, work in found:
        # XLA on CPUs sends bf16 as float32.
        wide = chip == "cpu" and name != "reduce_scatter"
        want = {2 * size, 2 * size - 256 * 4} if wide else {size}
        assert work.work.collective_bytes(kind) in want, chip
        assert work.work.collective_bytes() in want, chip


@pytest.mark.parametrize("chip", SLICES)
def test_every_module_has_a_timeline(chip):
    for name, work in works(chip).items():
        piece = parse_slice(PARTS[chip] if name == "multi_slice" else SLICES[chip])
        found = schedule(work, piece)
        assert 0 <= found.lower <= found.expected <= found.upper < math.inf, name
        assert found.expected > 0, name
        waited = sum(found.exposed.values())
        assert waited <= found.expected * (1 + 1e-9), name


@pytest.mark.parametrize(
    ("chip", "over"), [("v4", 1.15), ("v5e", 1.15), ("v5p", 1.15), ("v6e", 1.45), ("tpu7x", 1.3)]
)
def test_a_large_product_takes_little_more_than_its_roofline(chip, over):
    """libtpu's own estimate over the roofline, 8192 cubed: 1.14 v5e, 1.11 v5p, 1.42 v6e."""
    piece = parse_slice(SLICES[chip])
    found = schedule(works(chip)["matmul_large"], piece)
    each = load_chip(chip).peak("bf16") / load_chip(chip).jax_devices_per_chip
    assert found.lower == pytest.approx(2 * 8192**3 / each)
    assert 1 <= found.expected / found.lower <= over
