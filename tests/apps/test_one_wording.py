"""A price is said in the same words by every command: how much, whose, of which kind, when."""

import re
from collections import Counter

import pytest
from tests.apps.commands import SERVED, answered, flat, run
from tests.plans.test_files import FIVE
from tests.tiers import spread

from shardwise.hardware import catalogue, load_chip

pytestmark = pytest.mark.usefixtures("answers_kept")

SMALL = ("--model", "llama-3.2-1b", "--batch", "256seq", "--seq", "2048", "--remat", "block")
SMALL += ("--for", "any", "--tokens", "200B")


@pytest.fixture
def plans(answers_kept, tmp_path):
    """A training plan and one that serves a load, which the tests search anyway."""
    (tmp_path / "train.yaml").write_text(FIVE)
    answered("plan", "serve", *SERVED, "-o", tmp_path / "serve.yaml")
    return tmp_path


COMMANDS = {
    "v5p": [
        ("plan", "train", *SMALL, "--on", "v5p:2x2x1"),
        ("plan", "sweep", *SMALL, "--on", "v5p:2x2x1"),
        ("plan", "sweep", *SMALL, "--on", "v5p,v6e", "--chips", "4"),
        ("plan", "show", "train.yaml"),
        ("plan", "show", "train.yaml", "--tokens", "1T"),
        ("plan", "diff", "train.yaml", "train.yaml", "--set", "remat=none"),
        ("hw", "show", "v5p"),
    ],
    "h100": [
        ("plan", "serve", *SERVED),
        ("plan", "serve", "--model", "llama-3.2-1b", "--on", "h100,v5e", *SERVED[4:]),
        ("plan", "show", "serve.yaml"),
        ("simulate", "serve.yaml", "--requests", "50"),
        ("hw", "show", "h100"),
    ],
}


@pytest.mark.parametrize("chip", spread(COMMANDS, quick=[list(COMMANDS).index("h100")], slow=1))
def test_every_answer_with_dollars_says_the_price_in_the_same_words(chip, plans):
    price = load_chip(chip).price
    for words in COMMANDS[chip]:
        out, _ = answered(*[plans / w if w.endswith(".yaml") else w for w in words])
        assert "$" in out or "usd" in out, words
        assert str(price) in flat(out), words


@pytest.mark.slow
def test_a_price_that_was_chosen_is_said_as_what_it_is(capsys):
    words = ("plan", "train", *SMALL, "--on", "v5p:2x2x1")
    for option, said in (
        (("--price", "v5p=3"), "at $3.00 per chip-hour (yours)"),
        (("--spot",), "spot, 20"),
        (("--provider", "gcp"), "(gcp us-central1, on demand, 20"),
    ):
        assert said in flat(run(capsys, *words, *option)[1]), option


def test_the_default_provider_is_that_of_the_help(capsys):
    """Google's chips have a price of gcp, and more GPUs have one of runpod than of any other."""
    said = flat(run(capsys, "plan", "train", "--help")[1])
    assert "gcp for TPUs, often runpod for GPUs]" in said
    chips = [chip for chip in catalogue() if chip.price is not None]
    google = {chip.require_price().provider for chip in chips if chip.vendor == "google"}
    others = [chip.require_price().provider for chip in chips if chip.vendor != "google"]
    assert google == {"gcp"}
    assert Counter(others).most_common(1)[0][0] == "runpod"


def test_the_list_says_who_asks_each_price(capsys):
    out = flat(run(capsys, "hw", "list")[1])
    for chip in catalogue():
        if chip.price is not None:
            told = re.search(rf"{chip.price.provider} for ([^;]*?)(?:;| no price)", out)
            assert told
            assert chip.id in told[1].split(", ")
