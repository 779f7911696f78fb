"""How many cache pages will be in use: the peak over the rest of what runs now.

All decoding sequences grow by a token a step and give their pages back when they end, so the use
rises between two ends and peaks just before one. Admitting by this forecast fills the cache
further than reserving every request's longest answer at once, and still never has to preempt
(tokasaurus forecasts blocks for the same reason).
"""

from collections.abc import Iterable


def peak_pages(
    growing: Iterable[tuple[int, int]], page_size: int, fixed: int = 0, lookahead: int = 0
) -> int:
    """Most pages in use at once, rounded up for each sequence; never too few.

    `growing` holds, for each decoding sequence, its cached tokens and how many more it may cache
    (it writes one a step); `fixed` pages are held throughout. `lookahead` further tokens must have
    a place at every step.
    """
    context = peak = 0
    last_first = sorted(growing, key=lambda pair: -pair[1])
    for alive, (cached, left) in enumerate(last_first, 1):
        context += cached
        tokens = context + alive * (left + lookahead)
        peak = max(peak, (tokens + alive * (page_size - 1)) // page_size)
    return peak + fixed


def pages_for(tokens: int, page_size: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // page_size)
