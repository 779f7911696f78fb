"""The views of the page, a file each: `roofline.py`, `training.py`.

`chips.py` has the chips to choose from and their slices.
"""

from collections.abc import Mapping

from shardwise.apps.page.view import PageView
from shardwise.apps.page.views import roofline, training

VIEWS: Mapping[str, PageView] = {view.name: view for view in (roofline.VIEW, training.VIEW)}
"""Every view by its name."""
