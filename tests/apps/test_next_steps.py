"""Every command that an answer prints runs as printed and is about the plan of that answer.

Sixty answers are drawn over verbs and options: an eighth by default, all in the slow run. The
longest of the commands, `simulate --find-rate`, takes about 5 seconds of a quiet processor, and
none may take twice as long.
"""

import json
import random
import re
import shlex
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from tests.apps.commands import run
from tests.apps.test_files import ALL
from tests.tiers import spread

from shardwise.apps.cli.command import request_of
from shardwise.boundary.commands import command_of
from shardwise.models.zoo import hf_config

pytestmark = pytest.mark.usefixtures("answers_kept")

CASES = spread(range(60), quick=range(0, 60, 24), slow=[16, 32])
LONGEST, LOOP = 10.0, 0.014
"""Seconds that a command may take, and those of `speed`'s loop, on a quiet processor: an estimate,
as the least seen on a busy one was 17 ms (2026-11)."""
EXECUTING = ("compile", "train", "serve")
CHIP = 'id = "mine"\nbase = "h100"\nname = "Mine"\nhbm_bandwidth = {value = 4e12, source = "me"}\n'
CHIPS, MODEL = "my chips.toml", "a model -of mine"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with blanks in its name, with a model and a hardware file of one's own."""
    place = tmp_path / "my work"
    (place / MODEL).mkdir(parents=True)
    monkeypatch.chdir(place)
    Path(MODEL, "config.json").write_text(json.dumps(hf_config("llama-3.2-1b")))
    Path(CHIPS).write_text(CHIP)
    return place


def printed(out: str) -> list[list[str]]:
    """The commands below "next:", "then:" and "or:", as words."""
    joined = re.sub(r" \\\n\s+", " ", out)
    lines = re.findall(r"(?:^|(?<=: )|(?<=:\n)) *(shardwise .*)$", joined, re.M)
    return [shlex.split(line)[1:] for line in lines]


def speed() -> float:
    """How many times as long as on a quiet processor work takes now, by a loop's CPU time."""
    begun = time.process_time()
    sum(i * i for i in range(300_000))
    return max(1.0, (time.process_time() - begun) / LOOP)


@contextmanager
def soon(words):
    before, begun = speed(), time.process_time()
    yield
    taken = time.process_time() - begun
    assert taken <= LONGEST * max(before, speed()), words


def done(capsys, *words) -> str:
    with soon(words):
        code, out, err = run(capsys, *words)
    assert code == 0, (words, err)
    return out


def done_unless_it_executes(capsys, steps: list[list[str]]) -> None:
    for step in steps:
        if step[0] not in EXECUTING:
            done(capsys, *step)


def requests() -> dict:
    from shardwise.commands.plan_file.export import ExportRequest
    from shardwise.commands.plan_file.show import PlanShowRequest
    from shardwise.commands.plan_serve.serve import ServePlanRequest
    from shardwise.commands.plan_serve.simulate import SimulateRequest
    from shardwise.commands.plan_train.sweep import SweepRequest
    from shardwise.commands.plan_train.train import TrainPlanRequest
    from shardwise.commands.tables.book_show import BookShowRequest

    found = (BookShowRequest, ExportRequest, ServePlanRequest, PlanShowRequest, SweepRequest)
    return {tuple(r.COMMAND.split()): r for r in (*found, TrainPlanRequest, SimulateRequest)}


REQUESTS = requests()


def made(words: list[str]):
    """The request of a command."""
    path = tuple(words[: 2 if words[0] in ("plan", "book") else 1])
    context = ALL[path].make_context(" ".join(("shardwise", *path)), list(words[len(path) :]))
    return request_of(REQUESTS[path], context.params)


def result(capsys, *words) -> dict:
    with soon(words):
        return made([str(word) for word in words]).answer().result


def maybe(pick: random.Random, share: float, *words: str) -> list[str]:
    return list(words) if pick.random() < share else []


def chips_of(pick: random.Random) -> tuple[str, list[str]]:
    """A slice, and options that change its chips or their price."""
    on = pick.choice(["h100:8", "2*h100:8", "v5e:4x4", "mine:8"])
    chip = on.partition(":")[0].rpartition("*")[2]
    options = ["--hw", CHIPS] if chip == "mine" else []
    options += maybe(pick, 0.4, "--set", f"chip.hbm_bandwidth={pick.choice(['1.5e12', '2.5e12'])}")
    money = ["--price", f"{chip}={pick.choice(['1', '0.37'])}"]
    market = ["--spot"] if chip != "mine" else money
    options += pick.choice([money, money, market, []])
    return on, options


def job_of(pick: random.Random) -> list[str]:
    """The words of `plan train`, some of which make no sense together; most fix choices, so that
    the search is short."""
    on, options = chips_of(pick)
    model = pick.choice(["llama-3.2-1b", "llama-3.2-1b", MODEL])
    options += ["--model", model, "--on", on, "--batch", "64seq", "--seq", "2048"]
    options += maybe(pick, 0.4, "--dtype", pick.choice(["fp8", "f32", "int8"]))
    options += maybe(pick, 0.4, "--for", pick.choice(["any", "jax", "megatron", "maxtext"]))
    options += maybe(pick, 0.2, "--constants", "book")
    options += maybe(pick, 0.2, "--optimizer", pick.choice(["lion", "adafactor", "muon"]))
    options += maybe(pick, 0.2, "--master", "none") + maybe(pick, 0.2, "--moments", "bf16")
    options += maybe(pick, 0.85, "--schedule", "1f1b", "--context-method", "ring")
    options += maybe(pick, 0.7, "--zero", "1")
    return options


CHOICES = (
    ("--remat", "block"),
    ("--pin", "tensor=2"),
    ("--max-hbm", "20GiB"),
    ("--objective", "cost"),
    ("--zero", "2", "--pin", "data=2"),
    ("--tokens", "1T", "--straggler", "1.1", "--chip-mtbf", "2y"),
    ("--tokens", "3T", "--checkpoint-time", "30s", "--chip-mtbf", "9y"),
)


def drawn(capsys, pick: random.Random, words_of) -> tuple[list[str], str]:
    """Words that make sense, and what they answer."""
    for _ in range(50):
        words = words_of(pick)
        code, out, _ = run(capsys, *words)
        if code == 0:
            return words, out
    raise AssertionError("no words made sense")


def trained(capsys, pick) -> None:
    """What `plan train` prints writes the plan of the answer, and shows it with the same figures,
    dollars of its run included."""

    def words_of(pick):
        more = pick.sample(CHOICES, pick.choice([0, 1, 2]))
        return ["plan", "train", *job_of(pick), *(word for words in more for word in words)]

    words, out = drawn(capsys, pick, words_of)
    found, (writing,) = result(capsys, *words), printed(out)
    then = printed(done(capsys, *writing))
    shown = result(capsys, "plan", "show", "plan.yaml")
    assert shown["mesh"] == found["mesh"]
    assert shown["step_seconds"] == found["step_seconds"]
    again = [step for step in then if step[:2] == ["plan", "show"]]
    for step in again:
        assert result(capsys, *step).get("run", {}).get("usd") == found.get("run", {}).get("usd")
    assert bool(again) >= ("--tokens" in words)
    done_unless_it_executes(capsys, then)
    held_against(capsys, ["plan", "show", "plan.yaml"])


def held_against(capsys, words: list[str]) -> None:
    """The search that `plan show` prints is for the plan that it showed: its time is the same, and
    the best plan is no slower where a program runs both."""
    theirs, out = result(capsys, *words), done(capsys, *words)
    for step in printed(out):
        searched = result(capsys, *step) if step[:2] == ["plan", "train"] else done(capsys, *step)
        if isinstance(searched, dict):
            against = searched["against"]
            assert against["step_seconds"] == theirs["step_seconds"], step
            assert against["peak_bytes_per_chip"] == theirs["peak_bytes_per_chip"]


def shown(capsys, pick) -> None:
    """A plan in a file, with options that change it."""
    words, _ = drawn(capsys, pick, lambda p: ["plan", "train", *job_of(p), "-o", "my plan.yaml"])
    chip = words[words.index("--on") + 1].partition(":")[0].rpartition("*")[2]
    more = [["--set", "remat=block"], ["--constants", "book"], ["--price", f"{chip}=7"]]
    more += [["--set", "chip.hbm_bandwidth=1.9e12"]]
    options = [word for each in pick.sample(more, pick.choice([1, 2])) for word in each]
    held_against(capsys, ["plan", "show", "my plan.yaml", *options])


def imported(capsys, pick) -> None:
    """The file of another program."""

    def words_of(pick):
        target = pick.choice(["megatron", "maxtext", "torchtitan"])
        words = ["plan", "train", *job_of(pick), "--for", target, "-o", "made.yaml"]
        if run(capsys, *words)[0]:
            return ["plan", "show", "none.yaml"]
        if run(capsys, "export", "made.yaml", "--to", target, "-o", "of it.txt")[0]:
            return ["plan", "show", "none.yaml"]
        return ["export", "of it.txt", "--from", target, "-o", "read again.yaml"]

    words, _ = drawn(capsys, pick, words_of)
    Path("read again.yaml").unlink()
    for step in printed(done(capsys, *words)):
        done(capsys, *step)
    held_against(capsys, ["plan", "show", "read again.yaml"])
    if "made.yaml" in words:
        held_against(capsys, ["plan", "show", "of it.txt"])


def swept(capsys, pick) -> None:
    def words_of(pick):
        words = [w for w in job_of(pick) if w != "--spot"]
        return ["plan", "sweep", *words, "--seq", "1024"]

    words, out = drawn(capsys, pick, words_of)
    (writing,) = printed(out)
    done(capsys, *words, "-o", "expected.yaml")
    then = printed(done(capsys, *writing))
    assert Path("plan.yaml").read_text() == Path("expected.yaml").read_text()
    done_unless_it_executes(capsys, then)


def served(capsys, pick) -> None:
    """What `plan serve` prints writes the plan of its answer; an overload's commands run."""

    def words_of(pick):
        on, options = chips_of(pick)
        on = on.partition(":")[0].rpartition("*")[2]
        load = ["--input", "512", "--output", "32", "--tpot", pick.choice(["40ms", "60ms"])]
        options += maybe(pick, 0.5, "--kv", "fp8") + maybe(pick, 0.3, "--for", "jax")
        options += maybe(pick, 0.3, "--constants", "book") + maybe(pick, 0.3, "--ttft", "1s")
        model = pick.choice(["llama-3.2-1b", MODEL])
        return ["plan", "serve", "--model", model, "--on", on, *load, "--rate", "20", *options]

    words, out = drawn(capsys, pick, words_of)
    found, (writing, *_) = result(capsys, *words), printed(out)
    for step in printed(done(capsys, *writing)):
        done(capsys, *step)
    again = result(capsys, "plan", "show", "plan.yaml")
    for name in ("slice", "mesh", "batch", "tpot_seconds", "usd_per_million_tokens"):
        assert again[name] == found[name], name
    over = ["simulate", "plan.yaml", "--rate", "3000", "--requests", "200"]
    for step in printed(done(capsys, *over)):
        done(capsys, *step)


KINDS = (trained, trained, trained, shown, shown, imported, swept, served)


@pytest.mark.parametrize("case", CASES)
def test_printed_commands_run_and_give_the_same_plan(case, folder, capsys):
    KINDS[(case + case // 8) % len(KINDS)](capsys, random.Random(case))


@pytest.mark.slow
def test_an_imported_plan_is_held_against_the_best_of_its_own_dtypes(folder, capsys):
    """Without --dtype fp8 the best plan was one in bf16, which is slower than any in fp8."""
    job = ["--model", "llama-3-70b", "--on", "h100:64", "--batch", "512seq", "--seq", "4096"]
    done(capsys, "plan", "train", *job, "--dtype", "fp8", "--for", "megatron", "-o", "p.yaml")
    done(capsys, "export", "p.yaml", "--to", "megatron", "-o", "mg.sh")
    out = done(capsys, "export", "mg.sh", "--from", "megatron", "-o", "mg.yaml")
    step = next(step for step in printed(out) if "--against" in step)
    assert {"fp8", "megatron"} <= set(step)
    assert result(capsys, *step)["against"]["times_slower"] >= 1 - 1e-9


@pytest.mark.slow
def test_a_plan_keeps_the_price_that_it_was_made_with(folder, capsys):
    words = ["plan", "train", "--model", "llama-3.2-1b", "--on", "v5p:2x2x2", "--batch", "8seq"]
    done(capsys, *words, "--seq", "2048", "--price", "v5p=1", "-o", "plan.yaml")
    assert "at $1.00 per chip-hour" in done(capsys, "plan", "show", "plan.yaml")
    assert "at $2.00 per chip-hour" in done(capsys, "plan", "show", "plan.yaml", "--price", "v5p=2")
    kept = yaml.safe_load(Path("plan.yaml").read_text())["chips"]
    assert kept == {"prices": {"v5p": 1.0}}
    moved = done(capsys, "plan", "show", "plan.yaml", "--set", "slice=v4:2x2x2")
    assert "$1.00" not in moved  # it is another chip's


@pytest.mark.slow
def test_a_plan_keeps_the_chips_that_it_was_made_with(folder, capsys):
    """From another folder, too."""
    words = ["plan", "train", "--model", "llama-3.2-1b", "--on", "mine:8", "--batch", "64seq"]
    words += ["--seq", "2048", "--hw", CHIPS, "--set", "chip.hbm_bandwidth=5e12"]
    Path("plans").mkdir()
    done(capsys, *words, "-o", "plans/plan.yaml")
    found, again = result(capsys, *words), result(capsys, "plan", "show", "plans/plan.yaml")
    assert again["step_seconds"] == found["step_seconds"]
    kept = yaml.safe_load(Path("plans/plan.yaml").read_text())["chips"]
    assert kept == {"files": [f"../{CHIPS}"], "numbers": {"mine.hbm_bandwidth": "5e12"}}
    done(capsys, "export", "plans/plan.yaml", "--to", "jax")


@pytest.mark.parametrize(
    "words",
    [
        "plan train --model 'a b/config.json' --on v5p:2x2x2 --batch 64seq --seq 2k --dtype fp8",
        "plan train --model gpt2 --on h100 --batch 1 --seq 2 --price v5p=1 --hw 'x y.toml' --spot",
        "plan train --model gpt2 --on h100 --batch 1 --seq 2 --set chip.hbm_bytes=1e11",
        "plan show 'my p.yaml' --constants book --provider gcp --resolve",
        "plan sweep --model gpt2 --on h100 --on v5p --batch 1Mi --batch 2Mi --seq 512 --seq 1024",
        "plan serve --model gpt2 --on h100 --trace 'a trace.jsonl' --kv fp8 --option xla_a=true",
        "simulate p.yaml --rate 5 --lengths 'f:chat' --set replicas=2 --tile 3 --find-rate",
        "book show 5.3.3.limit --set F=1 --edition first --constants seed",
    ],
)
def test_a_request_is_the_command_that_makes_it(words):
    """Made of a command, the request gives one that makes the same request."""
    asked = made(shlex.split(words))
    assert made(shlex.split(command_of(asked))[1:]) == asked
