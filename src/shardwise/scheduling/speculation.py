"""Speculative decoding: how many tokens a step brings, and where the guesses come from.

A draft model, or the sequence's own past (n-grams), proposes k tokens; one pass of the model checks
them all and adds one of its own. With each guess accepted with probability a by itself, a step
brings (1 - a^(k+1)) / (1 - a) tokens on average (Leviathan et al., arXiv 2211.17192, eq. 1).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Literal

from shardwise.errors import BadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """`tokens` guesses a step, each accepted with probability `acceptance` after one that was, or
    by `positions` in such a share of the steps, as vLLM counts them ("per-position acceptance").

    `cost` is the time of one guess as a share of a decoding step of the model (c of the paper);
    n-grams are free.
    """

    method: Literal["draft", "ngram"] = "ngram"
    tokens: int
    acceptance: float = 0.0
    cost: float = 0.0
    positions: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.positions:
            check_positions(self.positions, self.tokens)
        if self.tokens < 1:
            raise BadRequest(f"speculation of {self.tokens} tokens guesses nothing; give 1 or more")
        if not 0 <= self.acceptance <= 1:
            raise BadRequest(f"acceptance is {self.acceptance}; it is a probability, from 0 to 1")
        if self.cost < 0:
            raise BadRequest(f"cost of a guess is {self.cost}; it must not be negative")
        if self.method == "ngram" and self.cost:
            raise BadRequest("guesses by n-grams run no model: cost takes no effect, leave it out")

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step brings on average, the model's own included."""
        if self.positions:
            return 1.0 + sum(self.positions[: self.tokens])
        a, k = self.acceptance, self.tokens
        return k + 1.0 if a == 1 else (1 - a ** (k + 1)) / (1 - a)

    def accepted(self, draw: Random) -> int:
        """Guesses accepted in one step: up to the first that is not."""
        count = 0
        if self.positions:
            drawn = draw.random()
            return sum(drawn < share for share in self.positions[: self.tokens])
        while count < self.tokens and draw.random() < self.acceptance:
            count += 1
        return count


def check_positions(positions: Iterable[float], tokens: int) -> None:
    """Raise BadRequest for shares of steps that so many guesses cannot have."""
    shares = tuple(positions)
    falling = all(a >= b for a, b in pairwise((1.0, *shares, 0.0)))
    if len(shares) < tokens or not falling:
        told = ", ".join(f"{share:g}" for share in shares)
        raise BadRequest(
            f"acceptance by position is {told} for {tokens} guesses; give a share of the steps for "
            "each guess, from 0 to 1 and none above the one before it"
        )


class PastTokens:
    """A sequence, and what followed its last tokens when they stood in it before (prompt lookup
    decoding): the longest of `LENGTHS` that did, the last time that it did.

    >>> past = PastTokens([5, 6, 7, 8, 5, 6])
    >>> past.guess(3)
    [7, 8, 5]
    """

    LENGTHS = (3, 2)

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # where what followed begins
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Tokens that come next."""
        for token in tokens:
            end = len(self.tokens)
            for length in self.LENGTHS:
                if end >= length:
                    self._after[tuple(self.tokens[end - length :])] = end
            self.tokens.append(token)

    def guess(self, count: int) -> list[int]:
        """At most `count` tokens that may come next; none where nothing is known."""
        for length in self.LENGTHS:
            start = self._after.get(tuple(self.tokens[-length:]))
            if start is not None:
                return self.tokens[start : start + count]
        return []
