"""Completion in a shell, as docs/options.md sets it up: by click's own protocol."""

import subprocess
import sys

import pytest

PROGRAM = [sys.executable, "-P", "-c", "from shardwise.apps.cli import main; main()"]


def completed(words: str, instruction: str = "bash_complete") -> str:
    """What the shell is told after `words`, of which the last is not finished."""
    typed = ["shardwise", *words.split(" ")]
    asked = {
        "_SHARDWISE_COMPLETE": instruction,
        "COMP_WORDS": " ".join(typed),
        "COMP_CWORD": str(len(typed) - 1),
    }
    done = subprocess.run(
        [*PROGRAM], env=asked, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("pl", ["plain,plan"]),
        ("plan ", ["plain,diff", "plain,serve", "plain,show", "plain,sweep", "plain,train"]),
        ("plan train --rem", ["plain,--remat"]),
        ("plan train --model llama-3-7", ["plain,llama-3-70b"]),
        ("plan serve --on 4*v5", ["plain,4*v5e", "plain,4*v5p"]),
        ("plan serve --on h100,b2", ["plain,h100,b200"]),
        ("roofline --on mi3", ["plain,mi300x"]),
        ("hw show v5", ["plain,v5e", "plain,v5p"]),
        ("model diff llama-3-8b mixtral", ["plain,mixtral-8x7b"]),
        ("hw ", ["plain,diff", "plain,list", "plain,show"]),
    ],
)
def test_commands_and_options_are_completed(words, wanted):
    found = completed(words).splitlines()
    assert set(wanted) <= set(found), found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_line_of_the_page_gives_a_script(shell):
    script = completed("", f"{shell}_source")
    assert "_SHARDWISE_COMPLETE" in script
