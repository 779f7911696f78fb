"""The HTTP server: OpenAI's API over an engine on a thread of its own.

`app.py` has the routes and describes them, `completions.py` and `chat.py` the two that generate;
`responses.py` is a chat by other names, `embeddings.py` gives vectors. A request is read by
`body.py` as a model of `fields.py`; texts and chats become prompts in `prompts.py`; `answers.py`
reads the form of an answer, asks the engine and makes text of its tokens, `tools.py` finds its
reasoning and its calls of tools, `reports.py` writes logprobs, `documents.py` has the types of all
that is sent, `reply.py` sends the answer, whole or as events. It ends when its client leaves, and
what a connection may cost is in `apps/web/`. `gate.py` is around all of it: ids, log, key.
`errors.py` has the form of refusals, `state.py` what a server holds and allows, `metrics.py` and
`trace.py` what it reports. `run.py` runs it until a signal comes, `memory.py` says where its
threads' memory
comes from. Not here: the engine (`runtime/engine/`) and how it is opened
(`commands/run/serving.py`). Read `completions.py`, then `answers.py`.
"""
