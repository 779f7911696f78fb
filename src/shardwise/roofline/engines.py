"""What a serving engine does with a chip: four numbers per family, each with its source.

An engine is the software that serves (`ServePlan.engine`). Its steps are priced by the chip's
constants as every other work, plus these four; no number belongs to a pair of chip and engine. They
lie in `data/engines.toml`, written by `scripts/fit_serving.py`, with a table `arrival`: what a
request waits for before its first token, which a published time has in it and a plan has not. Those
of our own engine on TPUs lie in `data/jax_engine.toml`, written by `scripts/fit_jax_serving.py`
from steps that were compiled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

from shardwise.boundary import read_toml
from shardwise.errors import BadRequest, entry_of, shown
from shardwise.roofline.stacks import Stack, read_constants, whole_sums
from shardwise.work import Quantity

_DATA = Path(__file__).parent / "data" / "engines.toml"
_COMPILED = _DATA.with_name("jax_engine.toml")

ENGINE_CONSTANTS: Mapping[str, str] = {
    "kernel_seconds": "seconds that every kernel of a step takes beyond its work, collectives too",
    "sequence_seconds": "seconds per step and running sequence: scheduling, sampling, detokenizing",
    "hops": "share of the collectives' measured latency that is paid",
    "prefill_wait": "share of the others' prefill that falls before a request's first token",
}
"""The constants of an engine and what each means."""

ENGINE_BOUNDS: Mapping[str, tuple[float, float]] = {
    "kernel_seconds": (0.0, 1e-4),
    "sequence_seconds": (0.0, 1e-2),
    "hops": (0.0, 5.0),
    "prefill_wait": (0.0, 1.0),
}
"""The least and the most that each may be."""

COMPILED_ENGINE_CONSTANTS: Mapping[str, str] = {
    "kernel_seconds": ENGINE_CONSTANTS["kernel_seconds"],
    "streams": "rate at which products read their operands over that of the chip's memory",
    "narrow": "rate at which they read weights of a byte a number over that of wider ones",
    "hops": "times the collectives' measured latency that is paid",
    "products": "rate of the math of its matrix products over the chip's",
    "attention": "rate of its attention over the best kernel of the chip",
    "exchanges": "times its seconds that a sum of activations over tensor takes",
    "passes": "times the counted memory traffic of elementwise ops that is moved",
}
"""Those of our own engine on TPUs, which are learned from compiled steps."""

_COMPILED_BOUNDS: Mapping[str, tuple[float, float]] = {
    "kernel_seconds": ENGINE_BOUNDS["kernel_seconds"],
    "streams": (0.1, 2.0),
    "narrow": (0.1, 1.0),
    "hops": (0.0, 20.0),
    "products": (0.1, 2.0),
    "attention": (0.05, 1.0),
    "exchanges": (0.5, 10.0),
    "passes": (1.0, 20.0),
}


ARRIVAL_CONSTANTS: Mapping[str, str] = {
    "equal_wait": "`prefill_wait` where all requests have the same lengths and come in waves",
    "poll_steps": "steps until a request is looked at and its first token is sent",
    "balance_steps": "steps that parts of a batch wait for prompts of the others",
    "pool_wait": "`prefill_wait` where servers of their own prefill",
    "start_seconds": "seconds of the host, ahead of the device, for each kernel of a prompt's step",
    "crowd": "share of the steps without prompts that a prompt meets as if they had one",
    "handover_seconds": "seconds between the servers that prefill and those that decode",
    "request_seconds": "seconds of a request on its way in and out",
    "program_seconds": "seconds of its first programs, where a benchmark sends no request before",
    "beside_seconds": "seconds longer for 1,000 kernels of a prompt where others are answered",
    "acceptance": "chance that a guessed token is right after one that was",
}
"""How the requests of a benchmark arrive at an engine; seconds per prompt token are in none."""

ARRIVAL_BOUNDS: Mapping[str, tuple[float, float]] = {
    "equal_wait": (0.0, 1.0),
    "poll_steps": (0.0, 200.0),
    "balance_steps": (0.0, 200.0),
    "pool_wait": (0.0, 1.0),
    "start_seconds": (0.0, 1e-3),
    "crowd": (0.0, 1.0),
    "handover_seconds": (0.0, 10.0),
    "request_seconds": (0.0, 1.0),
    "program_seconds": (0.0, 1000.0),
    "beside_seconds": (0.0, 1.0),
    "acceptance": (0.0, 1.0),
}
"""The least and the most that each may be."""


DISPATCH_SECONDS = 1.7e-5
"""Seconds beside its bytes and the kernel's own that an engine takes to send tokens to experts, or
what they made back: signals and waits among all ranks. With one token a rank the two take 43 us
(TensorRT-LLM 1.2, NVLinkOneSided, 8 GB200), 44, 35 and 24 (DeepEP's low-latency kernels in SGLang
0.5.12 on B200, GB200, H200): aiconfigurator 0.12 (Apache-2.0), tables trtllm_alltoall and
wideep_deepep_ll.
"""

EXPERT_RATE = 0.75
"""Rate of the products of routed experts over that of others where an expert has a few hundred
tokens: DeepGEMM's README of April 2025 has 0.72 and 0.74 for 256 tokens in each of four groups,
0.80 and 0.83 for 512, over its 1,297 and 1,099 TFLOP/s for thousands (H800, fp8). Kernels with
their routing, alone, have less still (aiconfigurator 0.12, tables moe_perf: 0.3 in the median).
"""

BYTE_READS = 0.83
"""Rate at which products of few rows read weights of a byte a number over that of bf16: the median
of TensorRT-LLM 1.3 and SGLang 0.5.14 on six chips, fp8 in blocks of 128, at most 16 rows, weights
of 64 MB and more (0.80 to 0.84 on Blackwell, 0.86 to 0.92 on Hopper; aiconfigurator 0.12, tables
gemm_perf).
"""

AHEAD_POWER = 3.0
"""How sharply a prompt takes the longer of the device's time and the host's; see `ahead`."""

TOKEN_SECONDS = 2e-6
"""Seconds per prompt token of a tokenizer, assumed: half a million tokens a second."""


def ahead(device: Quantity, host: Quantity) -> Quantity:
    """Seconds of a step whose kernels the host starts ahead of the device: a launch returns before
    the kernel has run (CUDA C++ Programming Guide, Asynchronous Concurrent Execution), so the
    longer of the two; a little more where they are alike, as some layers wait for either.

    >>> float(ahead(2.0, 0.0)), round(float(ahead(1.0, 1.0)), 2), round(float(ahead(1.0, 3.0)), 2)
    (2.0, 1.26, 3.04)
    """
    longer, shorter = np.maximum(device, host), np.minimum(device, host)
    share = shorter / np.maximum(longer, 1e-12)
    return longer * (1 + share**AHEAD_POWER) ** (1 / AHEAD_POWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """The constants of `ARRIVAL_CONSTANTS`; without sources nothing was measured."""

    equal_wait: Quantity = 0.0
    poll_steps: Quantity = 0.5
    balance_steps: Quantity = 0.0
    pool_wait: Quantity = 0.0
    start_seconds: Quantity = 0.0
    crowd: Quantity = 0.0
    handover_seconds: Quantity = 0.0
    request_seconds: Quantity = 0.0
    program_seconds: Quantity = 0.0
    beside_seconds: Quantity = 0.0
    acceptance: Quantity = 0.7
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConstants:
    """The constants of one engine family, as `ENGINE_CONSTANTS` describes them. `range` is what
    times per output token were measured to be, as shares of the expected ones: 80 % of the runs of
    models that the fit had not seen, on `chips`; `elsewhere` on all others, of which no run is
    known; None where nothing was measured. `streams` and all
    that follow (`COMPILED_ENGINE_CONSTANTS`) are 1 where nothing is known of them. `whole_sums` and
    `dispatch_seconds` as a stack has them. `family` is the engine that a file of constants is of.
    """

    name: str
    kernel_seconds: Quantity
    sequence_seconds: Quantity
    hops: Quantity
    prefill_wait: Quantity
    sources: Mapping[str, str]
    range: tuple[float, float] | None = None
    chips: tuple[str, ...] = ()
    elsewhere: tuple[float, float] | None = None
    arrival: Arrival = field(default_factory=Arrival)
    streams: Quantity = 1.0
    narrow: Quantity = 1.0
    products: Quantity = 1.0
    attention: Quantity = 1.0
    exchanges: Quantity = 1.0
    passes: Quantity = 1.0
    dispatch_seconds: Quantity = 0.0
    experts: Quantity = 1.0
    byte_reads: Quantity = 1.0
    whole_sums: Mapping[str, int] | None = None
    family: str = ""

    def knows(self, chip: str) -> bool:
        """Whether runs on a chip are known, or none on any is asked for."""
        return self.elsewhere is None or chip in self.chips

    def range_on(self, chip: str) -> tuple[float, float] | None:
        """The range of times per output token on a chip."""
        return self.range if self.knows(chip) else self.elsewhere

    @property
    def stack(self) -> Stack:
        """What the pricer needs to know: kernels one after the other, the experts of a layer as one
        of them, elementwise work fused as it is counted."""
        return Stack(
            name=self.name,
            overlap=1.0,
            attention=self.attention,
            launch_seconds=self.kernel_seconds,
            passes=self.passes,
            sources=self.sources,
            hops=self.hops,
            grouped=True,
            dispatch_seconds=self.dispatch_seconds,
            streams=self.streams,
            narrow=self.narrow,
            products=self.products,
            experts=self.experts,
            byte_reads=self.byte_reads,
            exchanges=self.exchanges,
            whole_sums=self.whole_sums,
        )


IDEAL_ENGINE = EngineConstants(
    name="ideal",
    kernel_seconds=0.0,
    sequence_seconds=0.0,
    hops=1.0,
    prefill_wait=0.0,
    sources=dict.fromkeys(ENGINE_CONSTANTS, "by definition: nothing but the chip's own times"),
)
"""No time of its own: the chip's efficiencies alone."""


_ERRORS = _DATA.with_name("serving_errors.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingError:
    """Medians of |predicted / measured - 1| over published runs of one class of models, each
    predicted by a fit that had not seen its model."""

    tpot: float
    ttft: float
    runs: int


FEW_IN_FLIGHT = 100
"""Requests in flight at a server up to which an engine's own range of first tokens is known."""


@dataclass(frozen=True, slots=True)
class FirstTokenClass:
    """Servers whose times to the first token are missed alike: of a family ("" of all), of one pool
    or of two, with few or many requests in flight at each (None: either)."""

    family: str
    pools: bool
    many: bool | None

    @property
    def name(self) -> str:
        """How tables call it."""
        load = {None: "", False: f", at most {FEW_IN_FLIGHT}", True: f", over {FEW_IN_FLIGHT}"}
        pools = "two pools" if self.pools else "one pool"
        return f"{self.family + ', ' if self.family else ''}{pools}{load[self.many]}"

    def any_engine(self) -> "FirstTokenClass":
        return replace(self, family="")

    def any_load(self) -> "FirstTokenClass":
        return replace(self, family="", many=None)

    def holds(self, other: "FirstTokenClass") -> bool:
        """Whether servers of another class are of this one."""
        alike = self.family in ("", other.family) and self.pools == other.pools
        return alike and self.many in (None, other.many)


def first_token_class(family: str, *, pools: bool, in_flight: float) -> FirstTokenClass:
    """The class of servers with so many requests in flight at each."""
    many = in_flight > FEW_IN_FLIGHT
    own = next((one for one in OWN_FIRST_TOKENS if family.startswith(one)), OTHER_FAMILIES)
    return FirstTokenClass("" if pools or many else own, pools, many)


OWN_FIRST_TOKENS = ("vllm", "sglang", "trtllm")
"""Beginnings of the names of families with enough models for ranges of their own."""
OTHER_FAMILIES = "others"
"""All others, one class."""


def first_token_range(kind: FirstTokenClass) -> tuple[float, float]:
    """What times to the first token were measured to be over the predicted ones: 80 % of the runs
    of a class, each predicted by a fit that had not seen its model."""
    found = read_toml(_ERRORS, "the errors of serving")["first_token"][kind.name]
    return found["low"], found["high"]


def serving_error(*, mixture: bool) -> ServingError:
    """That of mixtures of experts, or of dense models."""
    record = read_toml(_ERRORS, "the errors of serving")["mixtures" if mixture else "dense"]
    return ServingError(tpot=record["tpot"], ttft=record["ttft"], runs=record["runs"])


def engine_warning(name: str, flag: str = "--engine vllm") -> list[str]:
    """What a reader of times should know where no engine's own time is in them."""
    if name != IDEAL_ENGINE.name:
        return []
    return [f"no engine overhead is counted (engine ideal); {flag} adds the measured overhead"]


def load_engine(name: str) -> EngineConstants:
    """The engine of that name, or of a file FILE.toml with the table of one engine (`shardwise
    calibrate` writes such files); BadRequest lists the known ones.

    >>> load_engine("ideal").kernel_seconds
    0.0
    """
    if name.endswith(".toml"):
        return _from_file(Path(name))
    table = {**_engines(), **_compiled(), IDEAL_ENGINE.name: IDEAL_ENGINE}
    return entry_of("serving engine", name, table)


def _from_file(path: Path) -> EngineConstants:
    record = read_toml(path, "the engine file")
    tables = {name: table for name, table in record.items() if isinstance(table, dict)}
    if len(tables) != 1:
        raise BadRequest(
            f"'{path}' holds {len(tables)} tables; an engine file has one table, named after the "
            f"engine, with {', '.join(ENGINE_CONSTANTS)}"
        )
    family, table = next(iter(tables.items()))
    return replace(engine_of(str(path), table), family=family)


def engine_names() -> tuple[str, ...]:
    """The engines with fitted constants."""
    return tuple(_engines())


@cache
def _engines() -> Mapping[str, EngineConstants]:
    table = read_toml(_DATA, "the table of engines")
    return {name: engine_of(name, record) for name, record in table.items()}


@cache
def _compiled() -> Mapping[str, EngineConstants]:
    table = read_toml(_COMPILED, "the table of our own engine's constants")
    return {name: compiled_engine(name, record) for name, record in table.items()}


def compiled_engine(name: str, record: Mapping[str, object]) -> EngineConstants:
    """Our own engine from its table of `COMPILED_ENGINE_CONSTANTS`: the device alone, no host."""
    about, bounds = COMPILED_ENGINE_CONSTANTS, _COMPILED_BOUNDS
    values, sources = read_constants(f"engine '{name}'", record, about, bounds)
    ideal = {name: getattr(IDEAL_ENGINE, name) for name in ENGINE_CONSTANTS if name not in values}
    return EngineConstants(name=name, sources=sources, whole_sums=whole_sums(), **ideal, **values)


def engine_of(name: str, record: Mapping[str, object]) -> EngineConstants:
    """An engine's constants from its table of {value, source} entries; BadRequest for what is out
    of bounds."""
    values, sources = read_constants(f"engine '{name}'", record, ENGINE_CONSTANTS, ENGINE_BOUNDS)
    measured, told = record.get("range"), record.get("elsewhere")
    return EngineConstants(
        name=name,
        sources=sources,
        range=_range(name, measured),
        chips=tuple(measured.get("chips", ())) if isinstance(measured, Mapping) else (),
        elsewhere=_range(name, told, "elsewhere"),
        arrival=_arrival(name, record.get("arrival")),
        dispatch_seconds=DISPATCH_SECONDS,
        experts=EXPERT_RATE,
        byte_reads=BYTE_READS,
        **values,
    )


def _arrival(name: str, record: object) -> Arrival:
    """The table `arrival` of an engine; half a step of waiting where there is none."""
    if not isinstance(record, Mapping):
        return Arrival()
    whose = f"the arrival of engine '{name}'"
    values, sources = read_constants(whose, record, ARRIVAL_CONSTANTS, ARRIVAL_BOUNDS)
    return Arrival(sources=sources, **values)


def _range(name: str, entry: object, key: str = "range") -> tuple[float, float] | None:
    """Low and high of a {low, high, source} entry."""
    if entry is None:
        return None
    if isinstance(entry, Mapping):
        low, high = entry.get("low"), entry.get("high")
        if not isinstance(low, int | float) or not isinstance(high, int | float):
            low, high = 0.0, 0.0
        if 0.01 <= low <= high <= 100:
            return float(low), float(high)
    raise BadRequest(
        f"'{key}' of engine '{name}' is {shown(entry)}; write {{ low = SHARE, high = SHARE, "
        'source = "WHERE FROM" } with 0.01 <= low <= high <= 100'
    )
