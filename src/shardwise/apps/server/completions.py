"""POST /v1/completions: text or tokens go on."""

from starlette.requests import Request
from starlette.responses import Response

from shardwise.apps.server.answers import AnswerPart, Wish, sampling_of
from shardwise.apps.server.documents import CompletionChoice
from shardwise.apps.server.errors import bad
from shardwise.apps.server.fields import CompletionFields
from shardwise.apps.server.prompts import check_room, prompts_of
from shardwise.apps.server.reply import ChoiceWriter, reply
from shardwise.apps.server.reports import Spelling, completion_logprobs, spelling_of
from shardwise.apps.server.state import ServerState

DEFAULT_TOKENS = 16


class CompletionForm:
    """How answers are written; `logprobs` as in the request."""

    prefix = "cmpl"
    kind = kind_of_part = "text_completion"
    thought = None

    def __init__(self, name: Spelling, logprobs: int | None) -> None:
        self._name, self._logprobs = name, logprobs

    def part(self, index: int, piece: AnswerPart) -> CompletionChoice:
        """A choice; its text goes on where the last one ended."""
        report = None
        if self._logprobs is not None:
            report = completion_logprobs(self._name, piece, self._logprobs)
        return CompletionChoice(
            index=index,
            text=piece.text,
            logprobs=report,
            finish_reason=piece.finish,
            stop_reason=piece.stop_reason,
        )

    choice = part


async def complete(state: ServerState, request: Request, fields: CompletionFields) -> Response:
    """The completions of one request."""
    text = state.replica.text
    special = fields.add_special_tokens is not False
    prompts, shown = await prompts_of(state, fields.prompt, "prompt", special=special)
    most = DEFAULT_TOKENS if fields.max_tokens is None else fields.max_tokens
    if not most and not fields.echo:
        raise bad("max_tokens", "max_tokens is 0; without echo, give at least 1")
    check_room(state, prompts, most or 1, "max_tokens")
    echo = bool(fields.echo)
    wish = Wish(
        prompts=prompts,
        shown=shown,
        answers=fields.answers,
        sampling=await sampling_of(state, fields, most or 1, fields.logprobs, echo),
        stops=fields.stops,
        keep_stop=bool(fields.include_stop_str_in_output),
        skip_special=fields.skip_special_tokens is not False,
        echo=echo,
        silent=not most,
        priority=fields.priority or 0,
        variant=state.replica.variant(fields.model),
    )
    form = CompletionForm(spelling_of(fields, text), fields.logprobs)
    return await reply(state, request, fields, wish, ChoiceWriter(state, request, fields, form))
