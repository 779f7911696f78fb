"""The options with which another program's file is read that leaves its model or its slice out:
an example of each that the file can be read with, for a command that works as it stands."""

from collections.abc import Iterator, Mapping
from itertools import islice

from shardwise.commands.base.inputs import Hardware
from shardwise.errors import BadRequest, Gives, Lacking
from shardwise.models import load_model
from shardwise.models.zoo import zoo_names
from shardwise.planner.checks import check_plan
from shardwise.planner.export import EXPORTERS, parse_export

_SLICES = ("h100:8", *(f"{1 << n}*h100:8" for n in range(1, 11)), "h100:1", "h100:2", "h100:4")
"""Slices to name: hosts of one kind, as many as a file's degrees take (ours)."""
_MODEL = "llama-3.1-8b"
"""The model to name where a file says nothing of its own (ours)."""
_MOST = 40
"""Models that a file is read with, at most, until one fits its numbers."""


def reading_options(text: str, target: str, given: Mapping[str, str]) -> dict[str, str]:
    """`given` options (--model, --on) and those that the text lacks beside them."""
    found = dict(given)
    while (lacks := _tried(text, target, found)) is not None:
        name, values = lacks.gives.value, _values(lacks)
        if name in found:
            return found
        fits = (value for value in values if _moves_on(text, target, found | {name: value}, name))
        found[name] = next(fits, lacks.gives.name)
    return found


def with_own(options: Mapping[str, str], given: Mapping[str, str]) -> str:
    """That the examples stand for one's own.

    >>> with_own({"--model": "m", "--on": "h100:8"}, {"--model": "m"})
    'with your own slice for h100:8'
    >>> with_own({"--model": "LlamaForCausalLM(hidden_size=8, vocab_size=32000)"}, {})
    "with your tokenizer's vocab_size"
    """
    words = {Gives.MODEL.value: "model", Gives.SLICE.value: "slice"}
    own = [
        "your tokenizer's vocab_size" if "(" in value else f"your own {words[option]} for {value}"
        for option, value in options.items()
        if option not in given
    ]
    return f"with {' and '.join(own)}"


def _values(lacks: Lacking) -> Iterator[str]:
    if lacks.gives is Gives.SLICE:
        yield from _SLICES
        return
    yield from islice(filter(None, (lacks.example, _MODEL, *zoo_names())), _MOST)


def _moves_on(text: str, target: str, options: Mapping[str, str], name: str) -> bool:
    """Whether the text can be read with the options, or lacks another one."""
    try:
        lacks = _tried(text, target, options)
    except BadRequest:
        return False
    return lacks is None or lacks.gives.value != name


def _tried(text: str, target: str, options: Mapping[str, str]) -> Lacking | None:
    """What the text lacks beside the options; None where it is read with them."""
    model, on = options.get(Gives.MODEL.value), options.get(Gives.SLICE.value)
    if model == Gives.MODEL.name or on == Gives.SLICE.name:
        return None
    named = None if model is None else (model, load_model(model))
    piece = None if on is None else Hardware().slice(on).slice
    try:
        plan = parse_export(text, target, model=named, piece=piece)
        cfg = load_model(plan.model)
        EXPORTERS[target].check(text, cfg)
        check_plan(plan, cfg, Hardware().slice(plan.slice).slice)
    except Lacking as error:
        return error
    return None
