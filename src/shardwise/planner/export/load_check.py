"""The load that a serving plan was made for as `vllm bench serve`, and back.

That client asks any server that speaks OpenAI's protocol: requests at random at the plan's rate, of
its lengths, and the share of them that keep its targets (`--goodput`). Its flags were read in vllm
0.32.0 (vllm/benchmarks/serve.py).
"""

from collections.abc import Mapping, Sequence

from shardwise.planner.export.notes import Fields, number
from shardwise.planner.export.server_program import flag_words, flags_of
from shardwise.plans import ServePlan

COMMAND = ("vllm", "bench", "serve")
INPUT, OUTPUT, RATE = "--random-input-len", "--random-output-len", "--request-rate"
GOODPUT, PREFIX = "--goodput", "--random-prefix-len"
TARGETS: Mapping[str, str] = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
"""What the client calls the times that a plan has targets for; it takes them in milliseconds."""

_LEAST, _SECONDS = 200, 120
"""Requests of a check: two minutes of them."""


def check_words(plan: ServePlan, model: str, url: str) -> list[str]:
    """The words of the command that measures what the plan promises."""
    load = plan.workload
    rate = load.rate if load else "inf"
    asked = max(_LEAST, round(load.rate * _SECONDS)) if load else 4 * plan.batch * plan.replicas
    words = [*COMMAND, f"--model={model}", f"--base-url={url}", "--backend=openai"]
    prefix = (load and load.prefix) or 0
    words += flag_words(
        {
            "--dataset-name": "random",
            INPUT: plan.input_length - prefix,
            **({PREFIX: prefix} if prefix else {}),
            OUTPUT: plan.output_length,
            "--ignore-eos": "",
            RATE: rate,
            "--num-prompts": asked,
            "--percentile-metrics": "ttft,tpot,e2el",
            "--metric-percentiles": 90,
        }
    )
    goals = {name: getattr(load, name) for name in TARGETS} if load else {}
    kept = [f"{TARGETS[k]}:{v * 1e3:.12g}" for k, v in goals.items() if v is not None]
    return [*words, GOODPUT, *kept] if kept else words


_KNOWN = (INPUT, PREFIX, OUTPUT, RATE, GOODPUT)
_OTHERS = (
    *("--model", "--base-url", "--backend", "--dataset-name", "--ignore-eos", "--num-prompts"),
    *("--percentile-metrics", "--metric-percentiles"),
)


def load_fields(words: Sequence[str]) -> Fields:
    """The fields of a plan that the words of a check say."""
    flags = flags_of("vllm bench serve", words, (*_KNOWN, *_OTHERS))
    said: Fields = {}
    if INPUT in flags:
        prefix = flags.count(PREFIX) if PREFIX in flags else 0
        said["input_length"] = flags.count(INPUT) + prefix
        said |= {"workload.prefix": prefix} if prefix else {}
    if OUTPUT in flags:
        said["output_length"] = flags.count(OUTPUT)
    if flags.get(RATE, "inf") != "inf":
        said["workload.rate"] = flags.number(RATE, kind=float)
        said |= _goals(words)
    return said


def _goals(words: Sequence[str]) -> Fields:
    """The targets, in seconds; None where there is none."""
    given = dict(word.split(":", 1) for word in words if word.partition(":")[0] in TARGETS.values())
    return {
        f"workload.{name}": number("vllm bench serve", GOODPUT, given[word], float) / 1e3
        if word in given
        else None
        for name, word in TARGETS.items()
    }
