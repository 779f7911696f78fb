"""The command of a server within what anybody wrote around it: a bash script, `docker run`, a
manifest of Kubernetes or Compose, the values of vLLM's production-stack."""

from collections.abc import Collection, Sequence

from shardwise.errors import BadRequest
from shardwise.planner.export.script import script_of
from shardwise.planner.export.script.expand import as_written
from shardwise.planner.export.script.run import ScriptRun
from shardwise.planner.export.server_program import ServerProgram

_IMAGES = ("vllm/vllm-openai", "vllm/vllm-tpu")
"""Images that start vLLM's server with the arguments that they are given."""


def server_words(programs: Collection[ServerProgram], text: str) -> list[str]:
    """The words of the server that a text starts, from its command on; none where it starts none.
    Raises BadRequest for a text that starts several unlike each other."""
    found = [
        tuple(words)
        for started, _ in ScriptRun(script_of(text) or text).all({})
        if (words := _from_server(programs, [as_written(word) for word in started]))
    ]
    unlike = list(dict.fromkeys(found))
    if len(unlike) > 1:
        raise BadRequest(
            f"the text starts {len(unlike)} servers that differ; give the command of one"
        )
    return list(unlike[0]) if unlike else []


def _from_server(programs: Collection[ServerProgram], words: Sequence[str]) -> list[str]:
    """The words from where a server is named, behind docker's, python's and the like."""
    for at, word in enumerate(words):
        if word.partition(":")[0].rpartition("docker.io/")[2] in _IMAGES:
            rest = [part for part in words[at + 1 :] if part != "serve"]
            return rest if _named(programs, rest) else ["vllm", "serve", *rest]
        if _named(programs, words[at:]):
            return list(words[at:])
    return []


def _named(programs: Collection[ServerProgram], words: Sequence[str]) -> bool:
    begin = " ".join(words[:2])
    marks = (mark for program in programs for mark in program.marks)
    return any(begin == mark or begin.startswith(f"{mark} ") for mark in marks)
