"""Servers under a load as a page: which, what they hold, how fast, what they cost."""

from collections.abc import Mapping, Sequence
from math import prod

from shardwise.commands.base.answer import Page, TextTable
from shardwise.commands.base.layout import Fact, Facts, both_ends, shares_text
from shardwise.hardware import Slice
from shardwise.hardware.prices import only_provider, range_beside
from shardwise.planner.serve.answer import mesh_text
from shardwise.planner.serve.instead import CHANGES, SIMULATE, faster
from shardwise.planner.serve.replica import speculation_of
from shardwise.planner.serve.served import Served
from shardwise.planner.serve.shape import SPLIT_AXES
from shardwise.plans.serve import CHECKPOINT, ServePlan
from shardwise.plans.servers import SERVING_SOFTWARE, VLLM
from shardwise.results.served import OtherServers, ServedPlan, ServerMemory
from shardwise.results.server import PricedServer
from shardwise.units import format_seconds, format_seconds_between, format_usd, gib, many, sig


def served_page(served: Served, result: ServedPlan, more: Sequence[Fact] = ()) -> Page:
    """One plan under its load: the load, the servers, what holds, times, memory, cost; and `more`
    that is known of it."""
    yield headline(served, result)
    yield both_ends(f"  {servers_line(served, result)}", runs_in(result))
    step = f"{shares_text(result.where_it_goes)} of a decode step"
    facts = [
        *_speed(result),
        *_guesses(served.plan),
        *_memory(result, served.plan, served.piece.chip.jax_devices_per_chip),
        *more,
        *_cost(served, result),
        Fact("time", step),
    ]
    yield Facts(facts)


def headline(served: Served, result: ServedPlan) -> str:
    """The model, where, and what is asked."""
    goal = served.held.goal
    pairs = (("TTFT", goal.ttft), ("TPOT", goal.tpot), ("E2E", goal.e2el))
    limits = [f"{name} <= {format_seconds(time)}" for name, time in pairs if time < float("inf")]
    if goal.pace < float("inf"):
        limits.append(f"interactivity >= {sig(1 / goal.pace)} tokens/s")
    mean = "" if len(set(served.demand.prompts)) == 1 else "about "
    prefix = served.demand.prefix
    shared = f" ({prefix:,} of them the same)" if prefix else ""
    lengths = f"{mean}{served.demand.prompt:,.0f} in{shared}, {served.demand.output:,.0f} out"
    place = f"{result.model} on {_chips(served)}"
    return ", ".join([place, lengths, *limits])


def _chips(served: Served) -> str:
    """The chips of all servers, of each pool where they are others."""
    chip, other = served.piece.chip.id, served.prefill_piece.chip.id
    if chip == other or not served.prefill_chips:
        return f"{many(served.chips, 'chip')} of {chip}"
    answering = served.chips - served.prefill_chips
    return f"{many(served.prefill_chips, 'chip')} of {other} and {answering:,} of {chip}"


def servers_line(served: Served, result: ServedPlan) -> str:
    """What to run, in a line."""
    said = _pool(result.replicas, served.plan, served.piece)
    if result.prefill_replicas:
        plan = served.plan.prefill_plan
        other = _pool(result.prefill_replicas, plan, served.prefill_piece)
        said = f"{said} that answer, {other} that prefill"
    return f"{said}, --max-num-seqs {result.batch:,}"


def _pool(replicas: int, plan: ServePlan, piece: Slice) -> str:
    """Servers of a pool; chips of the slice that the mesh leaves out are in no count and price."""
    used, place = prod(plan.box), mesh_text(plan.mesh)
    if used < piece.chips_each:
        place += f"; the other {piece.chips_each - used} of {piece.chips_each} chips not paid"
    return f"{many(replicas, 'server')} of {plan.slice} ({place})"


def _guesses(plan: ServePlan) -> list[Fact]:
    found = speculation_of(plan.scheduling)
    if found is None:
        return []
    told = f"{many(found.tokens, 'token')} guessed a step"
    return [Fact("guesses", f"{told}, which yields {sig(found.tokens_per_step)} on average")]


def runs_in(result: ServedPlan) -> str:
    """The software and the dtypes."""
    row = SERVING_SOFTWARE.get(result.software)
    weights = "checkpoint's dtype" if result.weights == CHECKPOINT else result.weights
    return f"{row.title if row else result.software}, {weights}, {result.kv} cache"


def _speed(result: ServedPlan) -> list[Fact]:
    rate, tokens = result.requests_per_second, result.output_tokens_per_second
    said = f"{sig(rate)} requests/s = {tokens:,.0f} tokens/s out"
    share = f"{_percent(result.in_target)} in target"
    spare = result.targets.spare
    lost = f", with {many(spare, 'server')} of each pool lost" if spare else ""
    if spare and not result.prefill_replicas:
        lost = f", with {many(spare, 'server')} lost"
    verdict = Fact("holds", f"{said}{lost} (simulated: {share})", "good")
    if not result.holds:
        why = f"{share} when simulated, but {result.why_not}"
        verdict = Fact("load", f"{said}: DOES NOT HOLD ({why})", "bad")
    times = [f"TTFT {format_seconds(result.ttft_seconds.expected)}"]
    if result.output_tokens > 1:
        times.append(f"TPOT {format_seconds(result.tpot_seconds.expected)}")
    if result.targets.interactivity is not None:
        times.append(f"{sig(result.output_tokens / result.e2e_seconds.expected)} tokens/s a user")
    return [
        verdict,
        Fact("p90", f"{', '.join(times)}: 9 of 10 requests are faster, in 98 of 100 runs"),
        Fact("error", _error(result)),
    ]


def _error(result: ServedPlan) -> str:
    """How far published measurements of such servers lay from what is predicted here."""
    error, tpot = result.typical_error, result.tpot_seconds
    if not error:
        return "unknown: this software was not measured on this chip"
    first, each = (format_seconds_between(of.lower, of.upper) for of in (result.ttft_seconds, tpot))
    return (
        f"typical error {error.ttft:.0%} of TTFT, {error.tpot:.0%} of TPOT; 8 of 10 servers "
        f"of this kind would measure a TTFT of {first}, and a TPOT of {each}"
    )


def _percent(share: float) -> str:
    """A share that is 100 % only where it is.

    >>> _percent(1.0), _percent(0.9996), _percent(0.953)
    ('100 %', '99.9 %', '95.3 %')
    """
    return "100 %" if share >= 1 else f"{int(share * 1000) / 10:.1f} %"


def cache_line(
    found: ServerMemory | PricedServer, length: int, mesh: Mapping[str, int], engine: str
) -> str:
    """The size of a rank's cache, to be held against the log of a server: of vLLM in its words.
    The options of a server are of all its ranks, so that several are named."""
    ranks = prod(mesh.get(axis, 1) for axis in SPLIT_AXES)
    each = f", of each of {ranks} ranks" if ranks > 1 else ""
    tokens, requests = f"{found.line_tokens:,} tokens", f"{found.line_requests:.2f}"
    if not VLLM.is_priced_by(engine):
        return f"{tokens} = {requests} requests of {length:,} tokens{each}"
    return (
        f"GPU KV cache size: {tokens}; Maximum concurrency for {length:,} tokens per request: "
        f"{requests}x{each}"
    )


def _memory(result: ServedPlan, plan: ServePlan, parts_of_chip: int) -> list[Fact]:
    memory, longest = result.memory, plan.input_length + plan.output_length
    kinds = {"weights": memory.weights, "cache": memory.cache, "activations": memory.activations}
    kinds |= {"engine": memory.engine} if memory.engine else {}
    parts = ", ".join(f"{kind} {gib(size)}" for kind, size in kinds.items())
    of = "chip" if parts_of_chip == 1 else f"device ({parts_of_chip} a chip)"
    usable = f"a {of} has {gib(memory.usable)}"
    return [
        Fact("memory", f"{parts}; {usable}, servers may take {memory.share:.0%}"),
        Fact("cache", cache_line(memory, longest, plan.mesh, plan.engine)),
        *([Fact("a sequence", f"keeps {memory.sequence}")] if memory.sequence else []),
    ]


def _cost(served: Served, result: ServedPlan) -> list[Fact]:
    price = served.piece.chip.price
    if price is None:
        hours = result.chip_hours_per_million_tokens
        said = f"per million tokens {sig(hours.input)} chip-hours in, {sig(hours.output)} out"
        return [Fact("cost", f"{said}; no price is known")]
    usd = result.usd_per_million_tokens
    each = f"per million tokens {usd_text(usd.input)} in, {usd_text(usd.output)} out"
    other = served.prefill_piece.chip.price
    two = other is not None and served.prefill_piece.chip.id != served.piece.chip.id
    both = f"{other} and {price}" if two and served.prefill_chips else str(price)
    said = f"${result.usd_per_hour:,.2f}/h; {each}, {usd_text(usd.all)} all; at {both}"
    boxes = result.whole_boxes
    one = result.price_range and not two
    found = range_beside(served.piece.chip.id, price) if one else None
    only = only_provider(price, found) if found else ""
    facts = [Fact("cost", f"{said}; {only}" if only else said)]
    if boxes:
        of = f"in whole boxes of {boxes.chips_per_box}, if a provider rents nothing smaller"
        facts.append(Fact("", f"{of}: {boxes.chips:,} chips, ${boxes.usd_per_hour:,.2f}/h"))
    if found and not only:
        facts.append(Fact("", f"prices: {found}"))
    return facts


def instead_table(rows: Sequence[OtherServers]) -> TextTable:
    """What else would serve."""
    cells = [[_named(row, rows[0]), *_numbers(row), _told(row, rows[0])] for row in rows]
    header = ["alternatives (estimates)", "chips", "req/s", "$/h", "$/M all", "options"]
    return TextTable(header, cells)


def _named(row: OtherServers, first: OtherServers) -> str:
    """The name of a row; where its numbers are the answer's, with the time that it brings."""
    if row is first or _numbers(row) != _numbers(first):
        return row.name
    for what in ("TPOT", "TTFT"):
        seconds, own = (getattr(one, f"{what.lower()}_seconds") for one in (row, first))
        if faster(seconds, own):
            return f"{row.name}: {what} {format_seconds(seconds)}"
    return row.name


def _numbers(row: OtherServers) -> list[str]:
    """The numbers of a row as they are shown."""
    return [
        f"{row.chips:,}",
        sig(row.requests_per_second),
        usd_text(row.usd_per_hour),
        usd_text(row.usd_per_million_tokens),
    ]


def _told(row: OtherServers, first: OtherServers) -> str:
    """What to type for a row, and what to know of it."""
    said = [
        row.option.replace(SIMULATE, f"{SIMULATE}PLAN "),
        *([CHANGES] if row.note == CHANGES else []),
    ]
    if row.provider not in (None, first.provider):
        said.append(f"price of {row.provider}")
    return "; ".join(said)


def usd_text(value: float | None) -> str:
    """Dollars, where there is a price."""
    return "unknown" if value is None else format_usd(value)


def chips_table(rows: Sequence[ServedPlan]) -> Page:
    """A row for each chip: its own best plan, as simulated; and the price of each."""
    cells = [
        [
            row.chip,
            servers_short(row),
            row.software,
            f"{row.chips:,}",
            sig(row.requests_per_second),
            format_seconds(row.ttft_seconds.expected),
            format_seconds(row.tpot_seconds.expected),
            usd_text(row.usd_per_hour),
            usd_text(row.usd_per_million_tokens.all),
            _range_text(row),
        ]
        for row in rows
    ]
    header = ["chip", "servers", "runs in", "chips", "req/s", "TTFT", "TPOT", "$/h", "$/M"]
    yield TextTable([*header, "providers"], cells, left=3)
    priced = {row.chip: row.price.text for row in rows if row.price}
    yield Facts([Fact(f"{chip} price", text) for chip, text in priced.items()])


def servers_short(row: ServedPlan) -> str:
    """The servers of a row, as short as they go."""
    said = f"{row.replicas:,} x {_size(row.slice)}"
    if row.prefill_replicas:
        said += f" + {row.prefill_replicas:,} x {_size(row.prefill_slice or row.slice)}"
    return said


def _size(place: str) -> str:
    """The chips of a slice: their number, or the shape of a torus.

    >>> _size("h100:4"), _size("2*gh200:1"), _size("v5e:2x2"), _size("2*v5e:2x2")
    ('4', '2', '2x2', '2*2x2')
    """
    count, _, one = place.rpartition("*")
    size = one.split(":")[-1]
    if not count:
        return size
    return str(int(count) * int(size)) if size.isdigit() else f"{count}*{size}"


def _range_text(row: ServedPlan) -> str:
    """Dollars per chip-hour over the providers, or at the price of the row."""
    price, found = row.price, row.price_range
    if price is None:
        return "none"
    if found and found.high > found.low:
        return f"{found.low:.2f}-{found.high:.2f}"
    return f"{price.usd_per_chip_hour:.2f}"
