"""The trainer: text in, a trained model out, through kills, full disks and lost machines.

`loop.py` is the run, step by step; `step.py` asks the strategies for the step of a plan, `data.py`
turns text into batches in an order that any step can be resumed at, `optimizer.py` the optax side
(`adafactor.py` and `adam8bit.py` where optax has none that serves), `checkpoint.py` what is kept
and how it survives, `manifest.py` what it says of itself and `pieces.py` the proof that it is
whole, `hub.py` checkpoints of Hugging Face, `metrics.py` and `events.py` what is reported.
`supervisor.py` watches over processes (`runtime/processes.py`) and says which one was lost.
`stop.py` hears Ctrl-C and SIGTERM, `lock.py` keeps a second training out of a folder, `disk.py`
writes files that appear whole. The expected step time is an input (`Expected`), and not computed
here. Read `loop.py` first.
"""

from shardwise.runtime.text.tokenizer import Bytes, tokenizer_of
from shardwise.runtime.trainer.checkpoint import Keeper, restore
from shardwise.runtime.trainer.data import Corpus, Feed, corpus_of
from shardwise.runtime.trainer.loop import TrainRun, train
from shardwise.runtime.trainer.metrics import read_metrics
from shardwise.runtime.trainer.optimizer import Settings, apply_updates, optimizer_of
from shardwise.runtime.trainer.step import program

__all__ = [
    "Bytes",
    "Corpus",
    "Feed",
    "Keeper",
    "Settings",
    "TrainRun",
    "apply_updates",
    "corpus_of",
    "optimizer_of",
    "program",
    "read_metrics",
    "restore",
    "tokenizer_of",
    "train",
]
