"""The requests that this server takes, field by field, by the names of OpenAI's API and of vLLM's
extensions. /openapi.json is made of these models. A field that is not here is ignored, and named in
the log, unless it is nearly the name of one that is here."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

Token = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[list[Token], Field(min_length=1, fail_fast=True)]
MOST_PROMPTS = 1024
MOST_ANSWERS = 128
Prompts = (
    str
    | Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MOST_PROMPTS)]
    | Tokens
    | Annotated[list[Tokens], Field(fail_fast=True, min_length=1, max_length=MOST_PROMPTS)]
)
"""Texts or tokens, one or many."""
UNUSED = "accepted; has no effect here"
Stop = Annotated[str, Field(min_length=1, max_length=1000)]


class ApiModel(BaseModel):
    """Types as they are written: no text for a number, no NaN."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        json_schema_extra={"additionalProperties": True},
    )
    _unknown: Sequence[str] = PrivateAttr(())

    @property
    def ignored(self) -> list[str]:
        """Fields of the body that change nothing: unknown ones, and those without effect here."""
        fields = type(self).model_fields.items()
        unused = [name for name, field in fields if field.description == UNUSED]
        return [*self._unknown, *(name for name in unused if getattr(self, name) is not None)]


class StreamOptions(ApiModel):
    """What a stream says beside its tokens."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = Field(None, description=UNUSED)
    continuous_usage_stats: bool | None = None


class JsonSchema(ApiModel):
    """A schema that an answer is held to; `strict` is true in effect."""

    name: str | None = None
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(ApiModel):
    """The form of an answer, by OpenAI's names."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(ApiModel):
    """The form of an answer, by vLLM's names: one of them."""

    json_schema: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[list[Stop], Field(fail_fast=True, min_length=1, max_length=1000)] | None = (
        None
    )
    json_object: bool | None = None


class SamplingFields(ApiModel):
    """What all that generate share. A field that is null is one that is left out."""

    model: str | None = None
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31, description="-1 and 0: all")
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: (
        dict[
            Annotated[str, Field(pattern="^[0-9]{1,10}$")],
            Annotated[float, Field(ge=-100, le=100)],
        ]
        | None
    ) = None
    min_tokens: int | None = Field(None, ge=0, lt=2**31)
    stop_token_ids: Annotated[list[Token], Field(fail_fast=True, max_length=256)] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = Field(None, ge=-(2**31), lt=2**31, description="smaller comes first")
    user: str | None = None
    store: bool | None = Field(None, description=UNUSED)
    metadata: dict[str, str] | None = Field(None, description=UNUSED)
    service_tier: str | None = Field(None, description=UNUSED)
    safety_identifier: str | None = Field(None, description=UNUSED)
    prompt_cache_key: str | None = Field(None, description=UNUSED)
    prompt_cache_retention: str | None = Field(None, description=UNUSED)


class GenerationFields(SamplingFields):
    """What completions and chats share."""

    n: int | None = Field(None, ge=1, le=MOST_ANSWERS)
    stop: Stop | Annotated[list[Stop], Field(fail_fast=True, max_length=16)] | None = None
    include_stop_str_in_output: bool | None = None
    bad_words: Annotated[list[Stop], Field(fail_fast=True, max_length=256)] | None = None
    skip_special_tokens: bool | None = None
    return_tokens_as_token_ids: bool | None = Field(None, description="names of logprobs")
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    @property
    def answers(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def stops(self) -> list[str]:
        """Stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class CompletionFields(GenerationFields):
    """The body of POST /v1/completions."""

    prompt: Prompts
    max_tokens: int | None = Field(None, ge=0, lt=2**31, description="default 16")
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    add_special_tokens: bool | None = None
    suffix: None = None
    best_of: Literal[1] | None = Field(None, description="number of answers; only 1")


class TextPart(ApiModel):
    """A part of a message."""

    type: Literal["text"]
    text: str
    cache_control: Any = Field(None, description=UNUSED)


class FunctionCall(ApiModel):
    """What an assistant called: `arguments` is JSON."""

    name: str
    arguments: str


class ToolCall(ApiModel):
    """A call of an assistant."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(ApiModel):
    """One turn of a chat; null fields are those that clients send back."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    id: str | None = Field(None, description=UNUSED)
    cache_control: Any = Field(None, description=UNUSED)
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None


class ToolFunction(ApiModel):
    """A function that the model may call, as the template is told of it."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(ApiModel):
    """A tool."""

    type: Literal["function"]
    function: ToolFunction


class NamedFunction(ApiModel):
    """A tool by its name."""

    name: str


class NamedTool(ApiModel):
    """The one tool that is to be called."""

    type: Literal["function"]
    function: NamedFunction


class ChatFields(GenerationFields):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=10_000)]
    max_tokens: int | None = Field(None, ge=1, lt=2**31, description="default: what fits")
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=1024)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high"] | None = None
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    verbosity: str | None = Field(None, description=UNUSED)
    modalities: list[Literal["text"]] | None = None
    functions: None = None
    function_call: Literal["none"] | None = None


def _one_of(**kinds: str) -> ConfigDict:
    """A body with one of some fields, said in its schema."""
    ways: list[Any] = [
        {"required": [name], "properties": {name: {"type": kind}}} for name, kind in kinds.items()
    ]
    return ConfigDict(json_schema_extra={"oneOf": ways, "additionalProperties": True})


class TokenizeFields(ApiModel):
    """The body of POST /tokenize: a prompt, or a chat."""

    model_config = _one_of(prompt="string", messages="array")
    model: str | None = None
    prompt: str | None = None
    messages: (
        Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=10_000)] | None
    ) = None
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=1024)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeFields(ApiModel):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[Token], Field(fail_fast=True)]


class ItemModel(ApiModel):
    """A part of a conversation, as clients send it back: what else it has is of no effect."""

    model_config = ConfigDict(extra="ignore")


class ItemText(ItemModel):
    """A text of a message."""

    type: Literal["input_text", "output_text", "text"]
    text: str


Texts = str | Annotated[list[ItemText], Field(fail_fast=True)]


class MessageItem(ItemModel):
    """A turn."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: Texts


class CallItem(ItemModel):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class OutputItem(ItemModel):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: str
    output: Texts


class ThoughtItem(ItemModel):
    """Other models' reasoning, which is left out."""

    type: Literal["reasoning"]


class ResponseTool(ToolFunction):
    """A function that the model may call."""

    type: Literal["function"]


class NamedResponseTool(NamedFunction):
    """The one tool that is to be called."""

    type: Literal["function"]


class TextFormat(ApiModel):
    """The form of a text, by the names of responses."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(ApiModel):
    """How texts are written."""

    format: TextFormat | None = None
    verbosity: str | None = Field(None, description=UNUSED)


class Reasoning(ApiModel):
    """How much a model reasons, where its template asks."""

    effort: Literal["none", "minimal", "low", "medium", "high"] | None = None
    summary: str | None = Field(None, description=UNUSED)


Item = MessageItem | CallItem | OutputItem | ThoughtItem


class ResponseFields(SamplingFields):
    """The body of POST /v1/responses."""

    input: str | Annotated[list[Item], Field(fail_fast=True, min_length=1, max_length=10_000)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, lt=2**31)
    tools: Annotated[list[ResponseTool], Field(fail_fast=True, max_length=1024)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedResponseTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    truncation: Literal["auto", "disabled"] | None = Field(None, description=UNUSED)
    max_tool_calls: int | None = Field(None, description=UNUSED)
    background: Literal[False] | None = None
    previous_response_id: None = None
    conversation: None = None
    prompt: None = None


class EmbeddingFields(ApiModel):
    """The body of POST /v1/embeddings."""

    model: str | None = None
    input: Prompts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1, lt=2**31)
    add_special_tokens: bool | None = None
    user: str | None = None
    priority: int | None = Field(None, ge=-(2**31), lt=2**31, description=UNUSED)


BODIES: Mapping[str, type[ApiModel]] = {
    "/v1/completions": CompletionFields,
    "/v1/chat/completions": ChatFields,
    "/v1/responses": ResponseFields,
    "/v1/embeddings": EmbeddingFields,
    "/tokenize": TokenizeFields,
    "/detokenize": DetokenizeFields,
}
