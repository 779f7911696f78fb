"""The views of the page, in the order of its menu; `chips.py` has chips and slices to choose from.

`roofline.py`, `sharding.py`, `models.py` (the accountant), `training.py` and `serving.py` (the
planners), `simulations.py` (machines step by step), `hardware.py`, `validation.py`, `book.py`.
"""

from collections.abc import Mapping

from shardwise.apps.page.view import PageView
from shardwise.apps.page.views import (
    book,
    hardware,
    models,
    roofline,
    serving,
    sharding,
    simulations,
    training,
    validation,
)

ALL = (roofline.VIEW, sharding.VIEW, models.VIEW, training.VIEW, serving.VIEW, *simulations.VIEWS)
ALL += (hardware.VIEW, validation.VIEW, book.VIEW)
VIEWS: Mapping[str, PageView] = {view.name: view for view in ALL}
"""Every view by its name."""
