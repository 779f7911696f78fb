"""Searches answer each request once per process, and published runs are priced once, for tests that
name the fixture `answers_kept`: many ask for the same."""

from collections import OrderedDict
from dataclasses import replace
from functools import cache, wraps
from pathlib import Path

import pytest

from shardwise.planner.search.loop import search as _search
from shardwise.planner.search.request import TrainRequest


def keep(monkeypatch):
    """Have production answer from what is kept, for as long as the patch lasts."""
    for target, name, kept in _kept_answers():
        monkeypatch.setattr(target, name, kept)


def keep_scores(monkeypatch):
    """Have published runs priced once in this process, for whoever validates them."""
    (kept,) = (kept for kept in _kept_answers() if kept[1] == "_scored")
    monkeypatch.setattr(*kept)


def leave_rows_out(monkeypatch):
    """Have `plan serve` answer without the rows of what else would serve."""
    from shardwise.commands.plan_serve.serve import ServePlanRequest

    _kept_answers()  # of production's own answers, before one is replaced
    monkeypatch.setattr(ServePlanRequest, "answer", _without_rows())


@cache
def _without_rows():
    """The answer of a request; kept apart from those that have the rows."""
    from shardwise.commands.plan_serve import serve

    answer = serve.ServePlanRequest.answer
    answer = getattr(answer, "__wrapped__", answer)

    @wraps(answer)
    def alone(request, progress=None, watch=None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(serve, "alternatives", lambda serving, others: [])
            return answer(request, progress, watch)

    return answered_once(alone)


@cache
def _kept_answers():
    """What is replaced by what; the same for every test, so that they share."""
    from shardwise.commands.plan_serve.serve import ServePlanRequest
    from shardwise.commands.pricing import predict
    from shardwise.evidence.training import validate
    from shardwise.planner import training

    return (
        (training, "search", search),
        (predict, "plan_train", planned_once(predict.plan_train)),
        (validate, "_scored", scored_once(validate._scored)),
        (ServePlanRequest, "answer", answered_once(ServePlanRequest.answer)),
    )


class _Asked:
    """A request as a key: equal where all that it says is equal."""

    def __init__(self, request: TrainRequest) -> None:
        self.request, self.text = request, repr(request)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


_KEPT = {}


@wraps(_search)
def search(request, keep, progress=None, *, exhaustive=False):
    """A known answer tells its progress that all is done."""
    asked = _Asked(request), keep, exhaustive
    if asked not in _KEPT:
        _KEPT[asked] = _search(request, keep, progress, exhaustive=exhaustive)
    elif progress:
        progress(1, 1)
    return _KEPT[asked]


def scored_once(scored):
    """`_scored` of a published run, which prices its plan, once for each process, in whichever
    line of a file it stands."""
    kept = {}

    @wraps(scored)
    def once(run, efficiency):
        asked = repr(replace(run, line=None)), efficiency
        if asked not in kept:
            kept[asked] = scored(run, efficiency)
        return replace(kept[asked], run=run)

    return once


LATEST = 64
"""Plannings that are kept: with all their ops they are large, and one is soon asked for again."""


def planned_once(plan_train):
    """`plan_train`, which prices the best plans of a search anew, once for each of the `LATEST`
    requests."""
    kept = OrderedDict()

    @wraps(plan_train)
    def once(request, *, top=3, progress=None, exhaustive=False):
        asked = _Asked(request), top, exhaustive
        if asked not in kept:
            kept[asked] = plan_train(request, top=top, progress=progress, exhaustive=exhaustive)
        elif progress:
            progress(1, 1)
        kept.move_to_end(asked)
        if len(kept) > LATEST:
            kept.popitem(last=False)
        return kept[asked]

    return once


def answered_once(answer):
    """`ServePlanRequest.answer`, once per process for each request that reads no file."""
    kept = {}

    @wraps(answer)
    def once(request, progress=None, watch=None):
        files = [name for name in (request.model, request.trace, *request.hw_files) if name]
        if progress or request.compile or any(Path(name).exists() for name in files):
            return answer(request, progress, watch)
        asked = repr(request).replace("'", "")  # a command says '1024' where a call says 1024
        if asked not in kept:
            kept[asked] = answer(request)
        return kept[asked]

    return once
