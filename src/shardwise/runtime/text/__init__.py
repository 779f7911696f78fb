"""Text and tokens: tokenizers, streamed answers as text, chats as prompts. No JAX, no model.

`tokenizer.py` reads tokenizer files, which `tokenizer_file.py` checks, and has the trainer's side;
`model_text.py` is a checkpoint folder's text: tokenizer, ends of an answer, default sampling (the
door of these is `text_files.py`), chat template (`template.py`), and the forms of answers that
clients ask for. `grammar.py` says which tokens an answer of a given form (JSON, a pattern) may go
on with. What a client
sent is read by `text_jobs.py`, in forks of `text_child.py`; `rust.py` catches what libraries raise.
`answer_text.py` makes text of the tokens of one answer as they come, and finds its stop strings;
`tool_calls.py` finds its calls of tools, by the formats of `tool_formats.py`, `reasoning.py` what
was thought before it; both have their rows in `data/`.
Read `model_text.py` first.
"""
