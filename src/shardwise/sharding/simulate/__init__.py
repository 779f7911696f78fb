"""An exact executor of collectives: blocks move hop by hop and every link counts its bytes.

It proves the closed forms of `roofline/collectives.py`: the algorithm that a form names is run here
on real NumPy blocks, on rings (both ways or one), lines, N-D tori with several and with split axes,
full meshes, switches, trees of them and chips of several devices. The result is checked, the bytes
of the busiest link and the hops are the form's. `fabric.py` says what is linked and which devices
form a group, `schedule.py` has the algorithms, `collectives.py` runs them,
`trace.py` is what comes out, `frames.py` that as plain data for screens. Nothing here knows a chip
but `placed.py`, which makes the fabric under the axes of a placed mesh. Read `schedule.py` first.
"""

from shardwise.sharding.simulate.collectives import simulate
from shardwise.sharding.simulate.fabric import Fabric
from shardwise.sharding.simulate.frames import CollectiveFrames, trace_frames
from shardwise.sharding.simulate.placed import fabric_of, targets_of
from shardwise.sharding.simulate.trace import CollectiveTrace

__all__ = [
    "CollectiveFrames",
    "CollectiveTrace",
    "Fabric",
    "fabric_of",
    "simulate",
    "targets_of",
    "trace_frames",
]
