"""--for on the command line, and what --stack says now."""

import pytest

from shardwise.apps.cli import main


def test_the_former_option_names_the_new_one(capsys):
    words = "plan train --model llama-3-8b --on v5e:4x4 --batch 64seq --seq 4096 --stack fsdp"
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert "--for any --set stack=fsdp" in capsys.readouterr().err
