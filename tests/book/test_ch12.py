"""The GPU chapter's spec tables, from the catalogue's book constants and the fat-tree helpers."""

from book.oracle import check, entry
from shardwise.hardware import load_chip
from shardwise.hardware.totals import (
    fat_tree,
    matmul_units,
    node_egress,
    register_bytes,
    sram_bytes_per_core,
    vector_units,
)


def book(e):
    return load_chip(e["inputs"]["gpu"], constants="book")


def memories(chip):
    return [chip.cores, sram_bytes_per_core(chip), chip.l2_bytes, chip.hbm_bytes]


@entry("table.gpu.mem.V100")
def test_memories_v100(e):
    check(e, memories(book(e)))


@entry("table.gpu.mem.H100")
def test_memories_h100(e):
    check(e, memories(book(e)))


@entry("table.gpu.mem.B200")
def test_memories_b200(e):
    check(e, memories(book(e)))


@entry("table.gpu.flops.A100")
def test_flops_a100(e):
    """The book's column is fp8 and int8 together; the A100 has int8 only."""
    chip = book(e)
    check(e, [chip.hbm_bandwidth, chip.peak("bf16"), chip.peak("int8")])


@entry("table.gpu.flops.H100")
def test_flops_h100(e):
    """The table has the 3.35e12 bytes/s of text and quiz 1 (295 = 990 / 3.35) in two digits."""
    chip = book(e)
    check(e, [float(f"{chip.hbm_bandwidth:.1e}"), chip.peak("bf16"), chip.peak("fp8")])


@entry("table.gpu.flops.B200")
def test_flops_b200(e):
    chip = book(e)
    check(e, [chip.hbm_bandwidth, *(chip.peak(d) for d in e["inputs"]["labels"][1:])])


def nvlink(chip):
    return [chip.network.link_oneway, chip.network.links_per_chip, chip.network.chip_oneway]


@entry("table.gpu.nvlink.3.0")
def test_nvlink_3(e):
    chip = book(e)
    check(e, nvlink(chip))
    assert [chip.network.domain] == e["inputs"]["node_sizes"]
    assert [chip.network.levels[0].switches] == e["inputs"]["nvswitches"]


@entry("table.gpu.nvlink.4.0")
def test_nvlink_4(e):
    chip = book(e)
    check(e, nvlink(chip))
    assert [chip.network.domain] == e["inputs"]["node_sizes"]
    assert [chip.network.levels[0].switches] == e["inputs"]["nvswitches"]


def tree_row(e, name):
    level = {level.name: level for level in fat_tree(book(e))}[name]
    return [
        level.chips,
        level.switches,
        level.cable_oneway,
        level.chip_oneway,
        level.collective_oneway,
    ]


@entry("table.gpu.fattree.node")
def test_fat_tree_node(e):
    check(e, tree_row(e, "node"))


@entry("table.gpu.fattree.leaf")
def test_fat_tree_leaf(e):
    check(e, tree_row(e, "leaf"))


@entry("table.gpu.fattree.spine")
def test_fat_tree_spine(e):
    check(e, tree_row(e, "spine"))


@entry("table.gpu.superpod.node")
def test_superpod_node(e):
    level = fat_tree(book(e))[0]
    check(e, [level.degree, level.switch_oneway, level.cable_oneway, level.collective_oneway])


def node(chip):
    return [chip.network.domain, chip.network.chip_oneway, node_egress(chip)]


@entry("table.gpu.node.B200")
def test_node_b200(e):
    check(e, node(book(e)))


@entry("table.gpu.node.GB200-NVL72")
def test_node_gb200(e):
    check(e, node(book(e)))


def both(e, count):
    """A count of the GPU and of the TPU; the sizes in binary units, as the entry's question has."""
    return [count(load_chip(e["inputs"]["gpu"])), count(load_chip(e["inputs"]["tpu"]))]


@entry("table.gpu.vs_tpu.SM")
def test_cores(e):
    check(e, both(e, lambda chip: chip.cores))


@entry("table.gpu.vs_tpu.warp_scheduler")
def test_vector_units(e):
    check(e, both(e, vector_units))


@entry("table.gpu.vs_tpu.tensor_core")
def test_matmul_units(e):
    check(e, both(e, matmul_units))


@entry("table.gpu.vs_tpu.smem")
def test_fast_memory(e):
    check(e, both(e, lambda chip: chip.sram_bytes))


@entry("table.gpu.vs_tpu.regs")
def test_registers(e):
    check(e, both(e, register_bytes))
