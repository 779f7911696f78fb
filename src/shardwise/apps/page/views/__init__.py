"""The views of the page, in the order of its menu; `chips.py` has chips and slices to choose from,
`decision.py` what both planners end with.

`start.py` asks one question, `training.py` and `serving.py` are the planners it leads to, and
`simulator.py` has a server under a load. Then `roofline.py`, `sharding.py`, `models.py` (the
accountant), `programs.py` (compiled ones), `simulations.py` (machines to watch), `hardware.py`,
`validation.py`, `book.py`.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.apps.page.view import PageView
from shardwise.apps.page.views import (
    book,
    hardware,
    models,
    programs,
    roofline,
    serving,
    sharding,
    simulations,
    simulator,
    start,
    training,
    validation,
)

ALL: tuple[PageView[Any], ...] = (start.VIEW, training.VIEW, serving.VIEW, simulator.VIEW)
ALL += (roofline.VIEW, sharding.VIEW, models.VIEW, programs.VIEW, *simulations.VIEWS)
ALL += (hardware.VIEW, validation.VIEW, book.VIEW)
VIEWS: Mapping[str, PageView[Any]] = {view.name: view for view in ALL}
"""Every view by its name."""
