"""Predicted against published peak memory, and runs that ran out of it, into docs/accuracy.md.

Of every source of published peaks the median error, where the runs count what an allocator had
taken with what runs of other publishers take over their tensors. Of runs that ran, how many do not
fit by our count. Of runs that ran out of memory (`out_of_memory.csv`), how many are refused: with
all of the usable memory, and with the margin that a plan for such software keeps.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from fit.resolution import peak_bytes
from made import put, table

from shardwise.evidence.training.runs import PublishedRun, read_runs
from shardwise.evidence.training.table import PUBLISHED, read_table
from shardwise.roofline.resolution import read_resolution

OUT_OF_MEMORY = PUBLISHED.with_name("out_of_memory.csv")
"""Published runs that ended for want of memory, in the columns of docs/runs.md; the notes have what
the source says of it."""
PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A run and the peak bytes of tensors that are predicted of it."""

    run: PublishedRun
    predicted: float

    @property
    def filled(self) -> float:
        """Predicted bytes over usable ones."""
        return self.predicted / self.run.piece.chip.require("hbm_usable_bytes")

    @property
    def allowed(self) -> float:
        """The share of usable memory that a plan for its software takes."""
        return 1.0 - read_resolution().margin(self.run.stack, self.run.piece.chip.vendor).value


@cache
def peaks(path: Path = PUBLISHED) -> tuple[Peak, ...]:
    """Of every run of a table that a plan can express."""
    runs, _ = read_runs(read_table(path).rows, path.parent)
    return tuple(Peak(run=run, predicted=peak_bytes(run)) for run in runs)


def errors(found: Sequence[Peak]) -> dict[str, list[float]]:
    """Relative errors of the runs that publish a peak, by source."""
    known = [(p, p.run.peak_mem_bytes / p.predicted) for p in found if p.run.peak_mem_bytes]
    by_source = defaultdict(list)
    for peak, ratio in known:
        others = [(p, r) for p, r in known if p.run.group != peak.run.group]
        taken = [r for other, r in others if other.run.reserved]
        by_source[peak.run.source].append((median(taken) if peak.run.reserved else 1.0) / ratio - 1)
    return dict(sorted(by_source.items()))


def told() -> str:
    """The part of the page."""
    by_source, ran, ended = errors(peaks()), peaks(), peaks(OUT_OF_MEMORY)
    sizes = {source: [abs(e) for e in some] for source, some in by_source.items()}
    rows = [
        [source, str(len(some)), f"{median(sizes[source]):.1%}", f"{median(some):+.1%}"]
        for source, some in by_source.items()
    ]
    over = [peak for peak in ran if peak.filled > 1]
    refused = sum(p.filled > 1 for p in ended)
    by_margin = sum(p.filled > p.allowed for p in ended)
    said = (
        f"Median of the sources: {median(map(median, sizes.values())):.1%}. Of {len(ran)} runs that"
        f" ran {len(over)} ({len(over) / len(ran):.1%}) need more than the usable memory by our "
        f"count. Of {len(ended)} that ran out of memory (of {len({p.run.group for p in ended})} "
        f"publishers) {refused} are refused with a margin of 0, {by_margin} "
        f"({by_margin / len(ended):.0%}) with the margin of their software."
    )
    return f"{table(['source', 'runs', 'median error', 'signed'], rows)}\n\n{said}"


if __name__ == "__main__":
    put(PAGE, __file__, told())
    print(told())
