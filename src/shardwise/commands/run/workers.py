"""Train in several processes: workers of a supervisor (`runtime.trainer.supervisor`).

A worker is a child (`boundary/child.py`) that calls `work_at`; `training.py` is what it does.
"""

import json
import os
import signal
import socket
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

from shardwise.boundary.child import python
from shardwise.boundary.typed import record_of
from shardwise.commands.run.training import (
    LastStep,
    Progress,
    Stopped,
    TrainedRun,
    TrainRunRequest,
    run_here,
    run_of,
)
from shardwise.errors import BadRequest, Caution, ShardwiseError
from shardwise.runtime.processes import ProcessGroup, connect, detected, use_devices
from shardwise.runtime.trainer.lock import sole
from shardwise.runtime.trainer.loop import TrainRun
from shardwise.runtime.trainer.metrics import StepMetrics
from shardwise.runtime.trainer.supervisor import Watch, error_message, say


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """What a worker tells its supervisor on the way; `warns` where the line is a warning, `metrics`
    of a step."""

    line: str
    step: int = 0
    warns: bool = False
    metrics: StepMetrics | None = None

    def tell(self, hear: Progress) -> None:
        """Pass it on."""
        hear(Caution(self.line) if self.warns else self.line, self.metrics)


def train_plan(request: TrainRunRequest, hear: Progress = lambda *_: None) -> TrainedRun:
    """Train and give the result.

    Raises BadRequest before anything is started where plan, data or devices do not fit, and
    ShardwiseError naming the process where one of several is lost.
    """
    request = request.read()
    run = run_of(request)
    group = request.group
    if (group.count or 1) == 1 and group.coordinator is None and not detected():
        use_devices(request.cpu_devices)
        return run_here(request, run, hear)
    return _supervised(request, run, group, hear)


def _supervised(
    request: TrainRunRequest, run: TrainRun, group: ProcessGroup, hear: Progress
) -> TrainedRun:
    """Start this host's workers, watch them, and give what the first one says."""
    local = group.index is None and group.coordinator is None and not detected()
    if local:
        request = replace(request, coordinator=f"127.0.0.1:{_free_port()}")
        indices: list[int] = list(range(group.count or 1))
    else:
        indices = [_own_index(group)]
    watch = Watch(
        command=python(f"{__name__}:work_at", json.dumps(asdict(request))),
        indices=indices,
        count=group.count or _own_count(),
        folder=run.out / "processes",
        place=request.coordinator or "the address that the cluster gives",
    )

    last = LastStep(hear)
    with ExitStack() as locks:
        for i in indices:
            locks.enter_context(sole(run.out, f"run-{i:05}", lambda text: last(text, None)))
        try:
            sent = watch.run(lambda message: record_of(Progressed, message).tell(last))
            return record_of(TrainedRun, sent)
        except KeyboardInterrupt as stop:
            raise last.stopped(run, stop) from None


def _own_index(group: ProcessGroup) -> int:
    """Which process this is: as given, or by the cluster's environment."""
    if group.index is not None:
        return group.index
    return _from_cluster(
        ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "JAX_PROCESS_ID", "TPU_WORKER_ID")
    )


def _own_count() -> int:
    return _from_cluster(("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "JAX_NUM_PROCESSES"))


def _from_cluster(names: tuple[str, ...]) -> int:
    found = next((os.environ[n] for n in names if os.environ.get(n, "").isdigit()), None)
    if found is None:
        raise BadRequest(
            f"none of {', '.join(names)} is set, so this process does not know its rank; give "
            "--coordinator HOST:PORT --processes N --process I"
        )
    return int(found)


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


def work(request: TrainRunRequest, index: int) -> None:
    """The life of one worker: join, train, say how it went."""
    # The terminal's Ctrl-C is the supervisor's, which sends SIGTERM, and JAX hears that.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        use_devices(request.cpu_devices)
        local = request.process is None and request.processes is not None
        given = replace(request, process=index) if local and request.coordinator else request
        connect(given.group)

        def hear(line: str, metrics: StepMetrics | None) -> None:
            said = Progressed(
                step=metrics.step if metrics else 0,
                line=line,
                warns=isinstance(line, Caution),
                metrics=metrics,
            )
            say({"progress": asdict(said)})

        done = run_here(request, replace(run_of(request), supervised=True), hear)
        say({"result": asdict(done)})
    except Stopped as stop:
        say({"halted": True})
        sys.exit(stop.exit_code)
    except ShardwiseError as error:
        say(error_message(error))
        sys.exit(error.exit_code)
    except Exception as error:
        say(error_message(error))
        raise


def work_at(request: str, index: str) -> None:
    """One worker from texts: JSON of a `TrainRunRequest`, and which of the processes it is."""
    work(TrainRunRequest(**json.loads(request)), int(index))
