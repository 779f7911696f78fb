"""A server over the mock engine, on a real socket, with a tokenizer of 400 byte pairs."""

import json
import time
from functools import cache
from pathlib import Path

from tests.runtime.engine.mock import MockExecutor, mock_token
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from shardwise.apps.server.state import ServerState
from shardwise.commands.run.serving import ServedModel
from shardwise.runtime.engine import Engine
from shardwise.runtime.text.model_text import read_model_text
from shardwise.scheduling import SchedulerConfig

SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@cache
def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        ["the quick brown fox jumps over the lazy dog and the cat sat on the mat " * 3] * 9,
        trainers.BpeTrainer(
            vocab_size=320, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
        ),
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    return made


def folder_of(path: Path, **changes) -> Path:
    """A checkpoint folder as far as text goes."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(path / "tokenizer.json"))
    words = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps({**words, **changes}))
    return path


def replica_of(folder: Path, *, wait=None, ends=False, **changes) -> ServedModel:
    text = read_model_text(folder)
    values = {"pages": 512, "page_size": 16, "batch": 32, "budget": 256, "margin": 0.0, **changes}
    config = SchedulerConfig(**values)
    executor = MockExecutor(
        pages=config.pages,
        page_size=config.page_size,
        batch=config.batch,
        vocabulary=text.vocabulary,
        wait=wait,
    )
    end_ids = text.end_ids if ends else ()
    engine = Engine(config, executor, end_ids=end_ids, most_tokens=1024, seed=0)
    return ServedModel(name="mock", text=text, engine=engine)


def nothing_is_held(state: ServerState) -> None:
    """No request, no page beside those of the prefix cache, once those who left are noticed."""
    end = time.monotonic() + 10
    while (state.active or state.waiting or state.thread.open) and time.monotonic() < end:
        time.sleep(0.02)
    (pool,) = state.replica.engine.pools
    scheduler = pool.scheduler
    scheduler.check()
    assert scheduler.outstanding == scheduler.backlog == state.waiting == state.active == 0
    assert scheduler.pool.free + scheduler.tree.device == scheduler.config.pages
    assert not state.thread.open


def text_after(state, prompt, count):
    """What the mock engine says after a prompt."""
    text = state.replica.text
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(mock_token(tokens, text.vocabulary))
    return tokens[len(prompt) :], text.decode(tokens[len(prompt) :])


PROMPT = {"prompt": "a"}
CHAT = {"messages": [{"role": "user", "content": "a"}]}
