"""Closed form of pipeline schedules, on arrays: what the search uses.

For uniform stages it equals the event timeline (`timeline.py`), which the tests check; the best
plans of a search are laid out in time afterwards. F, B, W below are seconds of a microbatch through
ALL chunks of a rank: forward, input gradient with recompute, weight gradient; t is one transfer.
S ranks, M microbatches, v chunks per rank.
"""

import numpy as np

from shardwise.scheduling.pipeline import schedule_row
from shardwise.work import Quantity


def pipeline_seconds(
    kind: str,
    stages: Quantity,
    microbatches: Quantity,
    virtual_stages: Quantity,
    forward: Quantity,
    backward: Quantity,
    weight: Quantity,
    transfer: Quantity = 0.0,
) -> Quantity:
    """Seconds from the first pass to the last, of uniform stages; every argument broadcasts.

    M (F + B + W) plus the longest of a few waits: a maximum over the schedule's critical paths,
    each a sum of passes and transfers of single chunks, f = F/v, b = B/v, w = W/v.

    Exact without transfers. With them exact while t <= min(f, b), and a lower bound beyond, as then
    sends queue up. The paths are found by tracing the event timeline's critical path, not derived
    in the papers; each schedule's file in `scheduling/pipeline/` says what they come to. Counts are
    those that `scheduling.pipeline_schedule` takes.
    """
    row, S = schedule_row(kind), np.asarray(stages)
    parts = row.parts(np.where(S > 1, virtual_stages, 1))
    costs = [forward / parts, backward / parts, weight / parts, transfer]
    waits: Quantity = -np.inf
    for path in row.paths(S, np.asarray(microbatches), parts):
        waits = np.maximum(waits, sum(n * cost for n, cost in zip(path, costs, strict=True)))
    return microbatches * (forward + backward + weight) + np.where(S == 1, 0.0, waits)
