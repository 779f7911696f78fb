"""The views of the page, in the order of its menu; `chips.py` has chips and slices to choose from.

`roofline.py`, `sharding.py`, `models.py` (the accountant), `training.py` and `serving.py` (the
planners), `simulator.py` (a server under a load), `programs.py` (compiled ones), `simulations.py`
(machines step by step), `hardware.py`, `validation.py`, `book.py`.
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
    training,
    validation,
)

ALL: tuple[PageView[Any], ...] = (roofline.VIEW, sharding.VIEW, models.VIEW, training.VIEW)
ALL += (serving.VIEW, simulator.VIEW, programs.VIEW, *simulations.VIEWS, hardware.VIEW)
ALL += (validation.VIEW, book.VIEW)
VIEWS: Mapping[str, PageView[Any]] = {view.name: view for view in ALL}
"""Every view by its name."""
