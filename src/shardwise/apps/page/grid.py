"""Which states of the views an exported site has: of `grid.toml` and of the views' controls."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from shardwise.apps.page.controls import Control, state_of, words_of, written
from shardwise.apps.page.view import PageView
from shardwise.apps.page.views import VIEWS
from shardwise.apps.page.views.chips import CHIPS
from shardwise.boundary.documents import parse_toml
from shardwise.errors import check_known
from shardwise.models import zoo_names

DATA = Path(__file__).with_name("grid.toml")
USUAL_SECONDS = 0.1
"""Of an answer of a view that `grid.toml` does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridState:
    """A state of a view by the words that are not at their defaults, in the controls' order."""

    view: str
    words: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """What the page looks it up by; page/src/source.js makes the same."""
        return "&".join(f"{name}={word}" for name, word in self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteGrid:
    """Models, chips and views of a site, and the seconds that an answer takes by view; of a
    `coarse` site those of answers that are quick."""

    models: Sequence[str]
    chips: Sequence[str]
    views: Sequence[str] = tuple(VIEWS)
    seconds: Mapping[str, float]
    coarse_seconds: Mapping[str, float]
    coarse: bool = False

    def states(self) -> list[GridState]:
        """Each state once, those that take long last."""
        found = (state for name in self.views for state in self._of(VIEWS[name]))
        return sorted(dict.fromkeys(found), key=lambda one: self.seconds_of([one]))

    def seconds_of(self, states: Iterable[GridState]) -> float:
        """What they take on one core, about."""
        each = {**self.seconds, **(self.coarse_seconds if self.coarse else {})}
        return sum(each.get(one.view, USUAL_SECONDS) for one in states)

    def _of(self, view: PageView[Any]) -> Iterator[GridState]:
        """Controls that are crossed with each other, then each of the others alone."""
        rows = {one.name: self._positions(one) for one in view.controls}
        for words in product(*(rows[name] for name in view.crossed)):
            yield grid_state(view, dict(zip(view.crossed, words, strict=True)))
        for name in rows:
            if name not in view.crossed:
                yield from (grid_state(view, {name: word}) for word in rows[name])

    def _positions(self, control: Control) -> list[str]:
        """The words of a control: of models and chips those of the site, and always its default."""
        values = [written(one) for one in control.values]
        if control.kind == "flag":
            values = ["no", "yes"]
        elif control.kind == "name":
            values = list(self.models)
        elif set(values) & set(CHIPS):
            values = [one for one in values if one in self.chips or one not in CHIPS]
        return list(dict.fromkeys([written(control.default), *values]))


def grid_state(view: PageView[Any], words: Mapping[str, str]) -> GridState:
    """The state that these words say. Raises BadRequest where a control refuses one."""
    said = words_of(state_of(view.state, words))
    usual = {one.name: written(one.default) for one in view.controls}
    changed = ((name, word) for name, word in said.items() if word != usual[name])
    return GridState(view=view.name, words=tuple(changed))


def site_grid(
    models: Sequence[str] = (), chips: Sequence[str] = (), views: Sequence[str] = ()
) -> SiteGrid:
    """The grid of a site with these models, chips and views, or with those of `grid.toml`. Raises
    BadRequest for an unknown name."""
    usual = SiteGrid(**parse_toml(DATA.read_text("utf-8"), DATA.name))
    for what, names, known in (("model", models, zoo_names()), ("chip", chips, CHIPS)):
        for name in names:
            check_known(what, name, known)
    for name in views:
        check_known("view", name, VIEWS)
    return replace(
        usual, models=models or usual.models, chips=chips or usual.chips, views=views or usual.views
    )
