"""POST /v1/embeddings: a vector for each text, of the model that also answers."""

import asyncio
from base64 import b64encode
from dataclasses import replace
from typing import Any
from uuid import uuid4

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from shardwise.apps.server.documents import CachedTokens, TokenUsage
from shardwise.apps.server.errors import ApiError, bad
from shardwise.apps.server.fields import EmbeddingFields
from shardwise.apps.server.prompts import prompts_of, refused
from shardwise.apps.server.reply import as_json
from shardwise.apps.server.state import ServerState
from shardwise.commands.run.serving import Embedder


async def embeddings(state: ServerState, request: Request, fields: EmbeddingFields) -> Response:
    """The vectors of one request, in the order of its texts."""
    if state.replica.embedder is None:
        raise ApiError(501, "this server has no embedding model; start `shardwise serve` with one")
    with refused("input"):
        embedder = state.replica.embedder(state.replica.variant(fields.model))
    if fields.dimensions is not None:
        with refused("dimensions"):
            embedder.check(fields.dimensions)
    special = fields.add_special_tokens is not False
    prompts, _ = await prompts_of(state, fields.input, "input", special=special)
    if (longest := max(map(len, prompts))) > state.thread.most_tokens:
        room = state.thread.most_tokens
        raise bad("input", f"input: {longest:,} tokens, and the model takes {room:,}; shorten it")
    state.take(len(prompts))
    try:
        vectors = await _vectors(state, embedder, prompts, fields.dimensions)
    finally:
        state.gave(len(prompts))
    tokens = sum(map(len, prompts))
    usage = TokenUsage(prompt_tokens=tokens, total_tokens=tokens)
    request.state.usage = replace(usage, prompt_tokens_details=CachedTokens(cached_tokens=0))
    written = _base64 if fields.encoding_format == "base64" else np.ndarray.tolist
    data = [
        {"object": "embedding", "index": i, "embedding": written(vector)}
        for i, vector in enumerate(vectors)
    ]
    document = {"id": f"embd-{uuid4().hex}", "object": "list", "data": data}
    document |= {"model": fields.model or state.replica.name, "usage": usage}
    return await as_json(document, sum(map(len, vectors)))


async def _vectors(
    state: ServerState, embedder: Embedder, prompts: list[list[int]], dimensions: int | None
) -> list[np.ndarray]:
    """A batch at a time, beside the engine and after those of other requests."""
    found: list[Any] = [None] * len(prompts)
    for batch in embedder.batches(prompts):
        async with state.embedding:
            given = [prompts[i] for i in batch]
            vectors = await asyncio.to_thread(embedder.vectors, given, dimensions)
        for i, vector in zip(batch, vectors, strict=True):
            found[i] = vector
    return found


def _base64(vector: np.ndarray) -> str:
    """Its numbers as bytes, little end first."""
    return b64encode(vector.astype("<f4").tobytes()).decode()
