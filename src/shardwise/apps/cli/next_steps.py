"""What to type next after a training plan was found: write it, export it, run it."""

from pathlib import Path

from shardwise.verbs.layout import wrapped


def next_lines(path: Path | None, software: str, whose: str = "") -> tuple[str, ...]:
    """With a plan that was written, or to have it written; `whose` says of which slice it is."""
    target = "TARGET" if software == "any" else software
    if path is None:
        again = f"the same with -o plan.yaml{whose}, then: shardwise export plan.yaml"
        return ("", wrapped(f"next: {again} --to {target}", 2, 4))
    then = f"shardwise export {path} --to {target}"
    if target in ("TARGET", "jax"):
        then += f", compile {path}, or train {path}"
    return ("", wrapped(f"{path} written{whose}; next: {then}", 2, 4))
