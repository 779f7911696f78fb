"""Load and save plans: YAML (JSON is YAML), checked by pydantic at the edge.

An unknown key is an error with the nearest spelling; a wrong type names the key and the value.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, get_args

from shardwise.boundary import parse_yaml, read_yaml, write_text
from shardwise.boundary.records import flat, plain
from shardwise.boundary.typed import Mistake, first_mistake
from shardwise.errors import BadRequest, called_here, shown, unknown
from shardwise.hardware import Slice, parse_slice
from shardwise.models.zoo import split_family, with_family
from shardwise.plans import handwritten, handwritten_serve
from shardwise.plans.chip_changes import ChipChanges
from shardwise.plans.handwritten import check_whole, is_handwritten, programs, worked_out
from shardwise.plans.named import file_from_folder, from_folder, plan_path, to_folder
from shardwise.plans.serve import ServePlan
from shardwise.plans.software import SOFTWARE, SoftwareRow, software_row, usual_stack
from shardwise.plans.train import CHOICES, USUAL, TrainPlan

KINDS: Mapping[str, type[TrainPlan] | type[ServePlan]] = {"train": TrainPlan, "serve": ServePlan}


def save_plan(plan: TrainPlan | ServePlan, path: Path | str) -> None:
    """Write a plan as YAML, kind first, with model paths relative to its existing folder."""
    path = Path(path)
    if not path.parent.is_dir():
        raise BadRequest(f"cannot write '{path}': the folder '{path.parent}' does not exist")
    write_text(path, plan_yaml(plan, path.parent))


def plan_yaml(plan: TrainPlan | ServePlan, folder: Path) -> str:
    """A plan as its file in a folder has it."""
    import yaml

    plan = replace(plan, chips=plan.chips.seen_from(folder))
    values: dict[str, Any] = plan_dict(plan) | {"model": to_folder(plan.model, folder)}
    load = values.get("workload")
    if load and load["trace"]:
        load["trace"] = os.path.relpath(load["trace"], folder)
    return yaml.safe_dump(values, sort_keys=False)


def plan_dict(plan: TrainPlan | ServePlan) -> dict[str, Any]:
    """A plan as plain values, `kind` first; `chips` only where they are not the catalogue's,
    choices of fine-tuning where they are made, and of its load and its scheduling only the parts
    that they have."""
    kind, cls = next((k, cls) for k, cls in KINDS.items() if isinstance(plan, cls))
    values = _plain(asdict(plan)) | {"chips": plan.chips.given}
    if isinstance(plan, ServePlan):
        values |= {"scheduling": plain(plan.scheduling), "workload": plain(plan.workload)}
    said = {"chips": bool(values["chips"])}
    said |= {k: values[k] != _plain(getattr(USUAL, k)) for k in SELDOM if k in values}
    keys = [key for key in keys_of(cls) if said.get(key, True)]
    return {"kind": kind, **{key: values[key] for key in keys}}


SELDOM = ("lora_targets", "quantize", "library")
"""Choices that a file has only where they are not as usual."""


def keys_of(cls: type) -> list[str]:
    """The keys of a plan in the order of its file: its numbers before its choices."""
    return sorted(cls.__dataclass_fields__, key=lambda key: key in CHOICES)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return list(value) if isinstance(value, tuple) else value


def flat_plan(plan: TrainPlan | ServePlan) -> dict[str, Any]:
    """Every choice by its dotted path."""
    return flat(plan_dict(plan), ".")


def read_values(
    path: Path | str, overrides: Mapping[str, str] | None = None, family: str | None = None
) -> dict[str, Any]:
    """The values of a plan file, or of that of `audit:NAME`, a published run; a path of a model is
    seen from the file's folder. `overrides` maps dotted paths to YAML values (`--set`), `family` is
    what the model's config is read as (`--as`)."""
    path = plan_path(str(path))
    remedy = "`shardwise plan train` and `plan serve` write one with -o FILE"
    data = read_yaml(path, "the plan", remedy=remedy)
    if not isinstance(data, dict):
        raise BadRequest(f"'{path}' is not a plan: it has no keys and values; {remedy}")
    values = changed(data, overrides or {}, str(path))
    _check_stack(values, str(path))
    return _of_family(_beside(values, path), family)


def changed_plan(
    plan: TrainPlan | ServePlan, fields: Mapping[str, str], family: str | None, origin: str
) -> TrainPlan | ServePlan:
    """A plan with changes as those of `read_values`."""
    values = changed(plan_dict(plan), fields, origin)
    if {"software", "stack"} & fields.keys():
        _check_stack(values, origin)
    return plan_from(_of_family(values, family), origin)


def _of_family(values: dict[str, Any], family: str | None) -> dict[str, Any]:
    """The values with their model's config read as a family."""
    if family and isinstance(values.get("model"), str):
        values["model"] = str(with_family(split_family(values["model"])[0], family))
    return values


def _beside(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """The values with the model, the trace of a load and the files of chips found beside the file,
    where it names a file or folder there."""
    named, load = data.get("model"), data.get("workload")
    if isinstance(named, str):
        data = data | {"model": from_folder(named, path.parent)}
    if isinstance(data.get("trace"), str):
        data = data | {"trace": file_from_folder(data["trace"], path.parent)}
    if isinstance(load, dict) and isinstance(load.get("trace"), str):
        trace = file_from_folder(load["trace"], path.parent)
        data = data | {"workload": {**load, "trace": trace}}
    chips = data.get("chips")
    if isinstance(chips, dict) and isinstance(chips.get("files"), list):
        seen = [file_from_folder(str(name), path.parent) for name in chips["files"]]
        data = data | {"chips": {**chips, "files": seen}}
    return data


def keys_written(path: Path | str) -> frozenset[str]:
    """The keys that a plan's file has, those of its tables by dotted path, to tell what was written
    from what was worked out."""
    data = read_yaml(plan_path(str(path)), "the plan")
    return frozenset(_dotted(data)) if isinstance(data, dict) else frozenset()


def origin_of(
    written: Collection[str], plan: TrainPlan | ServePlan, searched: Collection[str], key: str
) -> str:
    """Where a choice of a plan in a file with such keys comes from: the "file", the best of what it
    leaves open ("searched"), what the users of its program leave ("usual"), "computed" from the
    others, or the "default"."""
    by_hand = handwritten if isinstance(plan, TrainPlan) else handwritten_serve
    if key in written or by_hand.WORD_OF.get(key) in written:
        return "file"
    if key.partition(".")[0] in searched:
        return "searched"
    if isinstance(plan, TrainPlan) and plan.software in SOFTWARE and "model_hash" not in written:
        usual = SOFTWARE[plan.software].usual
        if key in usual and usual[key] == reduce(getattr, key.split("."), plan):
            return "usual"
    return "computed" if key in by_hand.COMPUTED else "default"


def _dotted(data: Mapping[Any, Any]) -> Iterator[str]:
    for key, value in data.items():
        inner = value if isinstance(value, Mapping) else {}
        yield from (f"{key}.{name}" for name in inner)
        if not inner:
            yield str(key)


def changed(data: dict[str, Any], overrides: Mapping[str, str], origin: str) -> dict[str, Any]:
    """A plan's values, with those at some dotted paths replaced by YAML. Another software has its
    own stack, so that the one of the former goes."""
    if "software" in overrides and "stack" not in overrides:
        data = {key: value for key, value in data.items() if key != "stack"}
    for dotted, text in overrides.items():
        _override(data, dotted, parse_yaml(text, f"the value of --set {dotted}"), origin)
    return data


def _check_stack(values: Mapping[str, Any], origin: str) -> None:
    """Raise BadRequest where a file names a program and the stack of another one."""
    row, stack = SOFTWARE.get(str(values.get("software"))), values.get("stack")
    if row is None or stack is None or stack in (*row.stacks, row.former_stack):
        return
    raise BadRequest(
        f"'{origin}': key 'stack' is {shown(stack)}, and software {row.name} is priced by "
        f"{' or '.join(row.stacks)}; leave out the key 'stack', or set software to any"
    )


def _with_stack(values: Mapping[str, Any], read: Callable[[str], Slice]) -> Mapping[str, Any]:
    """The values, with the usual stack of the program that they name without one."""
    if "software" not in values or "stack" in values or values.get("kind") != "train":
        return values
    chip, name = read(str(values.get("slice"))).chip, str(values["software"])
    if name == "any":
        return {**values, "stack": usual_stack(chip, handwritten.rank_of(values))}
    return {**values, "stack": software_row(name).stack_on(chip)}


def plan_from(data: Mapping[str, Any], origin: str) -> TrainPlan | ServePlan:
    """A plan from all of its values; `origin` names the file in errors. One that a person began is
    finished elsewhere (`begun_plans`)."""
    if handwritten_serve.is_handwritten(data):
        return _checked(handwritten_serve.worked_out(data, origin, parse_slice), origin)
    if is_handwritten(data) or not {"kind", "model_hash"} & data.keys():
        check_whole(data, origin)
    return _checked(_with_stack(data, parse_slice), origin)


def served_plan_from(
    data: Mapping[str, Any], origin: str, read: Callable[[str], Slice]
) -> TrainPlan | ServePlan:
    """As `plan_from`, the slice of a serving plan that a person began read by `read`."""
    if handwritten_serve.is_handwritten(data):
        return _checked(handwritten_serve.worked_out(data, origin, read), origin)
    return plan_from(_with_stack(data, read), origin)


Begun = tuple[SoftwareRow | None, TrainPlan]
"""A program, and a plan for it."""


def begun_plans(
    data: Mapping[str, Any], origin: str, read: Callable[[str], Slice]
) -> tuple[tuple[Begun, ...], ...]:
    """The training plan that a person began, for each program that it may be for: those of one
    group are alike, and the first group is asked first. What a search chooses is as by default."""
    check_whole(data, origin)
    piece = read(str(data["slice"]))

    def begun(row: SoftwareRow | None) -> Begun:
        plan = _checked(worked_out(data, origin, row, piece), origin)
        assert isinstance(plan, TrainPlan)
        return row, plan

    return tuple(tuple(map(begun, group)) for group in programs(data, piece.chip))


def _checked(data: Mapping[str, Any], origin: str) -> TrainPlan | ServePlan:
    from pydantic import TypeAdapter, ValidationError

    rest = _renewed(data, origin)
    kind = rest.pop("kind", "")
    if not isinstance(kind, str) or kind not in KINDS:
        kind = kind if isinstance(kind, str) else shown(kind)
        raise unknown("plan kind", kind, KINDS, f"the first key of '{origin}' is `kind`")
    cls = KINDS[kind]
    _check_keys(rest, cls, origin)
    _check_texts(rest, origin)
    try:
        return TypeAdapter(cls).validate_python(rest)
    except ValidationError as error:
        raise _mistyped(first_mistake(error.errors(), rest), origin) from None


def _mistyped(mistake: Mistake, origin: str, table: str = "") -> BadRequest:
    """The error for a value of a type that its key does not take; `table` has the key."""
    where = f"'{origin}': key '{'.'.join(filter(None, (table, mistake.place)))}'"
    if mistake.missing:
        return BadRequest(f"{where} is missing; every whole plan has it")
    here = called_here(str(mistake.value), mistake.choices)
    meant = f"; shardwise calls it '{here}'" if here else ""
    what = "is empty" if mistake.value is None else f"is {shown(mistake.value)}"
    what = "has no such name" if mistake.names else what
    return BadRequest(f"{where} {what}; it must be {mistake.must_be}{meant}")


def chip_changes(values: Any, origin: str) -> ChipChanges:
    """What a plan's file says of its chips, where it does; BadRequest names a wrong key."""
    from pydantic import TypeAdapter, ValidationError

    try:
        if isinstance(values, Mapping):
            _check_keys(values, ChipChanges, origin, "chips.")
        return TypeAdapter(ChipChanges).validate_python(values or {})
    except ValidationError as error:
        raise _mistyped(first_mistake(error.errors(), values), origin, "chips") from None


FORMER_KEY = "reshard_after_forward"
"""Key of plans written before `weight_gather`, true or false."""


def _renewed(data: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """The values under the keys of today; BadRequest where an old one is no switch."""
    rest = dict(data)
    if FORMER_KEY not in rest:
        return rest
    dropped = rest.pop(FORMER_KEY)
    if not isinstance(dropped, bool) or "weight_gather" in rest:
        raise BadRequest(
            f"'{origin}': key '{FORMER_KEY}' is {shown(dropped)}; it was true or false, and is "
            "`weight_gather` now: per_pass, per_microbatch or per_step"
        )
    rest["weight_gather"] = "per_pass" if dropped else "per_microbatch"
    return rest


def _check_keys(values: Mapping[str, Any], cls: type, origin: str, prefix: str = "") -> None:
    known = {f.name: f.type for f in fields(cls)}
    for key, value in values.items():
        if key not in known:
            raise unknown("key", f"{prefix}{key}", [f"{prefix}{k}" for k in known], f"in {origin}")
        switch = known[key] in (bool, bool | None)
        if isinstance(value, bool) and not switch:  # to Python true is 1
            raise BadRequest(
                f"'{origin}': key '{prefix}{key}' is {str(value).lower()}; it is no switch, so "
                "give its value"
            )
        for inner in get_args(known[key]) or (known[key],):
            if isinstance(value, dict) and is_dataclass(inner):
                _check_keys(value, inner, origin, f"{prefix}{key}.")  # type: ignore[arg-type]


LONGEST_TEXT = 1000
"""Of a plan's words; the longest are paths of models and engines."""


def _check_texts(values: Mapping[str, Any], origin: str) -> None:
    """Refuse words that no plan needs and that messages would repeat."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            _check_texts(value, origin)
        elif isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise BadRequest(
                f"'{origin}': key '{key}' has {len(value):,} characters; at most "
                f"{LONGEST_TEXT:,} make sense"
            )


_TABLES = ("dtypes", "remat_kinds", "scheduling", "chips")
"""Keys of a plan that hold keys of their own and may be left out."""


def _override(data: dict[str, Any], dotted: str, value: Any, origin: str) -> None:
    *parents, last = dotted.split(".")
    node = data
    for name in parents:
        if node is data and name in _TABLES:
            node.setdefault(name, {})  # a table that the file leaves at its default
        if not isinstance(node.get(name), dict):
            raise unknown("key", dotted, data, f"in {origin}")
        node = node[name]
    node[last] = value
