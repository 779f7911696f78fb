"""One question: what to train by when, or what to serve within which times; and one answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import (
    PASTE,
    ViewState,
    choice,
    entry,
    known,
    state_of,
    words_of,
)
from shardwise.apps.page.view import Drawn, PageView, ViewLink
from shardwise.apps.page.views import models, roofline, serving, training
from shardwise.apps.page.views.chips import ALL_CHIPS, chip_choice, room
from shardwise.commands.base.answer import Answer
from shardwise.commands.plan_serve.serve import ServePlanned
from shardwise.commands.plan_train.train import TrainPlanned
from shardwise.errors import BadRequest
from shardwise.models import load_model, zoo_names

TASKS = ("train it", "serve it")
BATCH, SEQ = "4Mi", 4096
"""Of the run: tokens of a step, and of a sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartState(ViewState):
    """The controls of the view."""

    model: str = known("Model", zoo_names(), "llama-3-8b", about=PASTE)
    task: str = choice("To do", TASKS, TASKS[0])
    on: str = chip_choice("Chip", ALL_CHIPS, "h100")
    tokens: str = entry("Train on", "1T", about="Tokens of the run.", group="To train it")
    days: str = entry("Within days", "30", group="To train it")
    input: str = entry("Prompt", "2048", about="Tokens.", group="To serve it")
    output: str = entry("Answer", "256", about="Tokens.", group="To serve it")
    rate: str = entry("Requests per second", "10", group="To serve it")
    ttft: str = entry("First token within", "1s", group="To serve it")
    tpot: str = entry("Then a token within", "40ms", group="To serve it")


def _calls(state: StartState) -> list[VerbCall]:
    """None; an unknown model is refused before it is searched with."""
    load_model(state.model)
    return []


def _search(state: StartState, quick: bool = False) -> list[VerbCall]:
    given = (state.model, state.on)
    more = {"coarse": quick or None}
    if state.task == TASKS[0]:
        keywords = {"batch": BATCH, "seq": SEQ, "tokens": state.tokens, "days": state.days, **more}
        return [VerbCall(verb="plan_train", given=given, keywords=keywords)]
    names = ("input", "output", "rate", "ttft", "tpot")
    keywords = {name: getattr(state, name) or None for name in names} | more
    return [VerbCall(verb="plan_serve", given=given, keywords=keywords)]


def _draw(state: StartState, answers: Sequence[Answer]) -> Drawn:
    if not answers:
        return Drawn()
    found = answers[0]
    if isinstance(found, TrainPlanned):
        return Drawn(
            says=training.sentence(state.model, state.on, found),
            key=training.key_figures(found),
            figures=[training.where(found), training.memory(found)],
            lines=training.plan_lines(found),
            links=[
                *_links("All of this plan, and others", training.VIEW, state, _train(found)),
                *_links("What the model holds", models.VIEW, state, {}),
                *_links("The chip's roofline", roofline.VIEW, state, {}),
            ],
            source="count, then price (docs/architecture.md)",
        )
    assert isinstance(found, ServePlanned)
    return Drawn(
        says=serving.sentence(found),
        key=serving.key_figures(found),
        figures=[*serving.fronts(found)[:1], serving.where(found)],
        tables=[serving.others(found)],
        lines=[serving.longest_part(found)],
        links=[
            *_links("All of this plan, and others", serving.VIEW, state, _served(found)),
            *_links("What the model holds", models.VIEW, state, {}),
            *_links("The chip's roofline", roofline.VIEW, state, {}),
        ],
        source="simulated (docs/serving.md)",
    )


def _train(found: TrainPlanned) -> dict[str, str]:
    chips = found.chips_used + found.chips_idle
    return {"chips": str(chips), "batch": BATCH, "seq": str(SEQ)}


def _served(found: ServePlanned) -> dict[str, str]:
    chips = room(found.slice.partition(":")[0].rpartition("*")[2], found.chips)
    more = {"chips": str(chips), "weights": serving.AS_PUBLISHED, "kv": "bf16"}
    return more | {"software": found.software}


def _links(
    text: str, view: PageView[Any], state: StartState, more: dict[str, str]
) -> list[ViewLink]:
    """Another view, with the words that both have; none where its controls do not reach them."""
    taken = {control.name for control in view.controls}
    words = {name: word for name, word in words_of(state).items() if name in taken} | more
    try:
        state_of(view.state, words)
    except BadRequest:
        return []
    return [ViewLink(text=text, view=view.name, state=words)]


VIEW: PageView[Any] = PageView(
    name="start",
    title="Start",
    about="What to train or serve, and by when: the fewest chips, days and dollars.",
    group="Plan",
    state=StartState,
    calls=_calls,
    slow=_search,
    quick=partial(_search, quick=True),
    draw=_draw,
    crossed=("task", "model", "on"),
)
