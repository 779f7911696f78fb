"""A pipeline schedule as one row: what planner, runtime, exports and documents read of it.

S is the number of ranks, M of microbatches, v of chunks per rank. Functions of counts take whole
numbers or arrays of them, except where they say otherwise.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardwise.scheduling.pipeline.passes import Action
from shardwise.work import Quantity

Path = tuple[Quantity, Quantity, Quantity, Quantity]
"""How many F, B and W passes of single chunks a critical path has beyond those of M microbatches
(fewer where negative), and how many transfers."""

Arrangement = Literal["line", "fold", "mirror"]
"""Where stages lie. "line": chunk c of rank r holds stage r + c S. "fold": two chunks in a V,
stages r and 2S-1-r, so that the last stage is on the rank of the first. "mirror": each stage twice,
r and S-1-r; half of the microbatches enter from either end, through chunk 0 or chunk 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """One pipeline schedule.

    `chunks` are the chunks per rank that a plan may choose where there are several ranks; on one
    rank there is one chunk. `order(rank, S, M, v)` lists the passes of one rank, S = v = 1
    included. `held(S, M, v, rank)` is how many microbatches' activations the rank holds where there
    are enough of them, in units of a whole stage's. `paths(S, M, v)` are the critical paths of
    uniform stages of which the longest decides, with v as the `parts` of a rank. With
    `splits_backward` B is the input gradient alone and W stands beside it. With `pairs_passes` a
    forward pass runs together with the backward pass of another microbatch, so that either's
    compute hides the other's exchange of tokens.

    `counts(S, M)` says which counts the table takes on several ranks, `law` says it in words, and
    `refusal(S, M)` is the sentence for whole numbers that it does not take. `chunks_said` does so
    for chunks.
    """

    name: str
    chunks: tuple[int, ...]
    order: Callable[[int, int, int, int], Iterable[Action]]
    held: Callable[[Quantity, Quantity, Quantity, Quantity], Quantity]
    paths: Callable[[Quantity, Quantity, Quantity], Iterator[Path]]
    arrangement: Arrangement = "line"
    splits_backward: bool = False
    pairs_passes: bool = False
    chunks_said: str = ""
    counts: Callable[[Quantity, Quantity], Quantity] = lambda S, M: True
    law: str = ""
    refusal: Callable[[int, int], str] = lambda S, M: ""

    @property
    def ends_together(self) -> bool:
        """Whether the first and the last stage lie on one device."""
        return self.arrangement != "line"

    @property
    def doubled(self) -> bool:
        """Whether every stage exists twice, on two devices that sum its gradients."""
        return self.arrangement == "mirror"

    def parts(self, chunks: Quantity) -> Quantity:
        """Into how many parts a rank's layers are cut: a mirrored rank's two chunks are a whole
        stage each, of which a microbatch meets one."""
        return np.ones_like(chunks) if self.doubled else chunks

    def place_of(self, stage: int, stages: int, second: bool = False) -> tuple[int, int]:
        """(rank, chunk) of a global stage over so many ranks; of a mirrored schedule the `second`
        of its two places."""
        chunk, rank = divmod(stage, stages)
        chunk = int(second) if self.doubled else chunk
        return (stages - 1 - rank if chunk and self.ends_together else rank), chunk

    def takes_chunks(self, stages: Quantity, chunks: Quantity) -> Quantity:
        """Whether the table takes so many chunks: one on one rank, else those of the row, and more
        where it takes several counts."""
        least = self.chunks[0]
        several = np.asarray(chunks) >= least if len(self.chunks) > 1 else np.equal(chunks, least)
        return np.where(np.asarray(stages) == 1, np.equal(chunks, 1), several)

    def takes(self, stages: Quantity, microbatches: Quantity, chunks: Quantity) -> np.ndarray:
        """Whether the table takes these counts; everything broadcasts."""
        S, M = np.asarray(stages), np.asarray(microbatches)
        legal = np.where(S == 1, True, self.counts(S, M))
        return self.takes_chunks(S, chunks) & legal & (M >= 1)

    def in_flight(
        self, stages: Quantity, microbatches: Quantity, chunks: Quantity, rank: Quantity = 0
    ) -> Quantity:
        """Microbatches whose activations a rank holds, in units of a whole stage's; the fullest
        rank is the first. An activation counts until the end of its W, though parts of it may go
        after B."""
        S, M, v = np.asarray(stages), np.asarray(microbatches), np.asarray(chunks)
        return np.minimum(self.held(S, M, v, rank), M)
