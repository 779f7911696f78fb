"""Cache sizes that servers printed when they started, and servers that did not start.

A row of `data/cache_sizes.csv` is one server: its engine and release, model, chip and flags
(`share` of the memory, `tokens` a step, most running `sequences`, `length` of the longest request),
what it printed (`gib` of cache a device, `line_tokens` of "GPU KV cache size"), whether it
`started`, and whether it is `held_out` of what constants of `planner/serve/engine_memory.py` were
chosen by. `seen_gib` is the memory that its log has a chip as.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shardwise.boundary.tables import read_table
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.serve.request import ServeRequest
from shardwise.planner.serve.server import Server
from shardwise.plans.engine_memory import seen_bytes
from shardwise.plans.serve import SERVE_AXES, ServeDtypes
from shardwise.roofline.engines import load_engine

_DATA = Path(__file__).parent / "data" / "cache_sizes.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """One server: `measured` is what it printed of its cache (0: nothing), `predicted` the same
    counted; `holds` whether the counted cache holds one request of its longest length."""

    name: str
    held_out: bool
    started: bool
    measured: float
    predicted: float
    holds: bool

    @property
    def error(self) -> float:
        """By which share the count is too large; negative where it is too small."""
        return self.predicted / self.measured - 1

    @property
    def told(self) -> bool:
        """Whether it printed the size of its cache."""
        return self.measured > 0


@cache
def cache_sizes() -> tuple[CacheSize, ...]:
    """All rows, counted."""
    return tuple(map(_counted, read_table(_DATA, "the table of cache sizes").rows))


def _counted(row: dict[str, str]) -> CacheSize:
    server = _server(row)
    shape = server.shape(float(row["sequences"]) * float(row["expert"]))
    # A share of the memory that the log shows, as one of what the catalogue's chip has.
    share = float(row["share"]) * float(row["seen_gib"]) * 2**30 / seen_bytes(server.piece.chip)
    measured, predicted = float(row["gib"] or 0), server.cache_bytes(shape, share) / 2**30
    if row["line_tokens"]:
        measured, predicted = float(row["line_tokens"]), server.line_tokens(shape, share)
    return CacheSize(
        name=row["id"],
        held_out=row["held_out"] == "yes",
        started=row["started"] == "yes",
        measured=measured,
        predicted=float(predicted),
        holds=float(server.cache_tokens(shape, share)) >= int(row["length"]),
    )


def _server(row: dict[str, str]) -> Server:
    cfg, tensor, expert = load_model(row["model"]), int(row["tensor"]), int(row["expert"])
    piece = parse_slice(f"{row['chip']}:{tensor * expert}")
    dtypes = ServeDtypes(weights=row["weights"], kv=row["kv"])
    request = ServeRequest(
        cfg=cfg,
        model=row["model"],
        pieces=(piece,),
        input_length=int(row["length"]) - 1,
        output_length=1,
        dtypes=(dtypes,),
        chunks=(int(row["tokens"]) * expert,),
        batch=int(row["sequences"]) * expert,
        engine=load_engine(row["engine"]),
        release=row["release"],
        graphs=row["graphs"] == "yes",
    )
    degrees = dict.fromkeys(SERVE_AXES, 1) | {"tensor": tensor, "expert": expert}
    return Server(
        request=request,
        piece=piece,
        box=piece.shape,
        degrees=degrees,
        kv_sharding="heads",
        dtypes=dtypes,
    )
