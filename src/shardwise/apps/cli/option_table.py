"""Every option of the command line: in which group of `--help` it stands, and its one meaning.

An option means the same in all commands that take it; what a command says of it in `--help` only
adds which values it takes there. docs/options.md is written of this table and of the commands by
`scripts/options.py`.
"""

from collections.abc import Mapping

from shardwise.apps.cli.option_fields import table

_OTHERS: Mapping[str, Mapping[str, str]] = {
    "What is planned": {
        "--phase": "which program of a plan: train, decode or prefill",
        "--matmul": "the matrix product, as MxKxN",
        "--level": "the memory or link that operands come from",
        "--dims": "the size of every dim of the arrays",
        "--mesh": "mesh axes and their degrees",
        "--args": "MODULE:NAME that makes the arguments of a function",
        "--chapter": "a chapter of the book",
        "--kind": "the kind of plan, train or serve",
        "--edition": "an edition of the book: latest or first",
        "--sweep": "an argument of a rule, from one value to another",
        "--answer": "your answer to a question",
    },
    "The load": {
        "--input": "tokens of a prompt",
        "--output": "tokens of an answer",
        "--rate": "requests per second",
        "--find-rate": "look for the largest rate that a plan holds",
        "--requests": "how many requests",
        "--trace": "a file of requests, with their times and lengths",
        "--lengths": "lengths of requests, drawn from ServeGen's quantiles",
        "--cv": "how bursty requests come; 1 is Poisson",
        "--speed": "how many times as fast a trace comes",
        "--concurrency": "most requests under way at once",
        "--spread": "how far lengths vary, as a share to both sides",
        "--vocabulary": "token ids of prompts are below this",
        "--tile": "how often the load is repeated",
        "--endpoint": "the URL of an OpenAI-compatible server",
        "--records": "a file of requests that were measured",
        "--served-model": "the model's name on a server",
        "--kv-tokens": "tokens that a server's cache holds",
    },
    "A server": {
        "--host": "the address that a server listens on",
        "--port": "the port that a server listens on",
        "--sequences": "sequences that run at once",
        "--guesses": "tokens guessed ahead of a step",
        "--draft": "the checkpoint of a model that guesses",
        "--memory-share": "share of a card's memory that a server takes",
        "--tool-format": "how a model writes calls of tools",
        "--warm": "which programs are compiled before the first request: all, or lazily none",
        "--queue": "answers that wait or run at most; more are refused for now",
        "--request-time": "most seconds of an answer",
        "--drain-time": "most seconds that accepted requests have at the end",
        "--api-key": "a key that clients show to a server",
        "--key-in-clear": "let a key go unencrypted to another machine",
        "--allowed-host": "a host's name that a server answers to",
        "--log-level": "how much is logged",
        "--open": "open the page in the browser",
        "--max-tokens": "most tokens of an answer",
        "--temperature": "how freely tokens are drawn; 0 takes the likeliest",
        "--top-p": "draw among the likeliest tokens of this total probability",
        "--system": "the system message of a chat",
    },
    "Targets": {
        "--ttft": "longest time to the first token",
        "--tpot": "longest time per output token after the first",
        "--e2e": "longest time from arrival to the last token",
        "--max-chips": "the most chips of all servers",
        "--anyway": "answer with a plan that does not keep the targets",
        "--check": "the threshold that an answer must keep; missed, the exit code is 4",
    },
    "Choices of the plan": {
        "--weights": "the dtype of stored weights",
        "--kv": "the dtype of the KV cache",
        "--prefill-chunk": "most prompt tokens of a step",
        "--pools": "whether prompts have servers of their own: one pool, two, or any",
        "--free": "an input array whose layout may be chosen",
        "--result": "the layout that the result shall have",
        "--backward": "derive the backward pass too",
        "--store": "the layout of a gradient or of optimizer state",
        "--no-parameter": "an array that has no gradient",
    },
    "A whole run": {},
    "Training": {
        "--data": "text to train on",
        "--steps": "how many steps to run",
        "--lr": "peak learning rate",
        "--lr-schedule": "how the learning rate falls",
        "--warmup": "steps up to the peak learning rate",
        "--decay": "weight decay",
        "--clip": "most norm of the gradient",
        "--tensor-matmul": "how matmuls over the tensor axis run",
        "--save-every": "steps between checkpoints",
        "--save-hf": "folder for the trained model as a Hugging Face checkpoint",
        "--init": "a Hugging Face checkpoint to begin with",
        "--tokenizer": "a tokenizer.json",
        "--resume": "go on from the newest checkpoint",
        "--profile": "trace three steps",
    },
    "The machine": {
        "--cpu-devices": "so many virtual CPU devices",
        "--processes": "how many processes",
        "--process": "which process this is",
        "--coordinator": "where processes meet",
        "--seed": "of everything that is drawn",
        "--memory": "most memory of a child process",
        "--cache-size": "most bytes of kept programs",
        "--no-cache": "compile anew and keep nothing",
        "--run": "compile and run the answer on virtual CPU devices",
        "--name": "the name of the chip in the file that is written",
    },
    "Beside the answer": {
        "--stages": "an op of a program that is followed from JAX to the schedule",
        "--capture": "a profiler's capture of a program that ran",
        "--hlo": "the compiled text of a captured program",
        "--source": "only rows of this source",
        "--grade": "only rows of this grade",
        "--serving": "rows of serving in place of training",
        "--no-fit": "chip rates alone, no fitted constant",
    },
    "How much is said": {
        "--detail": "everything else that is known of the answer",
        "--why": "why this answer and not another",
        "--book": 'what the rules of "How To Scale Your Model" say beside it',
        "--quiet": "no warnings, no notes, no hints, no progress",
        "--resolve": "write the plan out whole, with what its file left out",
        "--verbose": "where the value of each choice comes from",
        "--brief": "the first lines of the answer alone",
        "--draw": "a map in the terminal",
    },
    "Files": {
        "-o": "the file to write: a plan, an export, or a hardware file",
        "--engine": "the file to write the constants of a server to",
        "--out": "the folder to write: a report, or a run",
        "--to": "the software that an export is for",
        "--from": "the software that wrote an export",
        "--json": "one JSON document on standard output",
        "--csv": "also write the answer's table to a CSV file",
        "--plot": "also draw a picture, PNG or SVG",
        "--animate": "draw a collective hop by hop",
        "--graph": "draw the dearest ops of a step, and what waits for what",
        "--html": "a page with the frames of what is shown",
        "--perfetto": "write what happens when as a trace for ui.perfetto.dev",
        "--perfetto-until": "where that trace ends",
        "--force": "overwrite files that shardwise did not write",
    },
}
"""Of each group its options without a field, by their longest name, and what each means."""
GROUPS: Mapping[str, Mapping[str, str]] = {
    group: {**options} | {flag: said for flag, (of, said) in table().items() if of == group}
    for group, options in _OTHERS.items()
}
"""Of each group all of its options; those of requests are as their fields say."""


def group_of(flags: list[str]) -> str:
    """The group of an option with these names; empty for one that the table lacks.

    >>> group_of(["-o"]), group_of(["-q", "--quiet"])
    ('Files', 'How much is said')
    """
    names = set(flags)
    return next((group for group, options in GROUPS.items() if names & options.keys()), "")
