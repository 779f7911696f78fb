"""A request for tokens, how its tokens are chosen, and what has come of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self

import numpy as np

from shardwise.errors import BadRequest, ShardwiseError, WrongField
from shardwise.scheduling.speculation import PastTokens

Finish = Literal["stop", "length", "abort"]
"""Why a generation ended: a stop token or string, its `max_tokens`, or `Engine.cancel`."""
MOST_LOGPROBS = 20
NO_TOKEN = -2
"""In place of a token, where the model's logits are no numbers to choose by."""


class FormError(BadRequest):
    """An answer cannot go on in the form that its request asked for."""


class LogitsError(ShardwiseError):
    """The model computes no numbers: its weights are damaged, or overflow their dtype."""


NO_NUMBERS = (
    "the model's logits are NaN or infinite; its weights are damaged, or too large for the "
    "compute dtype: check the checkpoint, or serve it with other --weights"
)


class Constrained(Protocol):
    """The state of an answer that is held to a form (runtime/text/grammar.py has one)."""

    def fresh(self) -> Self:
        """The same state for another answer."""
        ...

    def allowed(self) -> np.ndarray:
        """A bit for each token that may come next, uint32; tokens beyond them may not."""
        ...

    def take(self, token: int) -> str:
        """Go on by a token; what is wrong with it, if anything is."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the answer may end here."""
        ...

    @property
    def done(self) -> bool:
        """Whether nothing can follow."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the tokens of one request are chosen, by the names of OpenAI's and vLLM's APIs.

    `temperature` 0 takes the most likely token. `top_k` (0: all), `top_p` and `min_p` keep the k
    most likely tokens, the fewest whose probabilities sum to p, those at least min_p times as
    likely as the first. `seed` makes the tokens a function of the request; None draws one.
    `repetition_penalty` divides positive logits (multiplies negative ones) of tokens seen in prompt
    or answer, `frequency_penalty` and `presence_penalty` are subtracted for tokens of the answer:
    per occurrence, and once. `logit_bias` adds to logits; `banned` token sequences do not come out.
    `logprobs` is how many of the likeliest tokens are reported beside the chosen one (None: not
    even that), `prompt_logprobs` the same for the prompt. `stop_ids` end the answer and belong to
    it; with `ignore_end` only those given here do, not the model's own. Nothing ends an answer
    before `min_tokens`, but the end of its `form`, which says what tokens may come.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    banned: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    ignore_end: bool = False
    form: Constrained | None = None

    def __post_init__(self) -> None:
        _within("temperature", self.temperature, 0, 100)
        _within("top_p", self.top_p, 0, 1, open_below=True)
        _within("min_p", self.min_p, 0, 1)
        _within("top_k", self.top_k, 0, 2**31 - 1)
        _within("repetition_penalty", self.repetition_penalty, 0, 100, open_below=True)
        _within("frequency_penalty", self.frequency_penalty, -2, 2)
        _within("presence_penalty", self.presence_penalty, -2, 2)
        _within("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _within("min_tokens", self.min_tokens, 0, self.max_tokens)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _within(name, getattr(self, name), 0, MOST_LOGPROBS)
        for token, bias in self.logit_bias:
            _within(f"logit_bias of token {token}", bias, -100, 100, field="logit_bias")

    @property
    def bends(self) -> bool:
        """Whether logits are changed by the tokens before."""
        penalties = self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1
        return bool(penalties or self.logit_bias or self.banned)


def _within(
    name: str,
    value: float,
    low: float,
    high: float,
    *,
    open_below: bool = False,
    field: str = "",
) -> None:
    if not (low < value if open_below else low <= value) or not value <= high:
        above = "above" if open_below else "at least"
        rule = f"it must be {above} {low:g} and at most {high:g}"
        raise WrongField(name, f"{value:g}", rule, field=field)


GREEDY = Sampling(temperature=0)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The natural logarithm of a token's probability, and the likeliest tokens with theirs. They
    are of the model's own distribution, before temperature and filters (as vLLM reports them)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True, eq=False)
class Generation:
    """One answer under way. The engine writes it; `tokens` are those of the answer.

    `cached_tokens` of its prompt came from the prefix cache. Times are the engine's clock:
    `arrived`, the `first` and the `last` token.
    """

    id: int
    prompt: Sequence[int]
    sampling: Sampling
    seed: int
    arrived: float
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    cached_tokens: int = 0
    preemptions: int = 0
    finish: Finish | None = None
    refusal: str = ""
    """Why it was refused or ended; empty where it ended by itself."""
    failure: type[ShardwiseError] = BadRequest
    """What its reader gets where there is a refusal."""
    first: float | None = None
    last: float | None = None
    ender: int | None = None
    """The token that ended it, which is the last of its tokens."""
    form: Constrained | None = None
    """What may come next, where its sampling has a form."""
    past: PastTokens | None = None
    """What followed what in it, where guesses are made of that."""
    job: Any = None
    """Its `scheduling.Sequence`."""
    pool: Any = None
    """The `EnginePool` that has it now."""

    def __post_init__(self) -> None:
        if self.sampling.form is not None:
            self.form = self.sampling.form.fresh()

    @property
    def done(self) -> bool:
        return self.finish is not None or bool(self.refusal)

    @property
    def known(self) -> int:
        """Tokens of prompt and answer that the host knows."""
        return len(self.prompt) + len(self.tokens)

    def ends(self, end_ids: frozenset[int]) -> set[int]:
        """The tokens that end it if they come next, of its own and the model's; the model's are
        text in a form that is not complete."""
        text = self.sampling.ignore_end or (self.form is not None and not self.form.complete)
        return {*self.sampling.stop_ids, *(() if text else end_ids)}

    def is_bent(self, end_ids: frozenset[int]) -> bool:
        """Whether the host changes the logits of its next token by the tokens before."""
        early = len(self.tokens) < self.sampling.min_tokens and bool(self.ends(end_ids))
        return early or self.sampling.bends

    def is_held(self, end_ids: frozenset[int]) -> bool:
        """Whether its next token waits for the host to know the one before."""
        return self.form is not None or self.is_bent(end_ids)

    def token_at(self, place: int) -> int:
        """The token at a place of prompt and answer together."""
        prompt = len(self.prompt)
        return self.prompt[place] if place < prompt else self.tokens[place - prompt]

    def between(self, start: int, end: int) -> np.ndarray:
        """The tokens from a place to before another."""
        prompt = len(self.prompt)
        answer = self.tokens[max(start - prompt, 0) : max(end - prompt, 0)]
        return np.array([*self.prompt[start:end], *answer], np.int32)
