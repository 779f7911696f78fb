"""A text that names further files, and these files, as one text.

What transformers' Trainer does stands in several files: a launch script or a YAML, the config of
`accelerate launch`, the JSON of DeepSpeed. A file that is handed in takes those that it names and
that lie beside it along, as a shell script would write them: `cat > NAME <<'WORD'`. Scripts that
write such files themselves are read alike.
"""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

from shardwise.errors import BadRequest
from shardwise.planner.export.script import launch_of, script_of, written_by

_HERE = re.compile(
    r"^cat\s*>\s*\"?(?P<name>[\w./-]+)\"?\s*<<-?\s*['\"]?(?P<end>\w+)['\"]?[ \t]*\n"
    r"(?P<held>.*?)^\s*(?P=end)[ \t]*$\n?",
    re.MULTILINE | re.DOTALL,
)
_FILE = r"(?P<name>[\w./-]+\.(?:ya?ml|json))"
_NAMED = re.compile(
    rf"(?:--(?:config_file|config|accelerate_config|deepspeed|deepspeed_config(?:_file)?|fsdp_config)"
    r"|^(?:\w+=\S+ +)*(?:uv run )?(?:llamafactory-cli|axolotl) train"
    r"|accelerate launch -m axolotl\S*"
    rf"|^\s*(?:deepspeed|deepspeed_config_file|fsdp_config|accelerate_config|config_file):)"
    rf"[ =]+['\"]?(?:\$\{{?\w+\}}?/)?{_FILE}",
    re.MULTILINE,
)
"""Where a text names a file of keys; a folder that a variable says is left out."""
_END = "END_OF_A_FILE"


def named_files(text: str) -> tuple[str, ...]:
    """The files of keys that a text names, and does not hold."""
    main, held = parts(text)
    found = [match["name"] for part in (main, *held.values()) for match in _NAMED.finditer(part)]
    found += _by_variables(main)
    return tuple(name for name in dict.fromkeys(found) if name not in held)


def _by_variables(text: str) -> list[str]:
    """Files that a launch line names by the script's variables, as its shell writes them."""
    if "$" not in text or not re.search(r"\.(ya?ml|json)\b", text):
        return []
    try:
        launch = launch_of(text)
    except BadRequest:
        return []
    words = (*launch.options, *launch.arguments) if launch else ()
    lines = [f"{flag} {word}" for flag, word in pairwise(words)]
    lines += [word for word in words if "=" in word]
    return [match["name"] for line in lines if (match := _NAMED.fullmatch(line))]


def with_files(text: str, read: Callable[[str], str | None]) -> str:
    """The text with the files that it names, as `read` gives them by name, None where there is no
    such file."""
    return text + "".join(_taken_along(text, read, set()))


def _taken_along(text: str, read: Callable[[str], str | None], seen: set[str]) -> Iterator[str]:
    for name in named_files(text):
        if name in seen or (held := read(name)) is None:
            continue
        seen.add(name)
        yield f"\ncat > {name} <<'{_END}'\n{held.rstrip()}\n{_END}\n"
        yield from _taken_along(held, read, seen)


def parts(text: str) -> tuple[str, dict[str, str]]:
    """The text itself, and the files that it holds by name; of a manifest its script."""
    text = script_of(text) or text
    held = {match["name"]: match["held"] for match in _HERE.finditer(text)}
    own = written_by(text) if _WRITES.search(text) else {}
    bare = {name.rpartition("/")[2] for name in held}
    return _HERE.sub("", text), held | {n: v for n, v in own.items() if n not in bare}


_WRITES = re.compile(r"^\s*cat\s*>\s*\S*\$.*<<", re.MULTILINE)
"""That a script writes a file whose name is a variable's."""


def taken_apart(text: str, name: str) -> dict[str, str]:
    """A file's own text by its `name`, and by theirs those that `with_files` took along."""
    end = rf"\ncat > (\S+) <<'{_END}'\n(.*?\n){_END}\n"
    return {name: re.sub(end, "", text, flags=re.S)} | dict(re.findall(end, text, re.S))
