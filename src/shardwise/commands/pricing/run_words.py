"""The words of a whole training run, of a search and of a plan in a file alike: what it loses, and
what stands in place of the expected time."""

from typing import Protocol

from shardwise.boundary import flag_of
from shardwise.boundary.options import Option
from shardwise.commands.base.inputs import parse_share, parse_total
from shardwise.errors import BadRequest
from shardwise.planner.price.goodput import Overheads
from shardwise.results.run import RunLength
from shardwise.units import parse_seconds

Word = float | str | None

RUN_TOKENS = Option(
    about="Length of the run, such as 15T: adds days and dollars.", group="What is planned"
)


def _run(about: str) -> Option:
    return Option(about=about, group="A whole run")


MFU = _run("Replace the expected time by this share of peak (with --tokens).")
PARAMS = _run("Replace the parameter count in --mfu's arithmetic, such as 70e9.")
STRAGGLER = _run("Slowest chip's step time over the typical one's, such as 1.05.")
CHIP_MTBF = _run("Time between failures of one chip with its host, such as 10y.")
CHECKPOINT_TIME = _run("Time that training stops for a checkpoint, such as 30s.")
CHECKPOINT_INTERVAL = _run("Training between checkpoints; the best one where not given.")
RESTART_TIME = _run("Time from a failure to the first new step, such as 10min.")
"""What each word of a run is on the command line."""


class RunAsked(Protocol):
    """A request with the words of a run."""

    @property
    def tokens(self) -> Word: ...
    @property
    def mfu(self) -> Word: ...
    @property
    def params(self) -> Word: ...
    @property
    def straggler(self) -> Word: ...


def run_words(asked: RunAsked) -> RunLength | None:
    """The run that was asked for, None without tokens. Raises BadRequest for words without
    effect."""
    if asked.params and not asked.mfu:
        raise BadRequest("--params changes only the arithmetic of --mfu; give --mfu too")
    for name in ("mfu", "straggler", *_LOSSES):
        if getattr(asked, name) and not asked.tokens:
            raise BadRequest(
                f"{flag_of(asked, name)} changes only the days of a run; give --tokens too"
            )
    if not asked.tokens:
        return None
    return RunLength(
        tokens=parse_total(asked.tokens, "--tokens"),
        mfu=parse_share(asked.mfu, "--mfu") if asked.mfu else None,
        params=parse_total(asked.params, "--params") if asked.params else None,
        overheads=_overheads(asked),
    )


def _overheads(asked: RunAsked) -> Overheads:
    given = {
        name: parse_seconds(getattr(asked, option), flag_of(asked, option))
        for option, name in _LOSSES.items()
        if getattr(asked, option)
    }
    if asked.straggler:
        given |= {"straggler": parse_total(asked.straggler, "--straggler")}
    return Overheads(**given)


_LOSSES = {
    "chip_mtbf": "chip_mtbf",
    "checkpoint_time": "checkpoint",
    "checkpoint_interval": "interval",
    "restart_time": "restart",
}
"""Keyword -> field of Overheads."""
RUN_WORDS = ("tokens", "mfu", "params", "straggler", *_LOSSES)
"""Keywords of a run, which is no part of its plan."""
