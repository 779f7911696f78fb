"""transformers' continuous batching behind as much of OpenAI's API as `benchmarks/serve.py` asks
for: completions of token ids, streamed. Its own `transformers serve` takes prompts as text only,
of which lengths are not exact. Run by that benchmark, in the environment of transformers."""

import argparse
import asyncio
import json
from uuid import uuid4

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

PAGES, STEP = 64, 512
"""Pages of 256 tokens: a sequence of the load each. Unless told it takes nine tenths of the memory,
which the machine has to share; and as many tokens of a step as our server has unless told."""

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--dtype", default="float32")
options = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained(
    options.model, dtype=getattr(torch, options.dtype), attn_implementation="sdpa"
)
manager = model.init_continuous_batching(
    GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=-1),
    ContinuousBatchingConfig(num_blocks=PAGES, max_batch_tokens=STEP),
)
manager.start()


async def health(_: Request) -> Response:
    """200: it answers."""
    return Response()


async def complete(request: Request) -> Response:
    """A drawn answer as events, one for each result that the manager hands over."""
    body = await request.json()
    name, queue = uuid4().hex, asyncio.Queue()
    manager.register_result_handler(name, queue.put_nowait)
    manager.add_request(body["prompt"], name, body["max_tokens"], streaming=True, eos_token_id=-1)

    async def events():
        count = 0
        while count < body["max_tokens"]:
            output = await queue.get()
            if output.error:
                raise RuntimeError(output.error)
            more, count = len(output.generated_tokens) - count, len(output.generated_tokens)
            if more > 0:
                choice = {"index": 0, "text": "x" * more, "finish_reason": None}
                yield f"data: {json.dumps({'choices': [choice]})}\n\n"
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}
        yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def models(_: Request) -> Response:
    """The one model."""
    return JSONResponse({"data": [{"id": options.model}]})


routes = [Route("/health", health), Route("/v1/models", models)]
routes.append(Route("/v1/completions", complete, methods=["POST"]))
uvicorn.run(Starlette(routes=routes), port=options.port, log_level="warning")
