"""A server under a load, request by request: queue, batch, TTFT and TPOT over a trace."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import ViewState, choice, powers, slider, text
from shardwise.apps.page.figures import FigureAxis, FigureData, KeyFigure, Mark, TableData, facts
from shardwise.apps.page.given import path_of
from shardwise.apps.page.view import Drawn, PageView
from shardwise.commands.base.answer import Answer
from shardwise.commands.plan_serve.simulate import LoadSimulated
from shardwise.planner.simulate.figures import OverTime
from shardwise.scheduling.policies import POLICIES
from shardwise.units import format_seconds, many, sig

FIRST = 25
"""Requests of the first answer."""
ALONE = tuple(name for name in POLICIES if name != "prefill")
"""Policies of a server that both prefills and decodes."""
STATIC = {"scheduling.prefix_cache": "false", "scheduling.admission": "reserve"}
"""What a server that fills a batch and then runs it to its end needs besides."""
KINDS = ("mean", "median", "p90", "p99")
NAMES = ("completed", "request_throughput", "output_throughput", "request_goodput", "good_share")
NAMES += ("utilisation", "hit_rate", "preemptions", "steps", "duration", "usd")
UNITS = {"request_throughput": "1/s", "output_throughput": "tokens/s", "request_goodput": "1/s"}
UNITS |= {"duration": "s", "usd": "USD"}
UNITS |= dict.fromkeys(("good_share", "utilisation", "hit_rate"), "share")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorState(ViewState):
    """The controls of the view."""

    plan: str = text(
        "Plan",
        "audit:llama-3-70b-served",
        about="A file that `plan serve -o` wrote, chosen or dropped here, or audit:NAME.",
        gives="file",
    )
    rate: float = slider("Rate", (0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0), 0.3, unit="requests/s")
    requests: int = slider("Requests", (25, 100, 200, 500, 1000, 2000), 500)
    input: int = slider("Prompt", powers(8, 14), 8192, unit="tokens")
    output: int = slider("Answer", powers(5, 10), 512, unit="tokens")
    policy: str = choice("Policy", ALONE, "chunked")
    cv: float = slider("Burstiness", (0.5, 1.0, 2.0, 4.0), 1.0)
    ttft: float = slider("TTFT target", (0.5, 1.0, 2.0, 4.0, 8.0), 2.0, unit="s")
    tpot: int = slider("TPOT target", (10, 20, 30, 50, 100), 20, unit="ms")
    trace: str = text(
        "Trace file",
        "",
        about="Chosen or dropped here; empty: requests of these lengths are made.",
        gives="file",
    )


def _simulate(state: SimulatorState, requests: int) -> VerbCall:
    trace = path_of("trace", state.trace) or None
    made = {} if trace else {"input": state.input, "output": state.output, "cv": state.cv}
    more = STATIC if state.policy == "static" else {}
    keywords = {
        "trace": trace,
        "requests": requests,
        "rate": state.rate,
        **made,
        "ttft": f"{state.ttft}s",
        "tpot": f"{state.tpot}ms",
        "sets": {"scheduling.policy": state.policy, **more},
    }
    return VerbCall(verb="simulate", given=(path_of("plan", state.plan),), keywords=keywords)


def _few(state: SimulatorState) -> list[VerbCall]:
    return [_simulate(state, min(FIRST, state.requests))]


def _all(state: SimulatorState) -> list[VerbCall]:
    return [_simulate(state, state.requests)]


def _draw(state: SimulatorState, answers: Sequence[Answer]) -> Drawn:
    found = answers[0]
    assert isinstance(found, LoadSimulated)
    over, price = found.over_time, f"; {found.price.text}" if found.price else ""
    rest = {name: value for name in NAMES if (value := getattr(found, name)) is not None}
    return Drawn(
        figures=[
            replace(_over(over, "load", "Queue and batch", "requests", "", _LEVELS), wide=True),
            _over(over, "ttft", "Median TTFT of those that came", "TTFT", "s", _TTFT, state.ttft),
            _over(
                over, "tpot", "Median TPOT of those that came", "TPOT", "s", _TPOT, state.tpot / 1e3
            ),
        ],
        tables=[_times(found), facts("The run", rest, UNITS)],
        says=_sentence(found),
        key=_key(found),
        lines=[_servers(found), f"{found.completed:,} requests answered{price}."],
        formula="TTFT: time to the first token; E2EL: to the last; ITL: from one to the next; "
        "TPOT, per output token = (E2EL - TTFT) / (output tokens - 1)",
        source="the scheduler that `shardwise serve` runs; steps priced by count, then price",
    )


def _sentence(found: LoadSimulated) -> str:
    """How much of the load keeps its targets, to quote."""
    if found.good_share is None:
        return ""
    times = (found.p90_ttft_ms, found.p90_tpot_ms)
    first, further = ("-" if one is None else format_seconds(one / 1e3) for one in times)
    return (
        f"{sig(100 * found.good_share)} % of the requests keep both targets: the first token of 9 "
        f"in 10 comes within {first}, each further one within {further}."
    )


def _servers(found: LoadSimulated) -> str:
    """What answers: chips, servers and the model."""
    plan = found.simulated.plan
    more = f", and {plan.prefill_replicas} more to prefill" if plan.prefill_replicas else ""
    servers = f"{many(plan.replicas, 'server')} of {plan.slice}{more}"
    return f"{many(found.chips, 'chip')}: {servers}; {plan.model}."


def _key(found: LoadSimulated) -> list[KeyFigure]:
    """The numbers to read first."""
    first, further = found.p90_ttft_ms, found.p90_tpot_ms
    tokens, busy = found.output_throughput, found.utilisation
    return [
        KeyFigure(label="keep both targets", value=found.good_share, unit="share"),
        KeyFigure(label="first token", value=first, unit="ms", note="9 in 10, at most"),
        KeyFigure(label="then a token", value=further, unit="ms", note="9 in 10, at most"),
        KeyFigure(label="tokens out a second", value=tokens),
        KeyFigure(label="busy", value=busy, unit="share", note="of the time"),
    ]


_LEVELS = {"running": "in the batch", "waiting": "waiting"}
_TTFT, _TPOT = {"ttft_seconds": "TTFT"}, {"tpot_seconds": "TPOT"}


def _over(
    over: OverTime,
    id: str,
    title: str,
    label: str,
    unit: str,
    names: Mapping[str, str],
    target: float | None = None,
) -> FigureData:
    marks = []
    for name, said in names.items():
        each = zip(over.seconds, getattr(over, name), strict=True)
        known = [(x, y) for x, y in each if y is not None]
        marks.append(
            Mark(kind="line", label=said, x=[x for x, _ in known], y=[y for _, y in known])
        )
    if target is not None:
        marks.append(Mark(kind="rule", label=f"target, {format_seconds(target)}", y=[target]))
    return FigureData(
        id=id,
        title=title,
        x=FigureAxis(label="time", unit="s"),
        y=FigureAxis(label=label, unit=unit),
        marks=marks,
    )


def _times(found: LoadSimulated) -> TableData:
    rows = [
        [name.upper(), *(getattr(found, f"{kind}_{name}_ms") for kind in KINDS)]
        for name in ("ttft", "tpot", "itl", "e2el")
    ]
    units: dict[str, str] = dict.fromkeys(KINDS, "ms")
    return TableData(title="Latencies", header=("", *KINDS), rows=rows, units=units)


VIEW = PageView(
    name="simulator",
    title="Simulator",
    about="A plan under a load: queue, batch, TTFT and TPOT over a trace.",
    group="Plan",
    state=SimulatorState,
    calls=lambda state: (),
    coarse=_few,
    slow=_all,
    draw=_draw,
)
