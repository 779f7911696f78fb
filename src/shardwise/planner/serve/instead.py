"""What else would serve a load: fewer or more chips, other dtypes, pools and chips, as rows; and
the front of speed and cost.

Rows are what short runs say (`simulated`, quick), of other chips checked by full ones; one server
less and one more are searched as `simulate --find-rate` does. Points of the front are closed forms,
corrected by what the simulation made of the answer's own. Each row names the options of the command
that simulates it in full.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import ceil, inf

from shardwise.errors import NoFeasiblePlan
from shardwise.hardware import Chip, Slice
from shardwise.models import params_text
from shardwise.models.components import CORE
from shardwise.models.flops import flops_by_component
from shardwise.planner.serve.choices import candidate_slices, parts_of, smaller_dtypes
from shardwise.planner.serve.fleet import Fleet, FleetSearch, ranked, search_fleets, trade_off
from shardwise.planner.serve.memory import stored_bytes
from shardwise.planner.serve.replica import averaged, fleet_of
from shardwise.planner.serve.request import ServeRequest
from shardwise.planner.serve.served import (
    Served,
    Serving,
    confirmed,
    contender,
    more_servers,
    simulated,
)
from shardwise.planner.simulate.rates import briefly, rate_from
from shardwise.planner.simulate.steady import hold
from shardwise.plans.serve import CHECKPOINT, ServeDtypes
from shardwise.units import sig

MOST_CORRECTION = 1.25
"""By which a closed form is corrected at most; beyond it another plan is no guide (ours)."""

_SURE = 1.25
"""What short runs hold beyond a rate for it to hold in full ones: over these they promise less than
1.255 times as much in 19 of 20 (docs/lab/page.md)."""

_OTHER_CHIPS = 2
"""At most this many other chips are suggested, cheapest first."""
CHANGES = "changes answers"
"""The note of a row whose dtypes a model's answers depend on."""
SIMULATE = "simulate "
"""What the option of a row begins with that simulates the answer's plan, whose file comes next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another way to serve: `name` says in what it differs, `note` what to know of it, `option`
    what to type for it: options of `plan serve` to change, or a `simulate` of the answer's plan.
    Times in seconds; None where they are the answer's own. Dollars are at the price of `provider`.
    """

    name: str
    note: str
    option: str
    servers: str
    chips: int
    rate: float
    usd_per_hour: float | None
    usd_per_million: float | None
    provider: str | None
    ttft: float | None = None
    tpot: float | None = None


def alternatives(serving: Serving, others: Sequence[Chip]) -> list[Alternative]:
    """The rows, those that there are; `others` are chips to compare with."""
    if serving.request.prefill_pieces:  # of two chips, of which a row has one price
        return []
    found = [*_fewer_and_more(serving)]
    request, chip = serving.request, serving.served.piece.chip
    changed: list[Alternative] = []
    small = smaller_dtypes(request.software, request.cfg, chip)
    if small is not None and small != request.dtypes[0]:
        option = "" if small.weights == CHECKPOINT else f"--weights {small.weights} "
        option += f"--kv {small.kv}"
        changed += _searched(serving, replace(request, dtypes=(small,)),
                             _dtypes_text(small, request), CHANGES, option)  # fmt: skip
    if request.pools == "one" and chip.data_centre is not None:
        apart = replace(request, pools="two", fill=False, max_chips=inf, rate=serving.served.rate)
        option = f"--pools two{_anywhere(serving, chip)}"
        changed += _searched(serving, apart, "separate prefill", "--pools two", option)
    this = answer_row(serving)
    found += [row for row in changed if _brings(row, this)]
    found += _on_others(serving, others)
    return found


def _brings(row: Alternative, this: Alternative) -> bool:
    """Whether a row serves more than the answer, costs less for each request, or is faster."""
    price, own = (
        (one.chips if one.usd_per_hour is None else one.usd_per_hour) / one.rate
        for one in (row, this)
    )
    more = row.rate > (1 + _ALIKE) * this.rate or price < (1 - _ALIKE) * own
    return more or faster(row.tpot, this.tpot) or faster(row.ttft, this.ttft)


def faster(seconds: float | None, own: float | None) -> bool:
    """Whether a time is shorter than the answer's, by more than short runs leave open."""
    return seconds is not None and own is not None and seconds < FASTER * own


FASTER = 0.9
"""Share of the answer's time below which short runs tell that a row is faster (ours)."""
_ALIKE = 0.01
"""Rates and prices that are so near are one number to a reader."""


def _anywhere(serving: Serving, chip: Chip) -> str:
    """The options that take the answer's load to any servers of a chip."""
    request = serving.request
    other = chip.id != serving.served.piece.chip.id
    place = f" --on {chip.id}" if other or request.fill else ""
    return place + ("" if request.rate else f" --rate {sig(serving.served.rate)}")


def correction(serving: Serving) -> float:
    """What a chip answers in the simulation, over the closed form's."""
    served, fleet = serving.served, serving.fleet
    chips = served.chips * fleet.chips / fleet.chips_with(serving.request.spare)
    found = (served.rate / chips) / (fleet.rate / fleet.chips)
    return min(max(found, 1 / MOST_CORRECTION), MOST_CORRECTION)


def _searched(
    serving: Serving, request: ServeRequest, name: str, note: str, option: str
) -> Iterator[Alternative]:
    """The cheapest fleet of a changed request by short runs, if any keeps the targets."""
    searched = _search(request)
    found = None
    if searched is not None:
        found, _ = simulated(searched, serving.served.demand, quick=True)
    if found is not None:
        yield _simulated_row(*found, name, note, option)


def _search(request: ServeRequest) -> FleetSearch | None:
    """The closed forms of a request; None where nothing fits."""
    try:
        searched = search_fleets(request)
    except NoFeasiblePlan:
        return None
    return searched if searched.grids else None


def _checked(found: Served) -> Served:
    """Servers that short runs found, by full ones where they are near their edge; with as many more
    as these ask for, which nothing simulates, where they do not hold."""
    fleet = averaged(fleet_of(found.plan.worst, found.cfg, found.piece, found.prefill_piece))
    demand, rate, goal = found.demand, found.rate, found.held.goal
    if briefly(fleet, demand, _SURE * rate, goal).kept:
        return found
    held = hold(fleet, demand, rate, goal)
    if held.kept:
        return replace(found, held=held)
    return replace(found, plan=more_servers(found.plan, held, goal))


def _simulated_row(served: Served, fleet: Fleet, name: str, note: str, option: str) -> Alternative:
    """A row of what was simulated."""
    ttft, tpot, _ = served.held.times
    return Alternative(
        name=name,
        note=note,
        option=option,
        servers=str(fleet),
        chips=served.chips,
        rate=served.rate,
        usd_per_hour=served.usd_per_hour,
        usd_per_million=served.usd_per_million["all"],
        provider=served.piece.chip.price and served.piece.chip.price.provider,
        ttft=ttft,
        tpot=tpot,
    )


def _fewer_and_more(serving: Serving) -> Iterator[Alternative]:
    """The same on fewer and on more chips: what those hold."""
    request, served = serving.request, serving.served
    if request.rate:
        yield from _replicas(serving, fewer=True)
    elif request.fill:
        whole = request.pieces[-1]
        half = served.chips // 2
        for name, chips, option in (
            ("fewer", half, f"--max-chips {half}"),
            ("more", 2 * served.chips, _room(whole, 2 * served.chips)),
        ):
            pieces = tuple(p for p in _parts(whole, name) if p.chips <= chips)
            if pieces and chips:
                asked = replace(request.on(pieces), max_chips=chips)
                yield from _searched(serving, asked, name, "", option)
    else:
        good = ranked(serving.searched, request.within)
        fewer = [fleet for fleet in good if fleet.chips < served.chips]
        if fewer and fewer[0].meets(request.within):
            one = contender(request, fewer[0], served.demand)
            found = one and confirmed(one, served.demand, quick=True)
            if found:
                option = f"--max-chips {fewer[0].chips}"
                yield _simulated_row(found, fewer[0], "fewer", "", option)
        yield from _replicas(serving, fewer=False)


def _parts(whole: Slice, name: str) -> tuple[Slice, ...]:
    """What servers of fewer or more chips may lie on: with more, also across two of the slice."""
    several = name == "more" and whole.chip.data_centre is not None
    return parts_of(replace(whole, count=2 * whole.count) if several else whole)


def _room(whole: Slice, chips: int) -> str:
    """The options that give servers so many chips, where `whole` is what was asked for.

    >>> from shardwise.hardware import load_chip
    >>> whole = Slice(chip=load_chip("h100"), count=1, shape=(8,))
    >>> [_room(whole, chips) for chips in (8, 12, 16)]
    ['--max-chips 8', '--on 2*h100:8 --max-chips 12', '--on 2*h100:8']
    """
    twice = replace(whole, count=2 * whole.count)
    if chips <= whole.chips:
        return f"--max-chips {chips}"
    return f"--on {twice}" + (f" --max-chips {chips}" if chips < twice.chips else "")


def _replicas(serving: Serving, *, fewer: bool) -> Iterator[Alternative]:
    """One server less and one more: what they hold. One less did not hold the rate, whatever a
    search says that tries others."""
    served = serving.served
    plan, each = served.plan, served.chips // max(served.plan.replicas, 1)
    if plan.prefill_replicas:
        return
    price, demand = served.piece.chip.price, served.demand
    sizes = (("fewer", plan.replicas - 1 if fewer else 0), ("more", plan.replicas + 1))
    spare = serving.request.spare
    whole = fleet_of(plan, served.cfg, served.piece, served.prefill_piece)
    for name, replicas in sizes:
        chips, rate = each * replicas, 0.0
        if replicas > spare:
            fleet = replace(whole, pool=replace(whole.pool, replicas=replicas - spare))
            held = rate_from(fleet, demand, served.held.goal, served.rate)
            rate = 0.0 if held is None else held.rate
            rate = min(rate, _LESS * served.rate) if name == "fewer" else rate
        if rate:
            hour = None if price is None else chips * price.usd_per_chip_hour
            tokens = rate * 3600 * (demand.prompt + demand.output)
            yield Alternative(
                name=name,
                note=f"holds about {sig(rate)}/s",
                option=f"{SIMULATE}--set replicas={replicas} --find-rate",
                servers=f"{replicas:,} x {plan.slice}",
                chips=chips,
                rate=rate,
                usd_per_hour=hour,
                usd_per_million=None if hour is None else 1e6 * hour / tokens,
                provider=price and price.provider,
            )


_LESS = 0.98
"""Share of the rate that one server less is said to hold, at most."""


def _on_others(serving: Serving, others: Sequence[Chip]) -> list[Alternative]:
    """The cheapest on the other chips that compute in the same dtypes, for the same load; cards
    without peer-to-peer are suggested to those who have such cards. Chips are searched from the one
    that costs least by its weights and FLOPs. Those cheapest by closed forms are simulated."""
    own, rate = serving.served.piece.chip, serving.served.rate
    wanted = {dtypes.compute for dtypes in serving.request.dtypes}
    alike = [
        chip
        for chip in filter(serving.request.software.runs_on, others)
        if wanted <= {*chip.peak_flops} and (own.through_host or not chip.through_host)
    ]
    found: list[tuple[float, int, FleetSearch]] = []
    for least, place in sorted((_least_usd(serving, chip), i) for i, chip in enumerate(alike)):
        if len(found) >= _OTHER_CHIPS and least > sorted(found)[_OTHER_CHIPS - 1][0]:
            break
        request = serving.request.on(candidate_slices(alike[place]))
        searched = _search(replace(request, fill=False, max_chips=inf, rate=rate))
        if searched is not None:
            found.append((_usd_per_hour(searched.best), place, searched))
    rows = (_row_of(serving, alike[place], searched) for _, place, searched in sorted(found))
    cheapest = islice((row for row in rows if row is not None), _OTHER_CHIPS)
    return sorted(cheapest, key=lambda row: row.usd_per_hour or inf)


def _usd_per_hour(fleet: Fleet) -> float:
    """Dollars per hour by closed forms; endless without a price."""
    price = fleet.piece.chip.price
    return inf if price is None else fleet.chips * price.usd_per_chip_hour


def _row_of(serving: Serving, chip: Chip, searched: FleetSearch) -> Alternative | None:
    """The row of another chip by short runs; None where these find no servers that hold."""
    found, _ = simulated(searched, serving.served.demand, quick=True)
    if found is None:
        return None
    option = _anywhere(serving, chip).strip()
    return _simulated_row(_checked(found[0]), found[1], chip.id, "", option)


def _least_usd(serving: Serving, chip: Chip) -> float:
    """Dollars per hour of chips that hold the weights and multiply at their peak, and no more;
    endless without a price."""
    if chip.price is None:
        return inf
    memory = max(chip.hbm_bytes or 0.0, chip.hbm_usable_bytes or 0.0)
    weights = min(map(partial(stored_bytes, serving.request.cfg), serving.request.dtypes))
    chips = weights / memory if memory else 1.0
    chips = max(chips, _least_flops(serving) / _peak(serving.request, chip))
    return ceil(chips) * chip.price.usd_per_chip_hour


_WIDE = 1.9
"""Bytes per parameter above which all but a few weights multiply in the dtype of activations."""


def _peak(request: ServeRequest, chip: Chip) -> float:
    """FLOP/s of a chip that no server exceeds: of weights of few bytes those of any dtype."""
    stored = min(map(partial(stored_bytes, request.cfg), request.dtypes))
    if stored <= _WIDE * params_text(request.cfg):
        return max(chip.peak_flops.values())
    return max(chip.peak_flops[dtypes.compute] for dtypes in request.dtypes)


def _least_flops(serving: Serving) -> float:
    """FLOP/s that the load takes of any servers: each token of a prompt, and of an answer but for
    the last, goes through all layers once; logits and attention are not counted."""
    demand, found = serving.served.demand, flops_by_component(serving.request.cfg, 1.0)
    each = sum(float(n) for name, n in found.items() if name not in ("lm_head", "mtp", CORE))
    return serving.served.rate * (demand.fresh + demand.output - 1) * each


def _dtypes_text(small: ServeDtypes, request: ServeRequest) -> str:
    """What is smaller than the request's."""
    now = request.dtypes[0]
    parts = ("weights", small.weights, now.weights), ("cache", small.kv, now.kv)
    changed = [(what, new) for what, new, old in parts if new != old]
    names = {new for _, new in changed}
    if len(changed) == 2 and len(names) == 1:
        return names.pop()
    return ", ".join(f"{new} {what}" for what, new in changed)


def serving_front(serving: Serving) -> list[Alternative]:
    """The front of time per output token and cost within the targets: the answer as simulated, and
    closed forms that neither beat it, as the simulation refutes those, nor are beaten."""
    served, request = serving.served, serving.request
    if request.prefill_pieces:
        return [answer_row(serving)]
    factor, tpot = correction(serving), served.held.times[1]
    cost = served.chips / served.rate
    points = [
        fleet
        for fleet in trade_off(serving.searched, request.within)
        if fleet.meets(request.within)
        and fleet.tpot < tpot
        and fleet.chips / (fleet.rate * factor) > cost
    ]
    rows = [_closed_row(serving, fleet, fleet.rate * factor) for fleet in points]
    return [*rows, answer_row(serving)]


def _closed_row(serving: Serving, fleet: Fleet, rate: float) -> Alternative:
    """A row of a closed form."""
    price, demand = fleet.piece.chip.price, serving.served.demand
    chips = fleet.chips_with(serving.request.spare)
    hour = None if price is None else chips * price.usd_per_chip_hour
    tokens = rate * 3600 * (demand.prompt + demand.output)
    return Alternative(
        name="",
        note="",
        option="",
        servers=str(fleet),
        chips=chips,
        rate=rate,
        usd_per_hour=hour,
        usd_per_million=None if hour is None else 1e6 * hour / tokens,
        provider=price and price.provider,
        ttft=fleet.ttft,
        tpot=fleet.tpot,
    )


def answer_row(serving: Serving) -> Alternative:
    """The answer itself, beside the others."""
    return _simulated_row(serving.served, serving.fleet, "this", "", "")
