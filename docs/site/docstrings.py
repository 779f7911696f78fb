"""Docstrings as reStructuredText: `name: what it is` of an argument becomes a field of a list."""

import re

ARGUMENT = re.compile(r"^(\w+): (.*)$")


def as_fields(app, what, name, obj, options, lines: list[str]) -> None:
    """Rewrite the lines of one docstring in place."""
    found: list[str] = []
    inside = False
    for line in lines:
        argument = ARGUMENT.match(line)
        if argument:
            escaped = argument[1].replace("_", "\\_")
            found += ([] if inside else [""]) + [f":{escaped}: {argument[2]}"]
        elif inside and line and not line.startswith(" "):
            found += ["", line]
        else:
            found.append(line)
        inside = bool(argument) or (inside and line.startswith(" "))
    lines[:] = found
