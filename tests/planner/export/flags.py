"""The words and flags of exported shell scripts."""

import shlex


def words(text: str) -> list[str]:
    """The words of an exported shell script."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return shlex.split("\n".join(lines).replace("\\\n", " "))


def maxtext_flags(text: str) -> dict[str, str]:
    return dict(w.split("=", 1) for w in words(text) if "=" in w)


def megatron_flags(text: str) -> dict[str, str]:
    flags: dict[str, str] = {}
    name = ""
    for word in words(text)[1:]:
        if word.startswith("--"):
            name, flags[word] = word, ""
        elif name:
            flags[name] = f"{flags[name]} {word}".strip()
    return flags
