"""From the words of a request to values: chip constants, slices, batches, utilisation."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shardwise.boundary import number
from shardwise.boundary import whole as read_whole
from shardwise.boundary.arguments import once
from shardwise.boundary.numbers import MOST_WHOLE
from shardwise.boundary.options import Option, option, several, switch
from shardwise.errors import BadRequest, check_known, shown, unknown
from shardwise.hardware import (
    Chip,
    Slice,
    Spelling,
    load_chip,
    parse_price,
    read_slice,
    read_target,
)
from shardwise.hardware.cloud_names import families, split_cloud_name
from shardwise.hardware.names import resolve_chip
from shardwise.hardware.prices import listed_price
from shardwise.plans import MESH_AXES, ServePlan, TrainPlan
from shardwise.plans.chip_changes import AS_LISTED, ChipChanges
from shardwise.plans.train import CHOICES
from shardwise.roofline.evidence import OwnRuns
from shardwise.units import parse_count

Words = str | Path | Sequence[str | Path | int] | Mapping[str, object]
"""What may be given several times: one text, several, or a mapping for texts NAME=VALUE."""


def words(given: Words) -> tuple[str, ...]:
    """The texts, as the command line has them.

    >>> words({"tensor": 8}), words("tensor=8"), words(["tensor=8"])
    (('tensor=8',), ('tensor=8',), ('tensor=8',))
    """
    if isinstance(given, Mapping):
        return tuple(f"{name}={value}" for name, value in given.items())
    return (str(given),) if isinstance(given, str | Path) else tuple(map(str, given))


def pairs(given: Words, flag: str, form: str, like: str) -> dict[str, str]:
    """Texts NAME=VALUE as names and values; messages say the `form` and an example, `like`."""
    found = []
    for text in words(given):
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BadRequest(f"{flag} {shown(text)} is not {form}; write it like {flag} {like}")
        found.append((name, value))
    return once(found, flag)


def compiler_options(given: Words) -> dict[str, str | int | float]:
    """Options of a compiler by name; texts that are numbers are numbers, as XLA takes no others.

    >>> compiler_options(["xla_a=true", "exec_time_optimization_effort=-1.0", "xla_b=8"])
    {'xla_a': 'true', 'exec_time_optimization_effort': -1.0, 'xla_b': 8}
    >>> compiler_options(["--xla_a=true"])
    {'xla_a': 'true'}
    """
    texts = pairs(given, "--option", "NAME=VALUE", "xla_flag=true")
    return numbers(once(((n.removeprefix("--"), text) for n, text in texts.items()), "--option"))


def numbers(options: Mapping[str, str]) -> dict[str, str | int | float]:
    """The same options, texts that are numbers as numbers."""
    return {name: _as_number(text) for name, text in options.items()}


def _as_number(text: str) -> str | int | float:
    if re.fullmatch(r"[-+]?[0-9]+", text):
        return int(text)
    if re.fullmatch(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", text):
        return float(text)
    return text


def plan_changes(sets: Words) -> tuple[dict[str, str], list[str]]:
    """Texts of --set, split into fields of a plan and texts for a chip ("chip." in front)."""
    texts = pairs(sets, "--set", "PATH=VALUE", "remat=block")
    chip = [f"{name}={value}" for name, value in texts.items() if name.startswith("chip.")]
    return {k: v for k, v in texts.items() if not k.startswith("chip.")}, chip


def _of_chips(sets: Sequence[str]) -> Sequence[str]:
    """Texts of --set that change chips alone; BadRequest for a choice of a plan."""
    for text in sets:
        name = text.partition("=")[0].strip()
        if name.partition(".")[0] in CHOICES:
            flag = OPTION_OF.get(name, "")
            give = f"give {flag} {text.partition('=')[2].strip()}, or " if flag else ""
            raise BadRequest(
                f"--set '{text}': '{name}' is a choice of a plan, and this searches plans; {give}"
                f"set it in a plan's file, or with `shardwise plan show FILE --set {text}`"
            )
    return sets


OPTION_OF = {
    "lora_rank": "--lora",
    "lora_targets": "--targets",
    "quantize": "--quantize",
    "optimizer": "--optimizer",
    "remat": "--remat",
    "dtypes.compute": "--dtype",
    "dtypes.param": "--param-dtype",
    "dtypes.grad": "--grad-dtype",
    "dtypes.master": "--master",
    "dtypes.moments": "--moments",
}
"""Options of a search, by the choice of a plan that they fix."""


def check_choice(value: str | None, flag: str, known: Collection[object]) -> None:
    """Raise BadRequest for a choice that is none of the known ones."""
    if value is not None and value not in known:
        raise unknown(f"value of {flag}", value, map(str, known))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """How chips are read: which constants, whose files, and what overrides them. A price of another
    of the `places` that were asked for together is passed over. What a plan's file has `kept` of
    its chips stands where nothing else is said."""

    constants: str = "vendor"
    files: Words = ()
    overrides: Words = ()
    prices: Words = ()
    provider: str | None = None
    spot: bool = False
    places: Words = ()
    kept: ChipChanges = AS_LISTED

    def chip(self, name: str) -> Chip:
        """One chip under these settings."""
        asked = {chip_of(place) for text in words(self.places) for place in text.split(",")}
        others = asked - {chip_of(name)}
        given = [parse_price(text) for text in words(self.prices)]
        once(((chip_of(chip), price.usd_per_chip_hour) for chip, price in given), "--price")
        dollars = {chip: p.usd_per_chip_hour for chip, p in given if chip_of(chip) not in others}
        priced = bool(self.prices) or self.provider is not None or self.spot
        own = {} if priced else {k: v for k, v in self.kept.prices.items() if k == chip_of(name)}
        chip = load_chip(
            name,
            constants=self.constants,
            hw_files=(*self.kept.files, *words(self.files)),
            set_=self._numbers(name),
            prices=dollars or own,
        )
        provider, spot = self.provider, self.spot
        if not priced:
            provider, spot = (None, False) if own else (self.kept.provider or None, self.kept.spot)
        if provider is None and not spot:
            return chip
        if self.prices:
            raise BadRequest("--price says what a chip costs; leave out --provider and --spot")
        return replace(chip, price=listed_price(chip.id, provider, spot=spot))

    def _numbers(self, name: str) -> tuple[str, ...]:
        """What overrides a chip's numbers: those that were kept, and then those given."""
        given = _of_chips(words(self.overrides))
        said = {text.partition("=")[0].strip().removeprefix("chip.") for text in given}
        kept = self.kept.numbers_of(chip_of(name)).items()
        own = (f"{path}={value}" for path, value in kept if path.removeprefix("chip.") not in said)
        return (*own, *given)

    def of_plan(self, plan: TrainPlan | ServePlan) -> "Hardware":
        """The same for the chips of a plan."""
        return replace(self, kept=plan.chips, places=places_of(plan))

    def kept_slice(self, text: str, constants: str | None, kept: ChipChanges) -> Slice:
        """A slice of a plan's file, which may have its own constants and keeps what it changed."""
        constants = self.constants if constants is None else constants
        return replace(self, constants=constants, kept=kept, places=(text,)).slice(text).slice

    def kept_of(self, *places: str) -> ChipChanges:
        """The words that a plan on the slices keeps, so that its file gives equal figures."""
        chips = dict.fromkeys(map(chip_of, places))
        texts = [text.removeprefix("chip.").partition("=") for text in words(self.overrides)]
        numbers = {f"{chip}.{name.strip()}": value for name, _, value in texts for chip in chips}
        dollars = {chip_of(name): price for name, price in map(parse_price, words(self.prices))}
        prices = {c: dollars[c].usd_per_chip_hour for c in chips if c in dollars}
        kept = self.kept
        if self.prices or self.provider is not None or self.spot:
            kept = replace(kept, prices={}, provider=self.provider or "", spot=self.spot)
        return replace(
            kept,
            files=(*kept.files, *words(self.files)),
            numbers={**kept.numbers, **numbers},
            prices={**kept.prices, **prices},
        )

    def target(self, text: str) -> Chip | Spelling:
        """A bare chip (search its slices) or a spelt slice."""
        return read_target(text, self.chip)

    def slice(self, text: str) -> Spelling:
        """A spelt slice."""
        return read_slice(text, self.chip)


def places_of(plan: TrainPlan | ServePlan) -> tuple[str, ...]:
    """The slices of a plan."""
    other = plan.prefill if isinstance(plan, ServePlan) else None
    return (plan.slice,) if other is None else (plan.slice, other.slice)


def chip_of(place: str) -> str:
    """The chip of a slice or a chip's name, as the catalogue calls it where that knows it.

    >>> chip_of("2*v5p:4x4x4"), chip_of("ironwood")
    ('v5p', 'tpu7x')
    """
    name = place.partition(":")[0].rpartition("*")[2].strip()
    cloud = split_cloud_name(name)
    try:
        return families()[cloud[0]].chip if cloud else resolve_chip(name)
    except BadRequest:
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueWords:
    """Keywords of every verb that reads the catalogue. `constants` are the vendor's or the
    "book"'s, `hw_files` add chips."""

    constants: str | None = option(
        "Numbers of the chips: of the vendor, or of the book.",
        default="vendor",
        show_default=True,
        metavar="vendor|book",
        last=True,
        group="The machine",
        meaning="whose numbers for the chips: vendor, or book (nothing is lost); in `book` also "
        "seed, its first edition's",
    )
    hw_files: Words = option(
        "TOML or YAML file that adds or overrides a chip; may be repeated.",
        default=(),
        kind="files",
        flag="--hw",
        metavar="FILE",
        last=True,
        group="The machine",
    )

    @property
    def hardware(self) -> Hardware:
        """The same, to read chips by."""
        return Hardware(
            constants=self.constants or "vendor",
            files=self.hw_files,
            overrides=getattr(self, "chip_sets", ()),
            prices=getattr(self, "prices", ()),
            provider=getattr(self, "provider", None),
            spot=getattr(self, "spot", False),
            places=getattr(self, "on", None) or (),
        )


PLAN_CONSTANTS = Option(
    about="Whose numbers for the chips. Default: the plan's.", metavar="vendor|book", last=True
)
COMPILE_TIMEOUT = Option(
    about="Most seconds to compile one program.  [900]",
    default=900.0,
    kind="number",
    metavar="SECONDS",
    group="The machine",
    meaning="most seconds of a child process, or of a request",
)
COMPILE_FLAGS = Option(
    about="A flag of XLA, such as xla_enable_async_all_gather=true.",
    default=(),
    kind="several",
    flag="--option",
    metavar="NAME=VALUE",
    group="The machine",
)
FAMILY = Option(
    about="Read an unknown config.json as this class or model type.",
    metavar="FAMILY",
    group="What is planned",
)
SENSITIVITY = Option(
    about="Price the same plan with one input changed at a time, to show what the answer depends "
    "on.",
    default=False,
    kind="flag",
    group="Beside the answer",
)
COARSE_ANSWER = Option(
    about="A quick answer only: from fewer choices, or for servers from short runs.",
    default=False,
    kind="flag",
    group="Beside the answer",
)
OWN_RUNS = Option(
    about="A few runs of your own cluster (docs/runs.md), to correct and narrow the prediction.",
    kind="file",
    metavar="RUNS.csv",
    group="Beside the answer",
)
"""Options of several requests."""

Own = str | Path | OwnRuns
"""A table of one's own runs, or what was read of it."""


def own_evidence(given: Own | None, constants: str | None) -> OwnRuns | None:
    """What was read of a table. Raises BadRequest for constants that no run moves."""
    if given is not None and constants == "book":
        raise BadRequest(
            "--evidence corrects predictions with the vendor's constants, and --constants is book, "
            "without derating; leave out one of the two"
        )
    assert not isinstance(given, str | Path), "a verb reads the table"
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipWords(CatalogueWords):
    """Keywords of every verb that prices. `sets` override numbers: {"chip.hbm_bandwidth": 3e12}."""

    sets: Words = several(
        "Override a number, such as chip.hbm_bandwidth=3e12; may be repeated.",
        flag="--set",
        metavar="PATH=VALUE",
        last=True,
        group="The machine",
        meaning="change a number of the plan, of its chip or of a question",
    )

    @property
    def chip_sets(self) -> Words:
        """Those that are about the chip."""
        return self.sets


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareWords(ChipWords):
    """Keywords of every verb that knows dollars: `prices` are those per chip-hour, by chip; without
    them it is the price of the chip's file, that of a `provider`, or one on the `spot` market."""

    prices: Words = several(
        "Dollars per hour of a chip, such as h100=2.5.",
        flag="--price",
        metavar="CHIP=USD",
        last=True,
        group="The machine",
    )
    provider: str | None = option(
        "Provider of the price, such as aws, gcp or runpod.  [default: as in the chip's file, "
        "and every answer names it: gcp for TPUs, often runpod for GPUs]",
        last=True,
        group="The machine",
    )
    spot: bool = switch("Take prices of the spot market.", last=True, group="The machine")


def whole_number(text: str | float, flag: str, *, least: int = 0, most: int = MOST_WHOLE) -> int:
    """A whole number in [least, most], such as 12 or "4k"."""
    return read_whole(text, flag, least=least, most=most, suffix=True)


def parse_total(text: str | float, what: str) -> float:
    """Tokens of a run, or parameters of a model: a count that no run or model exceeds."""
    value = parse_count(text, what)
    if value > MOST_IN_ALL:
        raise BadRequest(f"{what} is {value:g}; at most {MOST_IN_ALL:g} makes sense")
    return value


MOST_IN_ALL = 1e18
"""The most tokens of a run, and parameters of a model, that make sense."""


def parse_part(text: str | float, what: str) -> float:
    """A share below 1, `10%`, 0.1 or 0."""
    value = _share(text, what)
    if not 0 <= value < 1:
        raise BadRequest(
            f"{what} {shown(str(text))} is outside 0..100%; write it like 10%, or 0 for none"
        )
    return value


def _share(text: str | float, what: str) -> float:
    text = str(text)
    try:
        return number(text.removesuffix("%"), what) / (100 if text.endswith("%") else 1)
    except BadRequest:
        raise BadRequest(f"{what} {shown(text)} is not a share; write it like 40% or 0.4") from None


def parse_share(text: str | float, what: str) -> float:
    """A utilisation, `40%` or 0.4, above 0 and at most 1."""
    text = str(text)
    value = _share(text, what)
    if not 1e-9 <= value <= 1:
        raise BadRequest(f"{what} {shown(text)} is outside 0..100%; write it like 40% or 0.4")
    return value


def parse_pins(given: Words) -> dict[str, int]:
    """`tensor=8` pins a mesh degree; several may be given."""
    pins = []
    for text in words(given):
        axis, equals, degree = text.partition("=")
        if not equals or not re.fullmatch(r"0*[1-9][0-9]{0,8}", degree):
            raise BadRequest(f"pin {shown(text)} is not AXIS=DEGREE; write it like --pin tensor=8")
        check_known("mesh axis", axis, MESH_AXES, "axes are named by their role")
        pins.append((axis, int(degree)))
    return once(pins, "--pin")
