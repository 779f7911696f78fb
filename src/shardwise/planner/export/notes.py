"""What an export says beside the target's own words: comment lines that are read back.

The fields of a plan come from three places. (1) The target's flags, as its `read` gives them:
always first. (2) A line `# shardwise: FIELD: VALUE` for a field that no flag says. (3) A line
`# shardwise: FIELD: {"reads": A, "means": B}` where the flags say A for a plan with B: it holds
only while the flags still say A, so an edited flag is never overruled. A choice that the target
will not carry out stands besides in a line `# not expressed: ...`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from math import prod
from typing import Any, get_args, get_type_hints

from shardwise.boundary import parse_json
from shardwise.errors import BadRequest, Gives, Lacking, entry_of, shown
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.models.remat import remat_row
from shardwise.plans import MESH_AXES, ServePlan, TrainDtypes, TrainPlan, is_of, model_hash
from shardwise.plans.files import SELDOM, flat_plan, plan_from
from shardwise.plans.software import Obstacle, SoftwareRow
from shardwise.plans.train import STORAGE_AXES

Fields = dict[str, Any]
"""Fields of a plan by dotted name; `mesh` and `remat_kinds` are one value each."""
Lost = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """How a target is written and read. `read` takes how many devices there are, where that is
    known. `lost` maps, for a slice, a field that the target has no word for to what becomes of it;
    `whole`: what it writes has notes already. `runner` is the program that runs there, `model` the
    name of the zoo of the model that a text describes, `check` refuses a text whose numbers
    contradict a model, `obstacles` what a launcher itself cannot start."""

    write: Callable[[Any, ModelConfig, Slice], str]
    read: Callable[..., Fields]
    lost: Callable[[Slice], Lost]
    runner: Callable[[Slice], SoftwareRow | None] = lambda _: None
    model: Callable[[str], str | None] = lambda _: None
    check: Callable[[str, ModelConfig], None] = lambda _, __: None
    obstacles: Callable[[TrainPlan, Slice], list[Obstacle]] = lambda _, __: []
    whole: bool = False


def exporter_of(table: Mapping[str, Exporter], target: str, what: str) -> Exporter:
    """The exporter of a target; BadRequest names the known ones."""
    return entry_of(what, target, table)


NOTE, UNSAID = "# shardwise: ", "# not expressed: "

ABOUT_THE_PLAN = frozenset(
    (
        *("model", "model_hash", "slice", "slices", "box", "placement", "software", "stack"),
        *("constants", "chips"),
        *("expert_imbalance", "packed_lengths", "gradient_accumulation", "overlap", "compiled"),
        "library",
    )
)
"""Where the plan is from and what it was priced for: no framework has to carry these out."""

MOST = 10**12
"""No count of a plan is larger; products of a few stay within a float."""


def plan_fields(plan: TrainPlan | ServePlan) -> Fields:
    """Every field by dotted name, as plain values; `mesh`, `remat_kinds` and `chips` are one value
    each."""
    whole = {name: dict(getattr(plan, name)) for name in _WHOLE if hasattr(plan, name)}
    whole |= {"chips": plan.chips.given} if plan.chips.given else {}
    seldom = {name: getattr(plan, name) for name in SELDOM if hasattr(plan, name)}
    whole |= {k: list(v) if isinstance(v, tuple) else v for k, v in seldom.items()}
    flat = {k: v for k, v in flat_plan(plan).items() if k.partition(".")[0] not in whole}
    del flat["kind"]
    return flat | whole


_WHOLE = ("mesh", "remat_kinds")


def with_notes(
    text: str, target: str, plan: TrainPlan, cfg: ModelConfig, said: Fields, lost: Lost
) -> str:
    """The text with its comment block in front; raises BadRequest where `said` may not differ."""
    silent = ABOUT_THE_PLAN | _without_effect(plan, cfg)
    fields = plan_fields(plan)
    for key, value in changed(fields, said, type(plan)):
        if key == "mesh" and key in said:
            _check_alike(target, value, said[key])
        elif key in ("remat", "remat_kinds") and _same_remat(plan, said):
            pass
        elif key not in silent and key not in lost:
            raise BadRequest(
                f"{target} cannot express {key} {_short(value)}"
                + (f"; it would run {_short(said[key])}" if key in said else "")
                + f"; change {key} in the plan or export to another target"
            )
    told = {key: why for key, why in lost.items() if key not in silent}
    lines = note_lines(changed(fields, said, type(plan)), said, told)
    return in_front([*heading("training", target), *lines], text)


def changed(fields: Fields, said: Fields, cls: type) -> list[tuple[str, Any]]:
    """The fields that the flags do not say as the plan has them, or that are no default of `cls`
    where the flags say nothing."""
    return [
        (key, value)
        for key, value in fields.items()
        if value != (said[key] if key in said else _default(cls, key))
    ]


def note_lines(changes: list[tuple[str, Any]], said: Fields, lost: Lost) -> list[str]:
    """A note for each of the fields, and why the target will not carry it out where `lost` says."""
    lines = []
    for key, value in changes:
        if lost.get(key):
            lines.append(unsaid(key, value, lost[key]))
        held = {"reads": said[key], "means": value} if key in said else value
        lines.append(f"{NOTE}{key}: {json.dumps(held)}")
    return lines


_YET = " (the program may support it; our export does not yet)"


def check_runs(target: str, obstacles: Sequence[Obstacle]) -> None:
    """Raise BadRequest with every obstacle and its smallest change, if there is one: what the
    target cannot run, and what it may run and shardwise does not write."""
    if not obstacles:
        return
    changes = "change the plan, or export to another target"
    if len(obstacles) == 1:
        ours = f"shardwise's export to {target}" if obstacles[0].ours else target
        raise BadRequest(
            f"{ours} cannot express {obstacles[0]}{_YET * obstacles[0].ours}; {changes}"
        )
    lines = [f"  {obstacle}{_YET * obstacle.ours}" for obstacle in obstacles]
    head = f"{target} cannot express {len(obstacles)} choices of this plan; {changes}:"
    raise BadRequest("\n".join([head, *lines]))


def heading(kind: str, target: str) -> list[str]:
    """The first comment lines of an export."""
    return [
        f"# A {kind} plan of shardwise for {target}. The flags are what counts; the lines",
        "# below hold what they have no word for and are read back by `shardwise export`.",
    ]


def unsaid(key: str, value: Any, why: str) -> str:
    """The line for a choice that the target will not carry out."""
    return f"{UNSAID}{key} {json.dumps(value)}: {why}"


def in_front(lines: list[str], text: str) -> str:
    """The text with comment lines in front, below the line that names a script's shell."""
    first, _, rest = text.partition("\n")
    if first.startswith("#!"):
        return "\n".join([first, *lines, rest])
    return "\n".join([*lines, text])


def check_model(plan: TrainPlan | ServePlan, cfg: ModelConfig) -> None:
    """Raise BadRequest where `cfg` is not the model that the plan was made for."""
    if not is_of(plan.model_hash, cfg):
        raise BadRequest(
            f"the plan was made for another '{plan.model}' (hash {plan.model_hash}, now "
            f"{model_hash(cfg)}); plan again before exporting"
        )


def fields_read(read: Callable[[str], Fields], text: str, target: str) -> Fields:
    """What a target's reader finds; BadRequest for text that is nested too deep to be read."""
    try:
        return read(text)
    except RecursionError:
        rule = "write plain values, as `shardwise export --to` does"
        raise BadRequest(f"{target}: the text is nested too deep; {rule}") from None


def train_plan(fields: Fields, target: str) -> TrainPlan:
    """The plan of all fields; BadRequest names the option for one that is missing."""
    for key, option in _ASKED.items():
        if key not in fields:
            said = f"{target}: the text does not give the {key}"
            raise Lacking(said, f"give it with {option}", Gives(option))
    plan = plan_of_fields("train", fields, target)
    assert isinstance(plan, TrainPlan)
    return plan


_ASKED = {"model": "--model", "slice": "--on"}
"""What a text may leave out, and the option that says it."""


def plan_of_fields(kind: str, fields: Fields, target: str) -> TrainPlan | ServePlan:
    """The plan that fields by dotted name make."""
    nested: Fields = {"kind": kind}
    for key, value in fields.items():
        outer, dot, inner = key.partition(".")
        if dot:
            nested.setdefault(outer, {})[inner] = value
        else:
            nested[key] = value
    return plan_from(nested, f"the {target} export")


def noted(text: str, said: Fields) -> Fields:
    """Fields that the flags say, and those of the notes that they do not overrule."""
    values = dict(said)
    for line in text.splitlines():
        if not line.startswith(NOTE):
            continue
        key, _, held = line.removeprefix(NOTE).partition(": ")
        try:
            value = parse_json(held, "the note")
        except BadRequest:
            raise BadRequest(
                f"the line {shown(line, 200)} is not a note; write '{NOTE}FIELD: VALUE', the value "
                "as JSON"
            ) from None
        if isinstance(value, dict) and set(value) == {"reads", "means"}:
            if said.get(key) == value["reads"]:
                values[key] = value["means"]
        elif key not in said:
            values[key] = value
    return values


def named(target: str, field: str, value: Any, words: Mapping[Any, str]) -> str:
    """The target's word for a value; BadRequest names the field, the value and what is known."""
    if value not in words:
        raise refused(target, field, value, f"it supports {', '.join(map(str, words))}")
    return words[value]


def meant(target: str, flag: str, text: str, words: Mapping[Any, str]) -> Any:
    """The value that a target's word stands for."""
    for value, word in words.items():
        if word == text:
            return value
    known = ", ".join(filter(None, words.values()))
    raise BadRequest(f"{target}: {flag} is {shown(text)}; a plan can express {known}")


def refused(target: str, field: str, value: Any, rule: str) -> BadRequest:
    """The error for a choice that a target would run in another way."""
    return BadRequest(
        f"{target} cannot express {field} {_short(value)}: {rule}; change {field} in the plan or "
        "export to another target"
    )


def one_line(text: str) -> str:
    """A name from outside for a script: what no terminal, shell, YAML or line of notes takes as a
    plain character becomes a hyphen."""
    return "".join(c if c.isprintable() else "-" for c in text)


def whole(target: str, what: str, number: float) -> int:
    """A count that must come out whole."""
    known = abs(number) <= MOST  # nan is not
    if not known or abs(number - round(number)) > 1e-6 * max(1.0, abs(number)) or number < 0.5:
        came = f"{number:g}" if known else f"no number up to {MOST:g}"
        raise BadRequest(f"{target}: {what} comes out as {came}; make it a whole number from 1")
    return round(number)


def number(target: str, flag: str, text: str, kind: type[int] | type[float] = int) -> Any:
    """A flag's number."""
    try:
        value = kind(text)
        if abs(value) <= MOST:  # nan is not
            return value
    except (ValueError, OverflowError):
        pass
    raise BadRequest(f"{target}: {flag} is {shown(text)}; write a number of at most {MOST:g}")


def mesh_of(degrees: Mapping[str, int]) -> dict[str, int]:
    """A mesh without its degrees of 1, outermost axis first."""
    return {axis: degrees[axis] for axis in MESH_AXES if degrees.get(axis, 1) > 1}


def _check_alike(target: str, mesh: Mapping[str, int], said: Mapping[str, int]) -> None:
    """`replica` and `data` both replicate, and degree 1 is no cut: no more may differ."""
    if folded(mesh) != folded(said):
        raise refused(target, "mesh", mesh, f"its flags would mean {_short(said)}")


def placed(remat: str, kinds: Mapping[Any, str]) -> dict[str, str]:
    """Where every kind of activation goes: keep, recompute or offload."""
    return {**remat_row(remat).kinds, **kinds}


def _same_remat(plan: TrainPlan, said: Fields) -> bool:
    """Whether the policy that the target says comes to the same places."""
    if "remat" not in said:
        return False
    meant = placed(said["remat"], said.get("remat_kinds", {}))
    return meant == placed(plan.remat, plan.remat_kinds)


def folded(mesh: Mapping[str, int]) -> dict[str, int]:
    """A mesh with `replica` and `data`, which both replicate, as one axis."""
    copies = mesh.get("replica", 1) * mesh.get("data", 1)
    rest = {a: d for a, d in mesh.items() if a not in ("replica", "data")}
    return {a: d for a, d in {"data": copies, **rest}.items() if d > 1}


def _without_effect(plan: TrainPlan, cfg: ModelConfig) -> frozenset[str]:
    """Fields that change nothing in this plan, so that a target may say anything for them."""
    idle = set()
    if plan.degree("stage") == 1:
        # One stage holds all layers: their number is the model's, not a choice.
        idle |= {"pipeline_schedule", "virtual_stages", "layers_per_stage"}
    if plan.degree("tensor") == 1:
        idle |= {"sequence_parallel", "expert_over_tensor"}
    if plan.degree("context") == 1:
        idle.add("context_method")
    if not cfg.has_experts:
        idle |= {"expert_dispatch", "expert_capacity", "expert_over_tensor"}
    if plan.expert_dispatch == "ragged":
        idle.add("expert_capacity")
    if plan.dispatcher is None:
        idle.add("dispatcher")  # the program takes its own
    if copies(plan) == 1:
        idle.add("zero")
    if not stored_axes(plan):
        idle.add("weight_gather")
    if not stored_axes(plan) or plan.microbatches == 1:
        idle.add("gradient_reduce")
    idle.add("storage_axes")  # the exporters check it where it has an effect
    return frozenset(idle)


def stored_axes(plan: TrainPlan) -> tuple[str, ...]:
    """Axes that do store parameters in pieces."""
    return tuple(a for a in STORAGE_AXES if a in plan.storage_axes and plan.degree(a) > 1)


def stored_dtype(dtypes: TrainDtypes) -> str:
    """The dtype of the one copy that a framework stores: the master's, where there is one."""
    return dtypes.param if dtypes.master == "none" else dtypes.master


def copies(plan: TrainPlan) -> int:
    """How many devices hold the same piece of a parameter outside the experts."""
    kept = [a for a in STORAGE_AXES if a not in plan.storage_axes]
    return prod(plan.degree(axis) for axis in ("replica", "data", *kept))


def _default(cls: type, key: str) -> Any:
    """A field's value where nobody says it, None where somebody must."""
    outer, _, name = key.rpartition(".")
    if outer:
        hint = get_type_hints(cls)[outer]
        inner = [k for k in get_args(hint) if isinstance(k, type) and is_dataclass(k)]
        return _default(inner[0] if inner else hint, name)
    field = next(field for field in fields(cls) if field.name == name)
    value = field.default if field.default is not MISSING else None
    if field.default_factory is not MISSING:
        value = field.default_factory()
    return list(value) if isinstance(value, tuple) else value


def _short(value: Any) -> str:
    return json.dumps(value)
