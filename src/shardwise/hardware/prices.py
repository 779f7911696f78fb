"""What a chip costs per hour, from whom, as of when; and the spelling of `--price CHIP=USD`."""

from dataclasses import dataclass

from shardwise.errors import BadRequest


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
        raise BadRequest(f"price '{text}' is not CHIP=USD; write it like --price v5p=4.20")
    return chip.strip(), price_override(dollars, f"price of chip '{chip.strip()}'")


def price_override(dollars: str | float, what: str) -> Price:
    """A user's own price per chip-hour; raises BadRequest unless positive and finite."""
    try:
        usd = float(dollars)
    except (TypeError, ValueError):
        usd = float("nan")
    if not 0 < usd < float("inf"):
        raise BadRequest(f"{what} is '{dollars}'; it must be a positive number of US dollars")
    return Price(
        usd_per_chip_hour=usd,
        as_of="given by the user",
        source="--price",
        kind="override",
        includes_host=True,
    )
