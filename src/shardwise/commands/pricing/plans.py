"""Price a plan from a file: read what it names, evaluate it, and say whether it fits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwise.boundary import is_file, parse_json, read_text, spelt
from shardwise.boundary.files import DOCUMENT_BYTES
from shardwise.commands.base.inputs import (
    ChipWords,
    Hardware,
    Own,
    own_evidence,
    places_of,
    plan_changes,
)
from shardwise.commands.pricing.lacking import reading_options, with_own
from shardwise.commands.pricing.served_page import cache_line
from shardwise.errors import BadRequest, Gives, Lacking, NoFeasiblePlan, Remark
from shardwise.hardware import Slice
from shardwise.models import ModelConfig, load_model
from shardwise.models.describe import unpriced
from shardwise.planner.evaluate import TrainAnswer, evaluate_train
from shardwise.planner.expected import shift_of
from shardwise.planner.export import EXPORTERS, parse_export
from shardwise.planner.export.known_flags import target_of, unread_notes
from shardwise.planner.export.trainer import with_files
from shardwise.planner.left_out import finished
from shardwise.planner.price.plan import step_timeline
from shardwise.planner.price.timeline import Timeline
from shardwise.planner.serve.answer import evaluate_serve
from shardwise.plans import ServePlan, TrainPlan, is_of, model_hash
from shardwise.plans.files import changed_plan, read_values
from shardwise.plans.named import PREFIX, plan_path
from shardwise.results.server import PricedServer, priced_server
from shardwise.results.train import PricedPlan, priced_plan
from shardwise.roofline.bounds import Bounds
from shardwise.roofline.evidence import OwnRuns
from shardwise.units import format_gib, many
from shardwise.work import Work

GivenPlan = str | Path | TrainPlan | ServePlan
"""A plan's file, the name of a published one, or a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A plan from a file with its answer, what is told of it, the numbers to compare by and the
    bounds of the times among them; which of its choices were `searched`, as the file does not say
    them."""

    plan: TrainPlan | ServePlan
    answer: Any
    result: PricedPlan | PricedServer
    headline: Mapping[str, float]
    times: Mapping[str, Bounds]
    warnings: list[str]
    searched: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """A plan as a file means it, and which of its choices were `searched`."""

    plan: TrainPlan | ServePlan
    searched: frozenset[str] = frozenset()


def load_plan(
    path: Path | str,
    overrides: Mapping[str, str] | None = None,
    family: str | None = None,
    hardware: Hardware | None = None,
) -> TrainPlan | ServePlan:
    """The plan in a file, or of `audit:NAME`, a published run; model paths are relative to the
    file's folder. A search completes a file that a person began (`plans/handwritten.py`).
    `overrides` maps dotted paths to YAML values (`--set`), `family` is the class
    for an unknown config (`--as`), `hardware` says how to read its chips."""
    return given_plan(path, overrides, family, hardware=hardware)


def given_plan(
    what: GivenPlan,
    fields: Mapping[str, str] | None = None,
    family: str | None = None,
    piece: Slice | None = None,
    hardware: Hardware | None = None,
) -> TrainPlan | ServePlan:
    """The plan in a file, of `audit:NAME`, or as it is; a file of another program is read as
    `export --from` reads it, for the `piece` where it names none. `fields` change it first,
    `family` is what its model is read as, and `hardware` says how its chips are read."""
    return read_plan(what, fields, family, piece, hardware).plan


def read_plan(
    what: GivenPlan,
    fields: Mapping[str, str] | None = None,
    family: str | None = None,
    piece: Slice | None = None,
    hardware: Hardware | None = None,
) -> ReadPlan:
    """As `given_plan`, with what was searched; all that reads plans goes through here."""
    origin = "the plan"
    if isinstance(what, str | Path):
        target, text = other_program(what)
        _check_no_config(text, what)
        if target is None:
            origin, values = str(plan_path(str(what))), read_values(what, fields, family)
            plan, searched = finished(values, origin, (hardware or Hardware()).kept_slice)
            return ReadPlan(plan=plan, searched=searched)
        what = _read_as(target, text, what, piece)
    return ReadPlan(plan=changed_plan(what, fields or {}, family, origin))


def other_program(path: str | Path) -> tuple[str | None, str]:
    """The program whose file this is, None for a plan of ours; and its text."""
    if str(path).startswith(PREFIX) or not is_file(Path(path)):
        return None, ""
    try:
        text = program_text(Path(path), "the plan")
    except BadRequest:
        return None, ""  # which reading it as a plan says
    return target_of(text), text


def _check_no_config(text: str, path: str | Path) -> None:
    """Raise BadRequest where a file is a model's config.json, whose keys other programs share."""
    if not text.lstrip().startswith("{"):
        return
    try:
        keys = set(parse_json(text, "the plan"))
    except BadRequest:
        return  # which reading it as a plan says
    if keys & _OF_CONFIGS and not keys & {"model", "kind"}:
        way = spelt("plan train", [], {"--model": path})
        raise BadRequest(
            f"'{path}' is the config.json of a model, and no plan; give the file of a plan, or "
            f"plan for this model: `{way} --on SLICE --batch N --seq N -o plan.yaml`"
        )


_OF_CONFIGS = {"architectures", "model_type"}
"""Keys of the config.json of a model, as transformers writes it."""


def program_text(path: Path, what: str, *, most: int = DOCUMENT_BYTES) -> str:
    """The text of another program's file, with the files of keys that it names and that lie beside
    it (`planner/export/trainer/files.py`)."""

    def beside(name: str) -> str | None:
        """In the same folders below the text's, the last of them, or right beside it."""
        parts = () if ".." in Path(name).parts else Path(name).relative_to(Path(name).anchor).parts
        places = [path.parent.joinpath(*tail) for tail in (parts, parts[-2:]) if tail]
        found = next(filter(is_file, [*places, path.parent / Path(name).name]), None)
        return read_text(found, f"the file that '{path}' names", most=most) if found else None

    remedy = "give the path of a file"
    return with_files(read_text(path, what, most=most, remedy=remedy), beside)


def _read_as(target: str, text: str, path: str | Path, piece: Slice | None) -> TrainPlan:
    """The plan that another program's file says; BadRequest with the command that takes what it
    leaves out."""
    try:
        plan = parse_export(text, target)
        EXPORTERS[target].check(text, load_model(plan.model))
        return plan
    except Lacking as error:
        if piece is not None and error.gives is Gives.SLICE:
            return parse_export(text, target, piece=piece)
        given = {} if piece is None else {Gives.SLICE.value: str(piece)}
        options = reading_options(text, target, given)
        way = spelt("export", [path], {"--from": target, **options}, ["-o", "plan.yaml"])
        raise BadRequest(
            f"'{path}' is another program's file. {error.lacks}\n"
            f"make a plan of it first, {with_own(options, given)}: `{way}`"
        ) from None
    except BadRequest as error:
        raise BadRequest(f"'{path}' is another program's file. {error}") from None


def foreign_notes(what: GivenPlan) -> list[str]:
    """What a reader should know of a file of another program: that it was read as one, and which
    of its words nobody knows."""
    target, text = other_program(what) if isinstance(what, str | Path) else (None, "")
    if target is None:
        return []
    said = Remark(f"read as a file of {target}: keys it leaves out have {target}'s defaults")
    return [said, *unread_notes(text, target)]


def price_given(
    what: GivenPlan,
    chips: ChipWords,
    family: str | None = None,
    evidence: Own | None = None,
) -> Priced:
    """Price a plan with what --set, --hw, --constants and prices change, and what runs of one's own
    say of it."""
    fields, overrides = plan_changes(chips.sets)
    if chips.constants:
        fields = {**fields, "constants": chips.constants}
    hardware = replace(chips.hardware, overrides=overrides)
    found = read_plan(what, fields, family, hardware=hardware)
    plan, hardware = found.plan, replace(hardware, constants=found.plan.constants)
    plan = replace(plan, chips=hardware.of_plan(plan).kept_of(*places_of(plan)))
    priced = price_plan(plan, hardware, own_evidence(evidence, plan.constants))
    warnings = [*foreign_notes(what), *priced.warnings]
    return replace(priced, warnings=warnings, searched=found.searched)


def price_plan(
    plan: TrainPlan | ServePlan, hardware: Hardware, evidence: OwnRuns | None = None
) -> Priced:
    """Evaluate a plan of either kind; warns where the model is no longer the one planned for."""
    cfg, hardware = load_model(plan.model), hardware.of_plan(plan)
    warnings = [*unpriced(cfg), *stale(plan, cfg)]
    piece = hardware.slice(plan.slice).slice
    if isinstance(plan, TrainPlan):
        answer = evaluate_train(plan, cfg, piece)
        answer = answer.at(shift_of(answer, evidence))
        result = priced_plan(answer)
        times = {"step_seconds": result.step_seconds}
        headline = {
            "tokens_per_second": result.tokens_per_second,
            "mfu": result.mfu,
            "peak_bytes_per_chip": result.peak_bytes_per_chip,
        }
        if piece.chip.price is not None:
            headline |= {"usd_per_trillion_tokens": usd_per_trillion(answer)}
    else:
        if evidence is not None:
            raise BadRequest(
                "--evidence holds training runs, and this is a serving plan; leave it out "
                "(`shardwise calibrate` takes the log of a server)"
            )
        other = hardware.slice(plan.prefill_plan.slice).slice
        answer = evaluate_serve(plan, cfg, piece, prefill_piece=other)
        result = priced_server(answer)
        times = {"ttft_seconds": result.ttft_seconds, "tpot_seconds": result.tpot_seconds}
        headline = {
            "tokens_per_second_per_chip": result.tokens_per_second_per_chip,
            "peak_bytes_per_chip": result.peak_bytes_per_chip,
        }
    return Priced(
        plan=plan,
        answer=answer,
        result=result,
        headline={f"{name}.expected": found.expected for name, found in times.items()} | headline,
        times=times,
        warnings=warnings,
    )


def usd_per_trillion(answer: TrainAnswer) -> float:
    """Dollars of 1e12 tokens, all chips of the slice paid for."""
    price = answer.piece.chip.price
    assert price is not None
    return 1e12 / answer.tokens_per_second / 3600 * answer.piece.chips * price.usd_per_chip_hour


def stale(plan: TrainPlan | ServePlan, cfg: ModelConfig) -> list[str]:
    """A line where the model is no longer the one that the plan was made for."""
    if is_of(plan.model_hash, cfg):
        return []
    now = model_hash(cfg)
    made = f"the plan was made for another '{plan.model}' (hash {plan.model_hash}, now {now})"
    return [f"{made}; figures are for the present model"]


def plan_timeline(answer: TrainAnswer | Any) -> Timeline:
    """The event timeline of a priced training plan; one rank where it has no stages."""
    if not isinstance(answer, TrainAnswer):
        raise BadRequest(
            "a serving plan has no pipeline to draw; give a training plan with mesh axis 'stage'"
        )
    return step_timeline(answer.plan, answer.cfg, answer.priced)


def check_fits(priced: Priced, what: GivenPlan) -> None:
    """Raise NoFeasiblePlan where a hand-written plan, given as `what`, needs more memory than a
    chip has; of another program's file with what says it in that program's words."""
    if not (miss := shortfall(priced)):
        return
    target, _ = other_program(what) if isinstance(what, str | Path) else (None, "")
    own = f"; for changes of the file itself: `{spelt('check', [what], {})}`" if target else ""
    raise NoFeasiblePlan(f"{miss}{own}")


def shortfall(priced: Priced) -> str:
    """By how much a plan does not fit and what would help; empty where it fits."""
    need = priced.result.peak_bytes_per_chip
    usable = priced.result.usable_bytes_per_chip
    if need <= usable:
        return ""
    result, kinds = priced.result, priced.result.memory_by_kind
    if isinstance(result, PricedServer) and "engine" in kinds:
        return f"the plan does not fit: {_short_cache(result)}"
    largest = max(kinds, key=lambda k: kinds[k])
    return (
        f"the plan does not fit: {format_gib(need)} per chip, {format_gib(usable)} usable, "
        f"{format_gib(need - usable)} too much; the largest part is {largest} "
        f"({format_gib(kinds[largest])}): {REMEDIES.get(largest, 'use more chips')}"
    )


def _short_cache(result: PricedServer) -> str:
    """What the cache of an engine is too small for, and what would help."""
    longest, held = result.input_length + result.output_length, result.line_requests
    share = f"{result.memory_share:.0%} of the memory"
    if held < 1:
        kinds = result.memory_by_kind
        parts = {name: kinds[name] for name in ("weights", "activations", "engine")}
        kept = ", ".join(f"{name} {format_gib(size)}" for name, size in parts.items())
        return (
            f"{share} is {format_gib(result.usable_bytes_per_chip)} per chip; beside {kept} "
            f"the cache has no room for a request of {longest:,} tokens: use more chips, smaller "
            "weights, fewer sequences or tokens a step, or raise scheduling.memory_share"
        )
    ranks = max(1, round(result.cache_tokens / longest / held))
    line = cache_line(result, longest, result.mesh, result.engine)
    return (
        f"it has {many(result.batch, 'sequence')} of {longest:,} tokens, and the cache holds "
        f"{held * ranks:.1f} in {share} ({line}): set "
        f"batch to {int(held * ranks):,} or less, or use shorter sequences or a smaller KV dtype"
    )


def unfit_notes(plan: TrainPlan | ServePlan) -> list[str]:
    """A line where a training plan does not fit the chips that it names."""
    if isinstance(plan, ServePlan):
        return []
    miss = shortfall(price_plan(plan, Hardware(constants=plan.constants)))
    return [miss] if miss else []


REMEDIES = {
    "params": "raise fsdp, tensor or stage, or use more chips",
    "optimizer": "raise fsdp, set zero to 1, or use more chips",
    "gradients": "raise fsdp, set zero to 2, or use more chips",
    "checkpoints": "use remat block, more microbatches, or a smaller batch",
    "transient": "use more microbatches or a higher tensor degree",
    "weights": "use more chips or smaller weights",
    "kv": "use a smaller batch, shorter sequences or a smaller KV dtype",
    "activations": "use a smaller batch, smaller prefill chunks or a higher tensor degree",
    "engine": "use more chips or smaller weights",
}
"""What makes each kind of memory smaller."""


def count_plan(plan: TrainPlan | ServePlan) -> Work:
    """The Work of one training step, or of one decode step, on the busiest device."""
    return price_plan(plan, Hardware()).answer.work
