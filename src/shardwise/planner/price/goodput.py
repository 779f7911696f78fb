"""What a long run loses beside its steps: stragglers, checkpoints, failures. All off by default.

The share of the time that trains is

    goodput = 1 / straggler x 1 / (1 + C/tau) x (1 - (tau/2 + R) / MTBF)

to first order: a checkpoint of C seconds after every tau seconds of training (asynchronous ones
stop the step only while they copy), and per failure half an interval of lost work and R seconds to
restart. The best interval is sqrt(2 C MTBF) (Young, "A first order approximation to the optimum
checkpoint interval", 1974). The job fails when any chip does: MTBF = chip MTBF / chips.
"""

from dataclasses import dataclass
from math import inf, sqrt

from shardwise.boundary.records import Record, Unbounded
from shardwise.errors import BadRequest
from shardwise.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What is known of a cluster; the defaults lose nothing.

    `straggler` is the slowest chip's step time over the typical one's, `chip_mtbf` seconds between
    failures of one chip (with its share of host and network), `checkpoint` seconds that training
    stops for one checkpoint, `restart` seconds from a failure to the first new step, `interval`
    seconds of training between checkpoints, 0 for the best one.
    """

    straggler: float = 1.0
    chip_mtbf: float = inf
    checkpoint: float = 0.0
    restart: float = 0.0
    interval: float = 0.0

    def __post_init__(self) -> None:
        if self.straggler < 1:
            raise BadRequest(
                f"straggler is {self.straggler:g}; it is the slowest chip's step time over the "
                "typical one's, so give 1 or more"
            )
        for name in ("checkpoint", "restart", "interval"):
            if getattr(self, name) < 0:
                raise BadRequest(f"{name} is {getattr(self, name):g} s; give 0 or more")
        if self.chip_mtbf <= 0:
            raise BadRequest(f"chip MTBF is {self.chip_mtbf:g} s; give more than 0")
        fails = self.chip_mtbf < inf
        if fails and not self.restart:
            raise BadRequest(
                "failures without the time of a restart would cost nothing; give the seconds "
                "from a failure to the first new step too (--restart-time)"
            )
        if fails and not self.checkpoint:
            raise BadRequest(
                "failures without checkpoints would lose the whole run; give the seconds of a "
                "checkpoint too (--checkpoint-time)"
            )
        if not fails and (self.restart or (self.checkpoint and not self.interval)):
            raise BadRequest(
                "restarts and checkpoints at the best interval cannot take effect where nothing "
                "fails; give the time between failures of a chip too (--chip-mtbf)"
            )
        if self.interval and not self.checkpoint:
            raise BadRequest(
                "a checkpoint interval without the seconds of a checkpoint cannot take effect; "
                "give both"
            )

    @property
    def none(self) -> bool:
        """Whether nothing is lost."""
        return self == Overheads()


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput(Record):
    """What is left of the speed of steps without losses, and what takes the rest. A straggler makes
    steps longer, and so takes none of the time in which they run:

        share = trains / overheads.straggler
    """

    share: float
    """Share of the speed that is left: 1 - straggler - checkpoint - failures."""
    trains: float
    """Share of the time in which steps run."""
    straggler: float
    """Share of the speed that the slowest chip takes."""
    checkpoint: float
    """Share that checkpoints take."""
    failures: float
    """Share that failures take."""
    interval: Unbounded
    """Seconds between checkpoints."""
    job_mtbf: Unbounded
    """Seconds between failures of the job."""


def goodput(overheads: Overheads, chips: int) -> Goodput:
    """The share of time that trains, for a job of `chips`.

    Raises BadRequest where failures come faster than the job makes progress.

    >>> g = goodput(Overheads(chip_mtbf=5e8, checkpoint=60, restart=600), chips=16384)
    >>> round(g.interval), round(g.share, 3)
    (1914, 0.92)
    """
    mtbf = overheads.chip_mtbf / chips
    interval = overheads.interval or sqrt(2 * overheads.checkpoint * mtbf)
    if mtbf == inf and not overheads.interval:
        interval = inf  # nothing fails, so nothing needs saving
    lost = (interval / 2 + overheads.restart) / mtbf if mtbf < inf else 0.0
    if lost >= 1:
        raise BadRequest(
            f"{chips:,} chips that fail every {format_seconds(overheads.chip_mtbf)} each stop the "
            f"job every {format_seconds(mtbf)}, but a failure costs {format_seconds(lost * mtbf)}: "
            "it never finishes; save faster, restart faster, or use fewer chips"
        )
    slow = 1 - 1 / overheads.straggler
    saved = (1 - slow) * overheads.checkpoint / (interval + overheads.checkpoint) if interval else 0
    failed = (1 - slow - saved) * lost
    return Goodput(
        share=1 - slow - saved - failed,
        trains=(1 - slow - saved - failed) * overheads.straggler,
        straggler=slow,
        checkpoint=saved,
        failures=failed,
        interval=interval,
        job_mtbf=mtbf,
    )
