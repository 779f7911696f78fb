"""Slices: so many chips of one kind, and how they are spelt.

`COUNT*CHIP:SHAPE`, where SHAPE is what one fast network joins: `v5p:16x20x28`, `h100:8`; COUNT of
them are joined by the data-centre network: `4*v5p:16x16x16`, `128*h100:8`.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from shardwise.errors import BadRequest, Remark
from shardwise.hardware.catalogue import load_chip
from shardwise.hardware.chip import Chip
from shardwise.hardware.cloud_names import cloud_shape, families, split_cloud_name
from shardwise.hardware.network import Alone, FullMesh, Switched, Torus
from shardwise.hardware.shapes import (
    Shape,
    is_legal,
    legal_shapes,
    nearest_shapes,
    rule_text,
    shape_text,
    shapes_with,
    wraps,
)
from shardwise.units import many

GRAMMAR = (
    "COUNT*CHIP:SHAPE, for example 'v5p:16x20x28', 'v5e:4x4', '4*v5p:16x16x16', 'h100:8', "
    "'128*h100:8', or a Cloud TPU name such as 'v5p-128'"
)
_MOST_CHIPS = 10_000_000
"""A larger slice is refused as a typing mistake."""
_SPELLING = re.compile(r"(?:(?P<count>[+-]?\d{1,12})\*)?(?P<chip>[^:*]+?)(?::(?P<shape>[^:*]*))?")
_TYPED = re.compile(
    r"(?:(?P<before>\d{1,7}) ?[x*] ?)?(?P<chip>[a-z][^:*]*?)(?: ?[x-] ?(?P<after>\d{1,7}))?",
    re.IGNORECASE,
)
"""A number of chips without a colon: `h100x8`, `8xh100`, `8*h100`, `mi300x-8`."""
_SHAPE = re.compile(r"\d{1,9}(?:x\d{1,9})*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """`count` fast networks of `shape` chips each; the shape of a switched domain is (chips,).

    Raises BadRequest for a shape that the generation does not have.
    """

    chip: Chip
    count: int
    shape: Shape

    def __post_init__(self) -> None:
        if self.count < 1:
            raise BadRequest(
                f"slice count {self.count} of {self.chip.id}: a count is 1 or more, as in "
                f"'2*{self.chip.id}:{shape_text(self.shape)}'"
            )
        _check_shape(self.chip, self.shape)
        if self.chips > _MOST_CHIPS:
            raise BadRequest(
                f"slice '{self}' has {self.chips:,} chips; at most {_MOST_CHIPS:,} make sense"
            )

    def __str__(self) -> str:
        times = f"{self.count}*" if self.count > 1 else ""
        return f"{times}{self.chip.id}:{shape_text(self.shape)}"

    @property
    def chips_each(self) -> int:
        """Chips that one fast network joins."""
        return math.prod(self.shape)

    @property
    def chips(self) -> int:
        return self.count * self.chips_each

    @property
    def devices(self) -> int:
        """What JAX counts; a chip may be several devices."""
        return self.chips * self.chip.jax_devices_per_chip

    @property
    def chips_text(self) -> str:
        """How many chips, and where a mesh counts more devices than chips, how many each has."""
        each = self.chip.jax_devices_per_chip
        return many(self.chips, "chip") + (f" of {each} devices" if each > 1 else "")

    @property
    def hosts(self) -> int:
        return self.count * math.ceil(self.chips_each / self.chip.chips_per_host)

    @property
    def cores(self) -> int:
        return self.chips * self.chip.cores

    @property
    def wraps(self) -> tuple[bool, ...]:
        """For each axis of the shape, whether it closes into a ring; a switch has no rings."""
        if isinstance(self.chip.network, Torus):
            return wraps(self.chip.network, self.shape)
        return (False,) * len(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """A slice as it was written, with notes on whatever the text left open."""

    text: str
    slice: Slice
    notes: tuple[str, ...]


def parse_slice(text: str, load: Callable[[str], Chip] = load_chip) -> Slice:
    """The slice that a text names; `load` finds the chip. See GRAMMAR.

    >>> str(parse_slice("h100:1024"))
    '128*h100:8'
    """
    return read_slice(text, load).slice


def read_slice(text: str, load: Callable[[str], Chip] = load_chip) -> Spelling:
    """As `parse_slice`, with notes to show: what a Cloud name or a short form was taken to mean."""
    if (typed := _typed(text, load)) is not None:
        return typed
    count, name, shape = _split(text)
    cloud = split_cloud_name(name)
    if shape is None and cloud is not None:
        return _from_cloud_name(text, count, cloud, load)
    chip = load(name)
    if shape is None:
        raise BadRequest(
            f"slice '{text}' has no shape; write {_examples(chip)} (the form is {GRAMMAR})"
        )
    if isinstance(chip.network, Torus):
        return Spelling(text=text, slice=Slice(chip=chip, count=count or 1, shape=shape), notes=())
    return _from_domain(text, count, chip, shape)


def read_target(text: str, load: Callable[[str], Chip] = load_chip) -> Chip | Spelling:
    """A bare chip ("search its slices") or a spelt slice."""
    if (typed := _typed(text, load)) is not None:
        return typed
    count, name, shape = _split(text)
    if shape is None and count is None and split_cloud_name(name) is None:
        return load(name)
    return read_slice(text, load)


def _typed(text: str, load: Callable[[str], Chip]) -> Spelling | None:
    """A slice of so many chips that is not spelt as in GRAMMAR, or None. A torus has the only shape
    of that many chips, or the spellings of all of them are in the complaint.

    >>> str(_typed("8xh100", load_chip).slice), str(_typed("tpu-v5e-16", load_chip).slice)
    ('h100:8', 'v5e:4x4')
    """
    word = text.strip()
    cloud = word.lower().removeprefix("tpu-")
    if cloud != word.lower() and split_cloud_name(cloud) is not None:
        return read_slice(cloud, load)
    match = _TYPED.fullmatch(word)
    if match is None or (match["before"] is None) == (match["after"] is None):
        return None
    if split_cloud_name(word) is not None or _loaded(word, load) is not None:
        return None
    chip, chips = _loaded(match["chip"], load), int(match["before"] or match["after"])
    if chip is None or not chips:
        return None
    shape = _only_shape(word, chip, chips) if isinstance(chip.network, Torus) else (chips,)
    piece = read_slice(f"{chip.id}:{shape_text(shape)}", load).slice
    return Spelling(text=text, slice=piece, notes=(Remark(f"{word} is read as {piece}"),))


def _loaded(name: str, load: Callable[[str], Chip]) -> Chip | None:
    try:
        return load(name)
    except BadRequest:
        return None


def _only_shape(text: str, chip: Chip, chips: int) -> Shape:
    assert isinstance(chip.network, Torus)
    shapes = shapes_with(chip.network, chips)
    if len(shapes) == 1:
        return shapes[0]
    near = shapes or nearest_shapes(chip.network, (chips,))
    spelt = " or ".join(f"'{chip.id}:{shape_text(shape)}'" for shape in near)
    raise BadRequest(f"slice '{text}' gives the number of chips and no shape; write {spelt}")


def slices_of(chip: Chip, domains: int = 1) -> tuple[Slice, ...]:
    """Slices to choose from, smallest first.

    A torus gives the most cube-like legal shape of each number of chips. A switched chip gives
    1, 2, 4, ... chips of a domain, the whole domain, then 2, 4, ... domains up to `domains`.
    """
    if isinstance(chip.network, Torus):
        by_size: dict[int, Shape] = {}
        for shape in legal_shapes(chip.network):
            by_size.setdefault(math.prod(shape), shape)
        return tuple(Slice(chip=chip, count=1, shape=shape) for shape in by_size.values())
    domain = domain_of(chip)
    inner = [Slice(chip=chip, count=1, shape=(n,)) for n in (*_powers(domain - 1), domain)]
    outer = [Slice(chip=chip, count=n, shape=(domain,)) for n in _powers(domains) if n > 1]
    return tuple(inner + outer)


def enough(chip: Chip, chips: int) -> str:
    """What to do for at least `chips` chips: the smallest slice to choose that has them.

    Where one fast network is too small and the catalogue has nothing that joins several, says how
    many chips can be used at most. Several networks come in powers of two, which meshes divide.

    >>> from shardwise.hardware import load_chip
    >>> enough(load_chip("v5e"), 300), enough(load_chip("h100"), 30)
    ('use 2*v5e:16x16 (512 chips) or more', 'use 4*h100:8 (32 chips) or more')
    """
    inside = slices_of(chip)
    largest = inside[-1]
    count = 2 ** (math.ceil(chips / largest.chips) - 1).bit_length()
    if count > 1 and chip.data_centre is None:
        return (
            f"{chip.id} can be used up to {largest} ({many(largest.chips, 'chip')}), because the "
            "catalogue has no network between them: use another chip, or give "
            f"--set chip.data_centre.chip_oneway=NUMBER --set chip.data_centre.hop_seconds=NUMBER"
        )
    if count * largest.chips > _MOST_CHIPS:
        return f"the model needs more than {_MOST_CHIPS:,} chips of {chip.id}: use a smaller model"
    joined = Slice(chip=chip, count=count, shape=largest.shape)
    piece = next((s for s in inside if s.chips >= chips), joined)
    return f"use {piece} ({many(piece.chips, 'chip')}) or more"


def domain_of(chip: Chip) -> int:
    """The most chips that one fast network joins: a torus pod, an NVLink domain, a mesh."""
    if isinstance(chip.network, Torus):
        return math.prod(chip.network.pod)
    return 1 if isinstance(chip.network, Alone) else chip.network.domain


def describe(piece: Slice) -> str:
    """What a slice is, in one line: chips, cores, JAX devices, hosts and which axes wrap."""
    kind = piece.chip.core_kind
    return (
        f"{piece} = {many(piece.chips, 'chip')}, {many(piece.cores, kind)}, "
        f"{many(piece.devices, 'JAX device')}, {many(piece.hosts, 'host')}, {_wrap_text(piece)}"
    )


def _wrap_text(piece: Slice) -> str:
    if not isinstance(piece.chip.network, Torus):
        network = piece.chip.network
        joined = "full mesh" if isinstance(network, FullMesh) else "switched"
        if isinstance(network, Switched) and network.cards:
            joined = "PCIe"
        return joined if piece.chips_each > 1 else "no fast network in use"
    closed = "".join(axis for axis, ring in zip("xyz", piece.wraps, strict=False) if ring)
    return f"wraps {closed}" if closed else "no axis wraps"


def _split(text: str) -> tuple[int | None, str, Shape | None]:
    match = _SPELLING.fullmatch(text.strip())
    shape = match["shape"].strip() if match and match["shape"] is not None else None
    if match is None or (shape is not None and not _SHAPE.fullmatch(shape)):
        raise BadRequest(f"slice '{text}' is not of the form {GRAMMAR}")
    sizes = tuple(map(int, re.split("[xX]", shape))) if shape is not None else None
    count = int(match["count"]) if match["count"] else None
    if count is not None and count < 1:
        raise BadRequest(f"slice '{text}': the count {count} must be 1 or more")
    if sizes is not None and 0 in sizes:
        raise BadRequest(f"slice '{text}': a size of 0 is not a slice; every size is 1 or more")
    return count, match["chip"].strip(), sizes


def _from_cloud_name(
    text: str, count: int | None, cloud: tuple[str, int], load: Callable[[str], Chip]
) -> Spelling:
    family, number = cloud
    chip = load(families()[family].chip)
    assert isinstance(chip.network, Torus), f"{chip.id} has Cloud names but no torus"
    shape, note = cloud_shape(family, number, chip.network)
    piece = Slice(chip=chip, count=count or 1, shape=shape)
    return Spelling(text=text, slice=piece, notes=(Remark(note),))


def _from_domain(text: str, count: int | None, chip: Chip, shape: Shape) -> Spelling:
    """`h100:1024` is short for `128*h100:8`; with a count the number must fit one domain."""
    domain = domain_of(chip)
    if len(shape) > 1:
        raise BadRequest(
            f"slice '{text}': {chip.id} is switched, not a torus, so its shape is the number of "
            f"chips; write {_spellings(chip, (count or 1) * math.prod(shape))}"
        )
    chips = math.prod(shape)
    if chips <= domain:
        return Spelling(text=text, slice=Slice(chip=chip, count=count or 1, shape=shape), notes=())
    if count is None and chips % domain == 0:
        piece = Slice(chip=chip, count=chips // domain, shape=(domain,))
        return Spelling(text=text, slice=piece, notes=(Remark(f"{text} is short for {piece}"),))
    rule = f"{chip.id} joins at most {domain} chips in one domain"
    if count is None:
        rule += f" and {chips} is not a multiple of {domain}"
    raise BadRequest(f"slice '{text}': {rule}; write {_spellings(chip, (count or 1) * chips)}")


def _spellings(chip: Chip, chips: int) -> str:
    """Ways to write about that many switched chips: exactly, then whole domains around it."""
    domain = domain_of(chip)
    fewest = next(n for n in range(math.ceil(chips / domain), chips + 1) if chips % n == 0)
    whole = {max(1, chips // domain), math.ceil(chips / domain)}
    options = [(fewest, chips // fewest)] + [(n, domain) for n in sorted(whole)]
    texts = [f"'{n}*{chip.id}:{size}'" if n > 1 else f"'{chip.id}:{size}'" for n, size in options]
    return " or ".join(dict.fromkeys(texts))


def _check_shape(chip: Chip, shape: Shape) -> None:
    network = chip.network
    if isinstance(network, Torus):
        if not is_legal(network, shape):
            near = ", ".join(f"'{chip.id}:{shape_text(s)}'" for s in nearest_shapes(network, shape))
            raise BadRequest(
                f"'{chip.id}:{shape_text(shape)}' is not a slice of {chip.id}, whose slices are "
                f"{rule_text(network)}; nearest: {near}"
            )
    elif len(shape) != 1 or not 1 <= shape[0] <= domain_of(chip):
        raise BadRequest(
            f"'{chip.id}:{shape_text(shape)}' is not a slice of {chip.id}, which joins 1 to "
            f"{domain_of(chip)} chips in one domain"
        )


def _examples(chip: Chip) -> str:
    """Two spellings of slices of this chip."""
    some = slices_of(chip, domains=2)
    return " or ".join(dict.fromkeys(f"'{s}'" for s in (some[len(some) // 2], some[-1])))


def _powers(most: int) -> list[int]:
    """1, 2, 4, ... up to `most`."""
    return [2**i for i in range(max(most, 0).bit_length())]
