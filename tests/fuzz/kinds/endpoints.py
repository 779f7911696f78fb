"""Servers that answer what no honest one does, to the commands that ask them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from fuzz.cases import Case
from fuzz.mutate import WHOLE, Harm
from hostile_endpoint import CHUNKED, GOOD, HOSTILE, MODELS, PLAIN, Answer, HostileEndpoint, chunk

BENCH = "bench serve --requests 3 --input 8 --output 4 --timeout 1 --json --endpoint"
COMMANDS = (BENCH, "generate the --max-tokens 4 --endpoint")


PIECES = tuple(part + b"\n\n" for part in GOOD.removeprefix(PLAIN).split(b"\n\n") if part)
CHUNKS = CHUNKED + b"".join(chunk(part) for part in PIECES) + b"0\r\n\r\n"


def _endpoint(random: Random, harm: Harm) -> Case:
    """A whole answer damaged anywhere or in the values of an event, or one that never ends."""
    words = random.choice(COMMANDS).split()
    models = harm.text(MODELS) if random.random() < 0.15 else MODELS
    draw = random.random()
    if draw < 0.15 and words[0] == "bench" and harm is not WHOLE:
        return _case(words, HOSTILE[random.choice(tuple(HOSTILE))], models)
    answer = _event(random, harm) if draw < 0.5 else harm.text(random.choice((GOOD, CHUNKS)))
    return _case(words, lambda: [answer], models)


def _event(random: Random, harm: Harm) -> bytes:
    """The values of one event damaged."""
    pieces = list(PIECES)
    at = random.randrange(len(pieces) - 1)
    pieces[at] = b"data: " + harm.document(pieces[at].removeprefix(b"data: ").strip()) + b"\n\n"
    return PLAIN + b"".join(pieces)


def _case(words: list[str], answer: Callable[[], Answer], models: bytes) -> Case:
    def run(folder: Path) -> None:
        from shardwise.apps.cli import main

        with HostileEndpoint(answer, lambda: [models]) as server:
            main([*words, server.url])

    return Case(files={}, run=run)


KINDS: Mapping[str, Callable[[Random, Harm], Case]] = {"endpoint": _endpoint}
