"""What the server sends: records, whose fields are the keys of OpenAI's API in their order.

`written` makes JSON of them. A field made by `part` has no key where it is None.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from shardwise.boundary.records import Record, keys, part

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=keys)


def written(document: object) -> bytes:
    """A document as JSON in UTF-8: records, tuples, and what JSON has."""
    return _JSON.encode(document).encode()


def sent(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A document as a response."""
    return Response(written(document), status, headers, "application/json")


# Refusals -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalReason(Record):
    """Why there is no answer: the field at fault, where one is, and the status of HTTP."""

    message: str
    type: str
    param: str | None
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal(Record):
    """The body of an answer that is none."""

    error: RefusalReason


# Tokens -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedTokens(Record):
    """Tokens of a prompt that the cache had."""

    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtTokens(Record):
    """Tokens of an answer that are reasoning."""

    reasoning_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage(Record):
    """Tokens of a request, as OpenAI counts them: a prompt once."""

    prompt_tokens: int
    completion_tokens: int | None = part()
    total_tokens: int
    prompt_tokens_details: CachedTokens | None = part()
    completion_tokens_details: ThoughtTokens | None = part()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseUsage(Record):
    """The same by the names of /v1/responses."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ThoughtTokens
    total_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeltToken(Record):
    """A token's text, the log of its probability and its bytes; those of the likeliest others."""

    token: str
    logprob: float
    bytes: Sequence[int]
    top_logprobs: "Sequence[SpeltToken] | None" = part()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatLogprobs(Record):
    """A token of the answer each."""

    content: Sequence[SpeltToken]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionLogprobs(Record):
    """Lists side by side, a token of the answer each; null where nothing is known of one."""

    tokens: Sequence[str]
    token_logprobs: Sequence[float | None]
    top_logprobs: Sequence[Mapping[str, float] | None]
    text_offset: Sequence[int]


# Choices ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionChoice(Record):
    """A text that goes on, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledFunction(Record):
    """A function's name and its arguments as JSON; of a piece, more of them."""

    name: str | None = part()
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeCall(Record):
    """A call of a tool. Pieces have its number, and only the first its id."""

    index: int | None = part()
    id: str | None = part()
    type: str | None = part()
    function: CalledFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage(Record):
    """A whole message; null where it is calls or reasoning alone."""

    role: str = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: Sequence[MadeCall] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtMessage(ChatMessage):
    """One of a model that reasons: the name that DeepSeek's API gave it, and the one that vLLM has
    for it now."""

    reasoning_content: str | None
    reasoning: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDelta(Record):
    """What a message has more; its first piece says whose it is."""

    role: str | None = part()
    content: str | None
    tool_calls: Sequence[MadeCall] | None = part()
    reasoning_content: str | None = part()
    reasoning: str | None = part()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPart(Record):
    """A piece of a choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatChoice(Record):
    """A whole choice."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None


Choice = CompletionChoice | ChatChoice | ChatPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(Record):
    """The answers to a request, or a piece of one; `created` in seconds since 1970."""

    id: str
    created: int
    model: str
    object: str
    choices: Sequence[Choice] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedCompletion(Completion):
    """The same with tokens so far; null where only the stream's end has them."""

    usage: TokenUsage | None


# Items of /v1/responses ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentPart(Record):
    """The text of an item; that of a message has lists beside it."""

    type: str
    text: str = ""
    annotations: Sequence[str] | None = part()
    logprobs: Sequence[SpeltToken] | None = part()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextItem(Record):
    """A message (with a role), or reasoning (with a summary, which is empty)."""

    type: str
    id: str
    role: str | None = part()
    summary: Sequence[str] | None = part()
    content: Sequence[ContentPart] = ()
    status: str = "in_progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutput(Record):
    """A call of a tool."""

    type: str = "function_call"
    id: str
    call_id: str
    name: str | None
    arguments: str = ""
    status: str = "in_progress"


SentItem = TextItem | CallOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseEvent(Record):
    """One event of a streamed response; each kind has some of the fields."""

    type: str
    sequence_number: int
    response: "ResponseDocument | None" = part()
    item_id: str | None = part()
    output_index: int | None = part()
    content_index: int | None = part()
    delta: str | None = part()
    text: str | None = part()
    logprobs: Sequence[SpeltToken] | None = part()
    arguments: str | None = part()
    name: str | None = part()
    part_: ContentPart | None = part()
    item: SentItem | None = part()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFault(Record):
    """Why a response failed."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Incomplete(Record):
    """Why a response ended early."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseDocument(Record):
    """A response, which repeats what was asked for. `created_at` in seconds since 1970."""

    id: str
    object: str = "response"
    created_at: int
    status: str = "in_progress"
    error: ResponseFault | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: Mapping[str, Any]
    output: Sequence[SentItem] = ()
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    reasoning: Mapping[str, Any]
    store: bool = False
    temperature: float | None = None
    text: Mapping[str, Any]
    tool_choice: str | Mapping[str, Any] = "auto"
    tools: Sequence[Mapping[str, Any]] = ()
    top_p: float | None = None
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    model: str


# /debug/state -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCounts(Record):
    """Pages of the cache, of `size` tokens each."""

    all: int
    size: int
    free: int
    prefix_tree: int
    available: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts(Record):
    """Answers that run and wait, and tokens of prompts that are still to be computed."""

    running: int
    waiting: int
    prompt_tokens_to_compute: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCounts(Record):
    """Programs of steps: so far, and at most."""

    compiled: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState(Record):
    """The pool, the prefix tree and the queue."""

    pages: PageCounts
    requests: RequestCounts
    programs: ProgramCounts
    replicas: int
    pools: int
    batch: int
    budget: int
    policy: str
