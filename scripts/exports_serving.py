"""The serving half of docs/lab/exports.md: answers of `plan serve` as files for their server.

For five models on six slices: the default answer and the server that it is for, its script read
back with the comments stripped, the other things that it can be exported to, and its dollars beside
those of `--for any`. `scripts/exports.py` makes both halves.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from exports_unsaid import SERVING_UNSAID, lost_by_a_server

from shardwise.commands.plan_serve.serve import ServePlanRequest
from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.export.serving import export_serve, given_fields, parse_serve
from shardwise.planner.serve.served import Served, cheapest_serving
from shardwise.plans import ServePlan
from shardwise.plans.files import plan_dict, plan_from
from shardwise.plans.servers import SERVING_SOFTWARE
from shardwise.plans.train import mesh_text

LOADS: Sequence[tuple[str, float]] = (
    ("llama-3-8b", 4),
    ("llama-3-70b", 2),
    ("qwen3-32b", 2),
    ("qwen3-30b-a3b", 4),
    ("deepseek-v3", 1),
)
"""The models, and requests a second that each of the slices can serve."""

INPUT, OUTPUT = 4096, 1024
DEPLOYED = ("k8s", "skypilot")
TWO_POOLS = ("llama-3-70b", "32*h100:8")
"""Whose answer in two pools is in the table, too."""


def asked(slices: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The requests of the table."""
    for model, rate in LOADS:
        for on in slices:
            yield {"model": model, "slice": on, "rate": rate, "pools": "one"}
    model, on = TWO_POOLS
    yield {"model": model, "slice": on, "rate": dict(LOADS)[model], "pools": "two"}


def row_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """What the answer is, and how its file fares."""
    words = ServePlanRequest(
        model=request["model"],
        on=request["slice"],
        input=INPUT,
        output=OUTPUT,
        rate=request["rate"],
        pools=request["pools"],
    )
    try:
        best, free = served(words), served(replace(words, software="any"))
    except (NoFeasiblePlan, BadRequest) as error:
        return {**request, "miss": str(error).split(":")[0]}
    row = {**request, "plan": plan_dict(best.plan)}
    row |= {"usd": best.usd_per_hour, "any_usd": free.usd_per_hour}
    row |= {"chips": best.chips, "any_chips": free.chips, "any_software": free.plan.engine}
    return row | fate(best.plan)


def served(words: ServePlanRequest) -> Served:
    """The answer of a request, without what else would serve."""
    demand, (place,) = words.demand(), words.places()
    return cheapest_serving(words.requests(place, demand), demand).served


def fate(plan: ServePlan) -> dict[str, Any]:
    """Whether a plan exports, and what its script without comments does not say."""
    cfg, piece = load_model(plan.model), parse_slice(plan.slice)
    elsewhere = {target: refusal(plan, target) for target in DEPLOYED}
    try:
        text = text_of(plan, plan.engine)
        given = given_fields(plan.model, cfg, piece)
        again = parse_serve(stripped(text), plan.engine, given)
    except BadRequest as error:
        return {"refused": str(error), "elsewhere": elsewhere}
    lost = lost_by_a_server(plan, again)
    return {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "lost": {field: list(values) for field, values in lost.items()},
        "elsewhere": elsewhere,
    }


def refusal(plan: ServePlan, target: str) -> str:
    """What a target says against a plan; nothing where it takes it, and gives it back."""
    try:
        text = text_of(plan, target)
    except BadRequest as error:
        return str(error)
    return "" if parse_serve(text, target) == plan else "read back as another plan"


def text_of(plan: ServePlan, target: str) -> str:
    """A plan as the text of a target."""
    return export_serve(plan, load_model(plan.model), parse_slice(plan.slice), target)


def stripped(text: str) -> str:
    """A text without its comment lines."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def read_plan(row: Mapping[str, Any]) -> ServePlan:
    """The plan of a row of the table."""
    plan = plan_from(row["plan"], "docs/lab/exports.json")
    assert isinstance(plan, ServePlan)
    return plan


def again(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its files written anew."""
    if "miss" in row:
        return row
    kept = {k: v for k, v in row.items() if k not in ("refused", "sha256", "lost", "elsewhere")}
    return kept | fate(read_plan(row))


def page(rows: Sequence[Mapping[str, Any]], checked: Mapping[str, Any]) -> str:
    """The half of the page."""
    found = [row for row in rows if "miss" not in row]
    good = [row for row in found if row.get("lost") == {}]
    loads = ", ".join(f"{model} {rate:g}" for model, rate in LOADS)
    head = INTRO.format(
        good=len(good), possible=len(found), input=INPUT, output=OUTPUT, loads=loads
    )
    lines = [head, COLUMNS, *(line(row, checked) for row in rows), "", *refusals(rows)]
    lines += ["", *silences()]
    return "\n".join(lines) + "\n"


INTRO = """## Default serving plans

The answer of `shardwise plan serve` for prompts of {input:,} tokens and answers of {output:,}, at
so many requests a second: {loads}.
{good} of the {possible} scripts come back as the same plan, but for what no script says (below).
"any" is how many times the dollars of `--for any` it costs, the price of this server (for chips
without a price, how many times the chips). "taken by" names what took the script; "k8s" and
"skypilot" say whether the plan can be deployed so, and docs/lab/exports_checked.json has what took
those files.
"""
COLUMNS = (
    "| model | slice | runs in | servers | $/h | any | taken by | back | k8s | skypilot |\n|"
    + "---|" * 10
)


def line(row: Mapping[str, Any], checked: Mapping[str, Any]) -> str:
    """One row of the table."""
    where = f"| {row['model']} | {row['slice']} |"
    if "miss" in row:
        return f"{where} - | {row['miss']} |" + " |" * 6
    plan = read_plan(row)
    back = "refused" if "refused" in row else ", ".join(row["lost"]) or "same"
    elsewhere = ["no" if row["elsewhere"][target] else "yes" for target in DEPLOYED]
    dollars = "-" if row["usd"] is None else f"${row['usd']:,.2f}"
    kind = "chips" if row["usd"] is None else "usd"
    return (
        f"{where} {SERVING_SOFTWARE[plan.engine].title} | {servers(plan)} | {dollars} | "
        f"{row[kind] / row[f'any_{kind}']:.2f}x | {taken_by(row, plan.engine, checked)} | {back} | "
        f"{' | '.join(elsewhere)} |"
    )


def servers(plan: ServePlan) -> str:
    """The servers of a plan, as in '4 x v5e:4x4 tensor=16'."""
    first = plan.prefill_plan
    pools = [(plan.replicas, plan)]
    if plan.prefill_replicas:
        pools.insert(0, (plan.prefill_replicas, first))
    return " + ".join(f"{n} x {p.slice} {mesh_text(p.mesh)}".rstrip() for n, p in pools)


def taken_by(row: Mapping[str, Any], program: str, checked: Mapping[str, Any]) -> str:
    """Who took the script."""
    if "refused" in row:
        return "nobody"
    record = checked.get(program, {}).get("files", {})
    return "parser" if record.get(row["sha256"], {}).get("accepted") else "-"


CHANGES = "; change the plan, or export to another target"


def refusals(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Why some plans cannot be deployed in some way."""
    yield "What stands in the way where it says no:\n"
    for row in rows:
        for why in row.get("elsewhere", {}).values():
            if why:
                yield f"- {row['model']} on {row['slice']}: {why.replace(CHANGES, '')}"


def silences() -> Iterator[str]:
    """What no script says."""
    yield "### What a server's script without comments does not say\n"
    yield "| field | becomes |\n|---|---|"
    for field, why in SERVING_UNSAID.items():
        yield f"| `{field}` | {why} |"
