"""Print how far counted cache sizes are from those that servers printed, row by row.

python scripts/cache_sizes.py

A row of evidence/serving/data/cache_sizes.csv is one server, which printed the size of its cache
when it started, or did not start: its engine and release, model, chip and flags
(`share` of the memory, `tokens` a step, most running `sequences`, `length` of the longest request),
what it printed (`gib` of cache a device, `line_tokens` of "GPU KV cache size"), whether it
`started`, and whether it is `held_out` of what constants of `plans/engine_memory.py` were
chosen by. `seen_gib` is the memory that its log has a chip as.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import shardwise
from shardwise.boundary.tables import read_table
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.serve.request import ServeRequest
from shardwise.planner.serve.server import Server
from shardwise.plans.engine_memory import seen_bytes
from shardwise.plans.serve import SERVE_AXES, ServeDtypes
from shardwise.roofline.engines import load_engine

_DATA = Path(shardwise.__file__).parent / "evidence" / "serving" / "data" / "cache_sizes.csv"


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


def main() -> None:
    rows = sorted(cache_sizes(), key=lambda row: (row.held_out, row.name))
    for row in rows:
        kind = "held out" if row.held_out else "fitted"
        what = f"{row.measured:14,.2f} {row.predicted:14,.2f} {row.error:+7.1%}" if row.told else ""
        state = "" if row.started else f"did not start: {'PLANNED' if row.holds else 'refused'}"
        print(f"{row.name:18} {kind:9} {what:38} {state}".rstrip())
    for held_out in (False, True):
        errors = [row.error for row in rows if row.told and row.held_out is held_out]
        sizes = sorted(map(abs, errors))
        within = sum(size <= 0.2 for size in sizes)
        name = "held out" if held_out else "fitted"
        print(f"{name}: {len(errors)} sizes, median {median(sizes):.1%}, {within} within 20 %, ")
        print(f"  most too large {max(errors):+.1%}")
    failed = [row for row in rows if not row.started]
    print(f"{sum(row.holds for row in failed)} of {len(failed)} failed starts are planned")


if __name__ == "__main__":
    main()
