"""One chip: its peaks, memories, links, network and price, each number with its source.

Peaks are dense (no 2:4 sparsity) and count a multiply-add as two. Sizes are bytes, rates per
second, and a link's name says one-way. A number that the catalogue lacks is None, and an answer
that needs it asks by `Chip.require`, which names the remedy; nothing is defaulted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from shardwise.boundary.documents import read_toml
from shardwise.errors import BadRequest
from shardwise.hardware.network import Alone, DataCentre, FullMesh, Switched, Torus
from shardwise.hardware.prices import LEAST, MOST, Price

RATE_OF = {"mxfp8": "fp8", "mxfp4": "fp4", "nvfp4": "fp4"}
"""Block formats compute at the rate of their elements, on chips that have `BLOCKS`."""
BLOCKS = "fp4"
"""The rate of chips whose matrix units scale blocks: both came with NVIDIA's Blackwell (PTX ISA,
tcgen05.mma.block_scale) and AMD's CDNA 4 (its instruction set, V_MFMA_SCALE); on a chip without it
nothing scales blocks of 16 or 32 numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One number of a chip. The head of `fields.toml` explains what is said of it."""

    kind: str
    unit: str
    about: str
    least: float = 0.0
    most: float = math.inf


def _fields(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Field]:
    """Rows of the table, with what their kinds say of them."""
    return {name: Field(**{**_TABLE["kinds"][row["kind"]], **row}) for name, row in rows.items()}


_TABLE = read_toml(Path(__file__).with_name("fields.toml"), "the table of a chip's numbers")
FIELDS: Mapping[str, Field] = _fields(_TABLE["chip"])
"""The scalar numbers of a chip; peaks, efficiency and networks have tables of their own."""
PART_FIELDS: Mapping[str, Field] = _fields(_TABLE["network"])
"""The numbers of networks, of their levels and of the data-centre link."""
PEAK, EFFICIENCY, RAMP = _fields(_TABLE["others"]).values()
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
    run keeps (power limit, units lent to communication), `clock` what the chip's own power limit
    leaves of those of its generation. `hbm` is the share of the memory
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
    clock: float = 1.0

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
        them (docs/lab/log.md).
    """

    platform: Literal["tpu", "cuda"]
    name: str
    one_device: str = ""
    no_cycles: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One accelerator as the catalogue has it. `sources` maps a number's path to its source, and
    `bases` to what kind of number it is (`BASES`), where that is said.

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
    bases: Mapping[str, str]

    def require(self, field: str) -> float:
        """The number, or BadRequest that names the chip, the field and how to supply it."""
        value = getattr(self, field)
        if value is None:
            wants = "the answer needs it"
            if field in self.unplanned:
                wants = "no slice of it can be planned without it"
            raise BadRequest(
                f"chip '{self.id}' has no '{field}' ({FIELDS[field].about}) in the catalogue and "
                f"{wants}; give it with --set chip.{field}=NUMBER or --hw FILE"
            )
        return float(value)

    @property
    def usable_bytes_per_device(self) -> float:
        """Bytes of main memory that a program can use on one of JAX's devices. Raises BadRequest as
        `require`."""
        return self.require("hbm_usable_bytes") / self.jax_devices_per_chip

    @property
    def unplanned(self) -> tuple[str, ...]:
        """The numbers that every plan needs and the catalogue lacks, by field; no slice of the chip
        is planned until they are given."""
        needed = ["hbm_usable_bytes", "hbm_bandwidth"]
        if self.jax_devices_per_chip > 1:
            needed.append("device_link_oneway")
        lacking = [name for name in needed if getattr(self, name) is None]
        known = {"bf16", "f16", "f32"} & {*self.peak_flops}
        return tuple(lacking if known else [*lacking, "peak_flops.bf16"])

    @property
    def through_host(self) -> bool:
        """Whether these are cards whose messages to one another pass through the host's memory."""
        return isinstance(self.network, Switched) and self.network.peer_to_peer is False

    def peak(self, dtype: str) -> float:
        """Dense FLOP/s for a dtype of `units.DTYPE_BYTES`; BadRequest lists what the chip has."""
        rate = self.peak_flops.get(dtype)
        if rate is None and dtype in RATE_OF:
            rate = self._peak_of_blocks(dtype)
        if rate is None:
            raise BadRequest(
                f"chip '{self.id}' has no peak for dtype '{dtype}' in the catalogue; it has "
                f"{', '.join(self.peak_flops)}: compute in one of those, or give the rate with "
                f"--set chip.peak_flops.{dtype}=NUMBER"
            )
        return rate

    def _peak_of_blocks(self, dtype: str) -> float | None:
        """Dense FLOP/s in a block format; BadRequest where the chip scales no blocks."""
        if BLOCKS in self.peak_flops:
            return self.peak_flops.get(RATE_OF[dtype])
        narrow = next(
            d for d in (RATE_OF[dtype], "fp8", "bf16", *self.peak_flops) if d in self.peak_flops
        )
        raise BadRequest(
            f"chip '{self.id}' does not compute in '{dtype}': matrix units that scale blocks of "
            f"numbers came with those for {BLOCKS} (NVIDIA's Blackwell, AMD's CDNA 4), and it has "
            f"none; compute in {narrow}, or give the rate with --set chip.peak_flops.{dtype}=NUMBER"
        )

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
        flat[f"efficiency.{CLOCK}"] = self.efficiency.clock
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
GIVEN = "given"
BASES: Mapping[str, str] = {
    "measured": "a benchmark of a kernel or link, or timed steps",
    "fitted": "fitted on published runs",
    "prior": "estimated from chips of its kind",
    "compiler": "compiled programs, or the compiler's own estimate",
    "book's peak": "the book uses no derating",
    "assumed": "a guess; its source gives the reason",
    GIVEN: "a user's own",
}
"""What kind of number a constant is, and what that means; `GIVEN` where nothing is said."""
CLOCK = "clock"
"""What a chip's own power limit leaves of the rates of its generation."""


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
        elif field.name != "name" and value is not None and not is_dataclass(value):
            flat[f"{prefix}.{field.name}"] = value
    return flat
