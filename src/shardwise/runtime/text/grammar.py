"""Answers held to a form: JSON, a JSON schema, a regular expression, a choice of texts.

The library llguidance reads the form and says which tokens may come next. A `Constraint` is the
state of one answer: the engine asks it before each token and tells it what was chosen.
"""

import json
import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from shardwise.errors import BadRequest, MissingPart
from shardwise.runtime.text.rust import from_rust, one_line
from shardwise.runtime.text.tool_formats import in_terms, tool_grammar

Form = Literal["json_object", "json_schema", "regex", "choice", "tools"]
MOST_CHARACTERS = 2**16
"""Of a form as text: what is longer takes seconds to read and holds up others."""
SPACE = r"[\x20\x0A\x0D\x09]{1,16}"
"""Between the parts of JSON: not without end, as a model may never leave it."""
LEAVE_OUT, CHANGE = "leave the form out", "change or simplify it"
ENDLESS = "no text can follow it: only the form itself or the end may come next"
PLAIN = {
    "NoExtensionBias": ENDLESS,
    "NoExtension": ENDLESS,
    "LexerTooComplex": "its patterns take too long",
    "Parser Error: Current row has": "it can continue in too many ways",
    "ParserTooComplex": "it can continue in too many ways",
}
"""The library's codes, as far as a client sees them."""


class Constraint:
    """What may come next of one answer, and whether anything may. Tokens that end an answer
    (`end_ids`) may where the form is complete, even those that are text, too; before that as text,
    where the form goes on with nothing else."""

    def __init__(self, matcher: Any, vocabulary: int, end_ids: Sequence[int]) -> None:
        self._matcher, self._vocabulary, self._end_ids = matcher, vocabulary, end_ids
        self._failure = ""

    def fresh(self) -> "Constraint":
        """The same, for another answer, from where this one stands."""
        return Constraint(self._matcher.deep_copy(), self._vocabulary, self._end_ids)

    def allowed(self) -> np.ndarray:
        """A bit for every token of the vocabulary, uint32 [ceil(vocabulary / 32)]."""
        words = -(-self._vocabulary // 32)
        try:
            with from_rust("the form takes too much", CHANGE):
                bits_W = self._bitmask()[:words]
        except BadRequest as error:
            self._failure = str(error)  # which `take` says, whatever comes
            return np.full(words, 0xFFFFFFFF, np.uint32)
        if self.complete:
            return bits_W
        others_W = bits_W.copy()
        for token in self._end_ids:
            others_W[token // 32] &= ~np.uint32(1 << token % 32)
        return others_W if others_W.any() else bits_W

    def _bitmask(self) -> np.ndarray:
        return np.frombuffer(self._matcher.compute_bitmask(), np.uint32)

    def take(self, token: int) -> str:
        """Go on by a token; what is wrong with that, if anything is."""
        try:
            with from_rust("the form takes too much", CHANGE):
                self._matcher.consume_token(token)
        except BadRequest as error:
            self._failure = str(error)
        return self._failure or _said(self._matcher)

    @property
    def complete(self) -> bool:
        """Whether the answer may end here."""
        return self._matcher.is_accepting()

    @property
    def done(self) -> bool:
        """Whether the form is complete and nothing can follow."""
        return self._matcher.is_stopped()


class Grammars:
    """Reads forms for a tokenizer of the `tokenizers` library. Raises MissingPart where llguidance
    is not installed."""

    def __init__(self, tokenizer: Any, vocabulary: int, end_ids: Sequence[int]) -> None:
        try:
            from llguidance import LLMatcher, LLTokenizer
        except ImportError:
            raise MissingPart(
                "an answer's form needs `llguidance`: pip install '.[serve]'"
            ) from None
        self._matcher = LLMatcher
        self._vocabulary = vocabulary
        added = tokenizer.get_added_tokens_decoder()
        self._marks = {token.content: index for index, token in added.items()}
        self._end_ids = [token for token in end_ids if token < vocabulary]
        with from_rust("this model's tokenizer cannot restrict answers to a form", LEAVE_OUT):
            self._tokenizer = LLTokenizer(
                tokenizer.to_str(), n_vocab=vocabulary, eos_token=self._end_ids or None
            )

    def constraint(self, form: Form, what: Any = None) -> Constraint:
        """The start of an answer of a form: a schema for json_schema, a pattern for regex, texts
        for choice, what `tool_grammar` takes for tools. Raises BadRequest for one that cannot be
        read or is too large."""
        grammar = self._grammar(form, what)
        with from_rust(f"{form} cannot be read", CHANGE):
            matcher = self._matcher(self._tokenizer, grammar, log_level=0)
            if not matcher.is_error():
                matcher.compute_bitmask()  # the first state's size is checked here, too
            if matcher.is_error():
                raise BadRequest(f"{form}: {_said(matcher)}; {CHANGE}")
            if matcher.is_stopped() and not matcher.is_accepting():
                raise BadRequest(f"{form}: {ENDLESS}; {CHANGE}")
        return Constraint(matcher, self._vocabulary, self._end_ids)

    def _grammar(self, form: Form, what: Any) -> str:
        if form == "json_object":
            what = {"type": "object"}
        if form == "choice":
            what = "|".join(map(re.escape, what))
        text = what if isinstance(what, str) else json.dumps(what)
        if len(text) > MOST_CHARACTERS:
            raise BadRequest(
                f"{form} has {len(text):,} characters, over {MOST_CHARACTERS:,}; shorten it"
            )
        if not text:
            raise BadRequest(f"{form} is empty; describe the answer")
        if form == "tools":
            written = partial(in_terms, tokens=self._marks)
            return self._matcher.grammar_from_lark(tool_grammar(json.loads(text), written))
        if form in ("regex", "choice"):
            return self._matcher.grammar_from_regex(text)
        space: Any = {"whitespace_pattern": SPACE}
        try:
            return self._matcher.grammar_from_json_schema(text, overrides=space)
        except ValueError as error:
            raise BadRequest(f"{form} is not a JSON object: {error}; mend it") from None


def _said(matcher: Any) -> str:
    """What is wrong with a form, in plain words; empty where nothing is."""
    error = one_line(matcher.get_error())
    return next((said for word, said in PLAIN.items() if error.startswith(word)), error)
