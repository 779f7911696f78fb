"""Chapter 5, table of 5.2: bytes per strategy, derived from the strategies' layouts."""

from tests.sharding.moved import moved_bytes
from tests.sharding.strategies import strategy

from book.oracle import check, entry
from shardwise.sharding import Mesh
from shardwise.sharding.backward import derive

MESH = Mesh.parse("X=8,Y=8")


def forward_and_backward(name, **sizes):
    derivation = derive(strategy(name).forward(), MESH, sizes)
    return [moved_bytes(derivation, phase) for phase in ("forward", "backward")]


@entry("table.5.comms.DP")
def test_dp(e):
    """The tokens play no part; any batch that divides does."""
    check(e, forward_and_backward("dp", B=MESH["X"], **e["inputs"]))


@entry("table.5.comms.FSDP")
def test_fsdp(e):
    check(e, forward_and_backward("fsdp", B=MESH["X"], **e["inputs"]))


@entry("table.5.comms.TP")
def test_tp(e):
    batch, d = int(e["inputs"]["B"]), e["inputs"]["D"]
    check(e, forward_and_backward("tp", B=batch, D=d, F=4 * d))
