"""What a chip costs per hour, from whom, as of when; and the spelling of `--price CHIP=USD`."""

from dataclasses import dataclass

from shardwise.boundary.numbers import number
from shardwise.errors import BadRequest, shown

LEAST, MOST = 1e-6, 1e6
"""US dollars for one chip for one hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars for one chip for one hour.

    `kind` is "on_demand", "spot", "override", ...; `includes_host` says whether the host machine is
    in the price. A price without a date and a source is not a price.
    """

    usd_per_chip_hour: float
    as_of: str
    source: str
    kind: str
    includes_host: bool


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
