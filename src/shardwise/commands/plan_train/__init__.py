"""The search for a training plan; imports `base/`, `pricing/` and `program/`.

`train.py` is `plan train`: why this plan and not another is in `why.py`, the first plans as
compiled in `second_opinion.py`, a published plan beside the best one in `against.py` and
`against_page.py`. `sweep.py` is `plan sweep` over the points of `points.py`; `deadline.py` finds
the slice that a run needs. Chips side by side are in `side_by_side.py` and `chips_beside.py` (rows
of both: `swept_result.py`). Read `train.py` first.
"""
