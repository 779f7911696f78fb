"""What a chip costs per hour, from whom, as of when; and the spelling of `--price CHIP=USD`.

A chip's file has the price that an answer takes unless it is told another. `data/prices.csv` lists
what providers ask, on demand and on the spot market: the range that stands beside every sum, and
what `--provider` and `--spot` choose from.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path

from shardwise.boundary import read_table
from shardwise.boundary.numbers import number
from shardwise.boundary.records import hidden
from shardwise.errors import BadRequest, entry_of, shown

LEAST, MOST = 1e-6, 1e6
"""US dollars for one chip for one hour."""

STALE_DAYS = 183
"""A price older than half a year is marked."""

_LIST = Path(__file__).parent / "data" / "prices.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars for one chip for one hour; one without a date and a source is not a price."""

    usd_per_chip_hour: float
    """Dollars per chip and hour."""
    as_of: str
    """Date on which it was asked."""
    source: str
    """Provider, and where it is published."""
    kind: str
    """What is sold: on_demand, spot, override (the user's own) and so on."""
    includes_host: bool
    """Whether the host machine is in it."""
    provider: str = hidden("you")
    """Whose price it is; "you" for one that the user gives."""
    region: str = hidden("")
    """Where; "any" or "" for all of the provider's regions."""
    sku: str = hidden("")
    """The kind of machine, by the provider's name; "" where it is of all."""

    @property
    def offer(self) -> str:
        """Whose price it is, and which of theirs: of a region, or of a kind of machine where it is
        that of all regions. Such as `gcp us-east5` and `runpod secure`."""
        place = "" if self.region == "any" else self.region
        return " ".join(filter(None, (self.provider, place or self.sku)))

    @property
    def listed(self) -> str:
        """The row of a list that it is: provider, region and kind of machine."""
        return " ".join(filter(None, (self.provider, self.region, self.sku)))

    def stale(self, today: date | None = None) -> bool:
        """Whether it is older than half a year."""
        given = _day(self.as_of)
        return given is not None and ((today or date.today()) - given).days > STALE_DAYS

    @property
    def label(self) -> str:
        """Its provider, kind and date: `runpod secure, on demand, 2026-11`."""
        if self.kind == "override":
            return "yours"
        old = ": old" if self.stale() else ""
        return f"{self.offer}, {self.kind.replace('_', ' ')}, {self.as_of[:7]}{old}"

    def __str__(self) -> str:
        """As every answer prints it: `$3.99 per chip-hour (runpod secure, on demand, 2026-11)`."""
        return f"${self.usd_per_chip_hour:.2f} per chip-hour ({self.label})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRange:
    """The cheapest price of the cheapest and of the dearest provider."""

    low: Price
    high: Price
    providers: int

    def __str__(self) -> str:
        """As answers print it, each provider at its cheapest: `$2.69 (runpod community, on demand,
        2026-11) to $12.29 (azure eastus, on demand, 2026-11), 7 providers`."""
        low, high = (f"${p.usd_per_chip_hour:.2f} ({p.label})" for p in (self.low, self.high))
        if self.providers == 1:
            return f"{low}, the only provider"
        return f"{low} to {high}, {self.providers} providers"


def price_range(chip: str, *, spot: bool = False) -> PriceRange | None:
    """The range over providers, each at its cheapest price that is not stale (or at all, where it
    has none); None for a chip that none lists."""
    cheapest = [_fresh(rows) for rows in _providers(chip, spot).values()]
    if not cheapest:
        return None
    ordered = sorted(cheapest, key=lambda price: price.usd_per_chip_hour)
    return PriceRange(low=ordered[0], high=ordered[-1], providers=len(ordered))


def range_beside(chip: str, price: Price | None) -> PriceRange | None:
    """What providers ask beside the price of an answer, of its kind; None for a chip that none
    lists, or whose price is the user's own."""
    if price is not None and price.kind == "override":
        return None
    return price_range(chip, spot=price is not None and price.kind == "spot")


def price_text(chip: str, price: Price | None) -> str:
    """The price that an answer takes, and the range over providers."""
    if price is None:
        return f"none that is public: give one with --price {chip}=USD"
    found = range_beside(chip, price)
    if found is None:
        return str(price)
    return f"{price}; {only_provider(price, found) or f'providers: {found}'}"


def only_provider(price: Price, found: PriceRange) -> str:
    """Words for a price that is all that the range beside it has; else nothing."""
    low = found.low
    same = (low.provider, low.usd_per_chip_hour) == (price.provider, price.usd_per_chip_hour)
    return "the only provider" if found.providers == 1 and same else ""


def as_last_seen(chip: str, price: Price) -> Price:
    """A price as the newest row of the list has it, where its provider asks the same there: of two
    dates at which one price stood an answer says the later one."""
    same = [
        row
        for name, row in _listed()
        if (name, row.provider, row.kind) == (chip, price.provider, price.kind)
        and row.usd_per_chip_hour == price.usd_per_chip_hour
        and row.as_of > str(price.as_of)
    ]
    # Of its own region where that is listed: sorting by whether it is another keeps the order.
    same.sort(key=lambda row: row.offer != price.offer)
    return same[0] if same else price


def listed_price(chip: str, provider: str | None = None, *, spot: bool = False) -> Price:
    """What a provider asks for a chip, or the cheapest one; BadRequest where none is listed."""
    found = _providers(chip, spot)
    kind = "spot price" if spot else "price on demand"
    if not found:
        raise BadRequest(
            f"no {kind} of '{chip}' is listed; give one with --price {chip}=USD, or leave out "
            f"{'--spot' if spot else '--provider'}"
        )
    if provider is None:
        return min(map(_fresh, found.values()), key=lambda price: price.usd_per_chip_hour)
    return _fresh(entry_of("provider", provider, found, f"'{chip}' has no {kind} of it"))


def _fresh(rows: Sequence[Price]) -> Price:
    """The cheapest of one provider, of those that are not stale where there are some."""
    new = [row for row in rows if not row.stale()]
    return min(new or rows, key=lambda price: price.usd_per_chip_hour)


def _providers(chip: str, spot: bool) -> dict[str, list[Price]]:
    found: dict[str, list[Price]] = {}
    for name, price in _listed():
        if name == chip and (price.kind == "spot") == spot:
            found.setdefault(price.provider, []).append(price)
    return found


@cache
def _listed() -> tuple[tuple[str, Price], ...]:
    return tuple(_rows(read_table(_LIST, "the list of prices").rows))


def _rows(rows: Iterable) -> Iterable[tuple[str, Price]]:
    for row in rows:
        undated = "; the list has no date, so as_of is the day it was read"
        price = Price(
            usd_per_chip_hour=float(row["usd_per_chip_hour"]),
            as_of=row["as_of"],
            source=row["source"] + ("" if row["dated"] == "yes" else undated),
            kind=row["kind"],
            includes_host=True,
            provider=row["provider"],
            region=row["region"],
            sku=row["sku"],
        )
        yield row["chip"], replace(price, source=f"{price.listed}: {price.source}")


def _day(text: str) -> date | None:
    """The first day that a date such as 2024-12 may mean; None where it is none."""
    parts = text.split("-")
    if not all(part.isdigit() for part in parts) or len(parts) < 2:
        return None
    return date(int(parts[0]), int(parts[1]), int(parts[2]) if len(parts) > 2 else 1)


def parse_price(text: str) -> tuple[str, Price]:
    """`CHIP=USD` as (chip name, Price); raises BadRequest for any other spelling.

    >>> chip, price = parse_price("v5p=4.2")
    >>> chip, price.usd_per_chip_hour, price.kind
    ('v5p', 4.2, 'override')
    """
    chip, equals, dollars = text.partition("=")
    if not (chip.strip() and equals):
        raise BadRequest(f"price {shown(text)} is not CHIP=USD; write it like --price v5p=4.20")
    return chip.strip(), price_override(dollars, f"price of chip '{chip.strip()}'")


def price_override(dollars: str | float, what: str) -> Price:
    """A user's own price per chip-hour; raises BadRequest unless positive and finite."""
    usd = number(dollars, what, least=LEAST, most=MOST, form="a positive number of US dollars")
    return Price(
        usd_per_chip_hour=usd,
        as_of="given by the user",
        source="--price",
        kind="override",
        includes_host=True,
    )
