"""One chip: its peaks, memories, links, network and price, each number with its source.

Peaks are dense (no 2:4 sparsity) and count a multiply-add as two. Sizes are bytes, rates per
second, and a link's name says one-way. A number that the catalogue lacks is None, and an answer
that needs it asks by `Chip.require`, which names the remedy; nothing is defaulted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from shardwise.errors import BadRequest
from shardwise.hardware.network import Alone, DataCentre, FullMesh, Switched, Torus
from shardwise.hardware.prices import LEAST, MOST, Price

RATE_OF = {"mxfp8": "fp8", "mxfp4": "fp4", "nvfp4": "fp4"}
"""Block formats compute at the rate of their elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One number of a chip: how it is read (`kind`), its unit, what it means, and the least and the
    most that any machine has (each of several sizes of a shape); beyond is a slip of the pen."""

    kind: str
    unit: str
    about: str
    least: float = 0.0
    most: float = math.inf


FIELDS: Mapping[str, Field] = {
    "hbm_bytes": Field(kind="size", unit="bytes", about="main memory, nominal", least=1, most=1e18),
    "hbm_usable_bytes": Field(
        kind="size", unit="bytes", about="main memory a program can use", least=1, most=1e18
    ),
    "hbm_bandwidth": Field(
        kind="rate", unit="bytes/s", about="main memory, reads plus writes", least=1, most=1e18
    ),
    "sram_bytes": Field(
        kind="size", unit="bytes", about="VMEM or SMEM of the whole chip", least=1, most=1e15
    ),
    "sram_bandwidth": Field(
        kind="rate", unit="bytes/s", about="VMEM or SMEM, reads, whole chip", least=1, most=1e18
    ),
    "l2_bytes": Field(
        kind="size", unit="bytes", about="L2, CMEM or last-level cache", least=1, most=1e15
    ),
    "l2_bandwidth": Field(kind="rate", unit="bytes/s", about="L2 cache, reads", least=1, most=1e18),
    "vector_flops": Field(
        kind="rate", unit="FLOP/s", about="f32 peak of the vector units", least=1, most=1e21
    ),
    "flops_per_alu": Field(
        kind="count",
        unit="FLOP",
        about="per ALU and cycle in that peak; 2 with multiply-add",
        least=1,
        most=64,
    ),
    "clock_hz": Field(kind="rate", unit="Hz", about="clock behind the peaks", least=1, most=1e12),
    "compiler_clock_hz": Field(
        kind="rate", unit="Hz", about="clock of the compiler's cycles", least=1, most=1e12
    ),
    "cores": Field(
        kind="count", unit="", about="cores (TensorCores, SMs, CUs, ...)", least=1, most=1e6
    ),
    "matmul_units_per_core": Field(
        kind="count", unit="", about="MXUs or tensor cores per core", least=1, most=1e4
    ),
    "vector_units_per_core": Field(
        kind="count", unit="", about="VPU slots or warp schedulers", least=1, most=1e4
    ),
    "registers_per_core": Field(
        kind="count", unit="", about="vector registers per core", least=1, most=1e9
    ),
    "words_per_register": Field(
        kind="count", unit="", about="32-bit words per vector register", least=1, most=1e6
    ),
    "matmul_tile": Field(
        kind="tile", unit="m x k x n", about="matmul dims are padded to this", least=1, most=1e5
    ),
    "jax_devices_per_chip": Field(
        kind="count", unit="", about="devices JAX shows per chip", least=1, most=64
    ),
    "device_link_oneway": Field(
        kind="rate",
        unit="bytes/s",
        about="between the devices of a chip, one-way per device",
        least=1,
        most=1e18,
    ),
    "chips_per_host": Field(kind="count", unit="", about="chips on one host", least=1, most=1024),
    "host_link_oneway": Field(
        kind="rate", unit="bytes/s", about="host to chip, one-way", least=1, most=1e18
    ),
    "host_dram_bytes": Field(
        kind="size", unit="bytes", about="host memory per host", least=1, most=1e18
    ),
    "power_watts": Field(kind="rate", unit="W", about="power per chip", least=1e-3, most=1e6),
}
"""The scalar numbers of a chip; peaks, efficiency and networks have tables of their own."""

PART_FIELDS: Mapping[str, Field] = {
    "pod": Field(kind="shape", unit="chips", about="largest torus", least=1, most=1e4),
    "wrap": Field(kind="wrap", unit="", about="when an axis of a slice closes into a ring"),
    "domain": Field(
        kind="count", unit="chips", about="chips that reach each other directly", least=1, most=1e6
    ),
    "link_oneway": Field(
        kind="rate", unit="bytes/s", about="one link, one-way", least=1, most=1e18
    ),
    "links_per_chip": Field(kind="count", unit="", about="links of one chip", least=1, most=1e4),
    "chip_oneway": Field(
        kind="rate", unit="bytes/s", about="what one chip sends, one-way", least=1, most=1e18
    ),
    "pair_oneway": Field(
        kind="rate", unit="bytes/s", about="link of one pair, one-way", least=1, most=1e18
    ),
    "ramp_bytes": Field(
        kind="size", unit="bytes", about="message that reaches half the rate", least=1e-6, most=1e15
    ),
    "sharp": Field(kind="flag", unit="", about="switches reduce in the network"),
    "hop_seconds": Field(kind="seconds", unit="s", about="latency of one hop", least=0, most=1),
    "chips": Field(
        kind="count", unit="chips", about="chips of one unit of this level", least=1, most=1e6
    ),
    "switches": Field(kind="count", unit="", about="switches of one unit", least=1, most=1e6),
    "switch_oneway": Field(
        kind="rate", unit="bytes/s", about="one switch, one-way", least=1, most=1e18
    ),
    "unit_oneway": Field(
        kind="rate", unit="bytes/s", about="what the unit's parts send, one-way", least=1, most=1e18
    ),
}
"""The numbers of networks, of their levels and of the data-centre link."""

PEAK = Field(kind="rate", unit="FLOP/s", about="dense peak", least=1, most=1e21)
EFFICIENCY = Field(
    kind="fraction", unit="", about='share of peak behind "expected"', least=1e-6, most=1
)

RAMP = Field(
    kind="seconds", unit="s", about="what a matmul kernel takes beyond its FLOPs", least=0, most=1
)
PRICE = Field(kind="rate", unit="USD", about="dollars per chip-hour", least=LEAST, most=MOST)

REQUIRED = ("cores", "matmul_tile", "jax_devices_per_chip", "chips_per_host")
"""Fields that no chip may lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What kernels and networks reach of a chip's peaks, behind "expected" and "upper".

    `matmul` is the share of the dense peak of large matmuls in a kernel benchmark, `attention` that
    of flash attention, forward and backward; `matmul_ramp` the seconds that every matmul or
    attention kernel takes beyond its FLOPs (launch on the chip, first tiles in, last wave out), so
    that a product of few FLOPs reaches less. `sustained` is the share of those rates that a long
    run keeps (power limit, units lent to communication). `hbm` is the share of the memory
    bandwidth, `network` that of the fast links and `outer_network` that of the data-centre link on
    large messages. `matmul_by_dtype` holds the dtypes apart from bf16: fp8 kernels reach less of
    their peak. `source` says where each comes from.
    """

    matmul: float
    hbm: float
    network: float
    source: str
    matmul_by_dtype: Mapping[str, float]
    attention: float
    matmul_ramp: float
    outer_network: float
    sustained: float

    def matmul_rate(self, dtype: str) -> float:
        """The share of the dense peak that large matmuls in `dtype` reach in a benchmark."""
        return self.matmul_by_dtype.get(RATE_OF.get(dtype, dtype), self.matmul)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """A compiler that runs without the chip, and what it calls the chip.

    platform: "tpu" for libtpu, "cuda" for XLA's compiler of GPUs.
    name: libtpu's name of the generation, or an architecture of the table of GPU targets in
        profiler/ahead/data.
    one_device: libtpu's `chip_config_name` where JAX shows the cores of a chip as one device and
        libtpu would not.
    no_cycles: dtypes of products whose `estimated_cycles` are no use, so that the roofline prices
        them (docs/log.md).
    """

    platform: Literal["tpu", "cuda"]
    name: str
    one_device: str = ""
    no_cycles: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One accelerator as the catalogue has it. `sources` maps a number's path to its source.

    `generation` is the file of fitted constants that it shares with chips of the same core, empty
    for a chip of a --hw file; `compiler` is None where none runs without the chip.
    """

    id: str
    name: str
    vendor: str
    release: str
    status: str
    core_kind: str
    generation: str
    compiler: Compiler | None
    notes: tuple[str, ...]
    peak_flops: Mapping[str, float]
    hbm_bytes: float | None
    hbm_usable_bytes: float | None
    hbm_bandwidth: float | None
    sram_bytes: float | None
    sram_bandwidth: float | None
    l2_bytes: float | None
    l2_bandwidth: float | None
    vector_flops: float | None
    flops_per_alu: int | None
    clock_hz: float | None
    compiler_clock_hz: float | None
    cores: int
    matmul_units_per_core: int | None
    vector_units_per_core: int | None
    registers_per_core: int | None
    words_per_register: int | None
    matmul_tile: tuple[int, int, int]
    jax_devices_per_chip: int
    device_link_oneway: float | None
    chips_per_host: int
    host_link_oneway: float | None
    host_dram_bytes: float | None
    power_watts: float | None
    price: Price | None
    price_low: Price | None
    price_high: Price | None
    efficiency: Efficiency
    network: Torus | Switched | FullMesh | Alone
    data_centre: DataCentre | None
    constants: str
    sources: Mapping[str, str]

    def require(self, field: str) -> float:
        """The number, or BadRequest that names the chip, the field and how to supply it."""
        value = getattr(self, field)
        if value is None:
            raise BadRequest(
                f"chip '{self.id}' has no '{field}' ({FIELDS[field].about}) in the catalogue and "
                f"the answer needs it; give it with --set chip.{field}=NUMBER or --hw FILE"
            )
        return float(value)

    def peak(self, dtype: str) -> float:
        """Dense FLOP/s for a dtype of `units.DTYPE_BYTES`; BadRequest lists what the chip has."""
        rate = self.peak_flops.get(dtype, self.peak_flops.get(RATE_OF.get(dtype, dtype)))
        if rate is None:
            raise BadRequest(
                f"chip '{self.id}' has no peak for dtype '{dtype}' in the catalogue; it has "
                f"{', '.join(self.peak_flops)}: compute in one of those, or give the rate with "
                f"--set chip.peak_flops.{dtype}=NUMBER"
            )
        return rate

    def require_price(self) -> Price:
        """The default price, or BadRequest: no dollars are made up."""
        if self.price is None:
            raise BadRequest(
                f"chip '{self.id}' has no public price in the catalogue, so cost is unknown; "
                f"give one with --price {self.id}=USD (per chip-hour)"
            )
        return self.price

    def numbers(self) -> dict[str, Any]:
        """Every number by its path ("hbm_bytes", "peak_flops.bf16", "network.link_oneway")."""
        flat: dict[str, Any] = {f"peak_flops.{k}": v for k, v in self.peak_flops.items()}
        flat |= {name: getattr(self, name) for name in FIELDS if getattr(self, name) is not None}
        flat |= {f"efficiency.{k}": getattr(self.efficiency, k) for k in EFFICIENCIES}
        by_dtype = self.efficiency.matmul_by_dtype
        flat |= {f"efficiency.matmul_{dtype}": rate for dtype, rate in by_dtype.items()}
        if not isinstance(self.network, Alone):
            flat |= _network_numbers("network", self.network)
        if self.data_centre is not None:
            flat |= _network_numbers("data_centre", self.data_centre)
        return flat


EFFICIENCIES = (
    "matmul",
    "matmul_ramp",
    "attention",
    "sustained",
    "hbm",
    "network",
    "outer_network",
)
"""The constants of a chip; with `matmul_fp8` at most eight."""


def field_of(path: str) -> Field:
    """What the number at a path of `Chip.numbers` is: its kind, unit and meaning."""
    table, _, name = path.rpartition(".")
    if not table:
        return FIELDS[name]
    if path == "efficiency.matmul_ramp":
        return RAMP
    fixed = {"peak_flops": PEAK, "efficiency": EFFICIENCY}
    return fixed.get(table) or PART_FIELDS[name]


def _network_numbers(prefix: str, part: Any) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for field in fields(part):
        value = getattr(part, field.name)
        if field.name == "levels":
            for level in value:
                flat |= _network_numbers(f"{prefix}.levels.{level.name}", level)
        elif field.name != "name" and not is_dataclass(value):
            flat[f"{prefix}.{field.name}"] = value
    return flat
