"""Shared test set-up: `tests/` is an import root, every skip or xfail must be exempted, and few
programs are compiled for TPUs.

A test that takes more than `LONG` seconds of CPU, those of its fixtures and of the processes that
it started and waited for with them, is listed at the end of a run: look for a cheaper case, or mark
it `slow`.

A skipped or xfailed test whose id is not in `exempt.toml` fails the run, and so do more than `MOST`
compiles by libtpu, in whatever process (`startup/sitecustomize.py` counts them): those take minutes
of CI. What more programs have to say is committed as tables and dumps, made by scripts.
"""

import gc
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zlib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
MOST = 8
"""Programs of steps and functions; what else tests need is in `kept/`, as it was compiled."""
LONG = 15
COMPILES = "SHARDWISE_TPU_COMPILES"
"""Names the file of the count; set here, for the workers and children."""
HOMES = ("XDG_STATE_HOME", "XDG_CACHE_HOME")
"""Folders of the home that commands write into; tests have their own."""
SECONDS: Counter[str] = Counter()
"""CPU seconds by test, in the process that prints the summary."""
OUTCOMES: dict[str, tuple[str, float]] = {}
"""Of each test, with its seconds, in that process."""
settings.register_profile(
    "shared",
    settings.get_profile("ci"),  # no deadline, the same cases each time
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("shared")
"""A property fails for what it finds, never for a machine that does other work too."""
EXEMPT = {e["id"] for e in tomllib.loads((HERE / "exempt.toml").read_text())["exempt"]}


def pytest_addoption(parser):
    parser.addoption("--cpu-report", metavar="FILE", help="write CPU seconds by test, as CSV")
    parser.addoption("--sample", metavar="N", type=int, help="run so many of the tests, drawn")
    parser.addoption("--part", metavar="K/N", help="run part K of N, other tests at each commit")
    parser.addoption("--outcomes", metavar="FILE", help="write how each test ended, as JSON")


def cpu_seconds():
    """Of this process and of its children that have ended and were waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    item.since = cpu_seconds()
    return (yield)


def pytest_runtest_logreport(report):
    """Phases of a test, also those that another process ran, add up; the worst is its outcome."""
    SECONDS[report.nodeid] += getattr(report, "cpu", 0)  # not of a worker that died
    before, seconds = OUTCOMES.get(report.nodeid, ("passed", 0.0))
    outcome = report.outcome if before == "passed" else before
    OUTCOMES[report.nodeid] = outcome, round(seconds + report.duration, 2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    now = cpu_seconds()
    report.cpu, item.since = now - item.since, now  # extra attributes travel from a worker
    if (report.skipped or hasattr(report, "wasxfail")) and item.nodeid not in EXEMPT:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} is skipped or xfailed without a row in tests/exempt.toml"
        if hasattr(report, "wasxfail"):
            del report.wasxfail
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Tests marked `torch` run where torch and transformers are installed; CI has them. Those
    marked `long` run where -m names them. --sample and --part run a part of what is left, the same
    for every worker. Tests of the whole tree, among which are long ones, come first: at the end a
    worker would wait for the other's."""
    config.collected = {item.nodeid: {mark.name for mark in item.iter_markers()} for item in items}
    yield
    items.sort(key=lambda item: item.path.parent != HERE)
    if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        _leave_out(config, items, [item for item in items if "torch" in item.keywords])
    if config.option.markexpr and "long" not in config.option.markexpr:
        _leave_out(config, items, [item for item in items if item.get_closest_marker("long")])
    sample, part = config.getoption("--sample"), config.getoption("--part")
    if sample is not None:
        _leave_out(config, items, sorted(items, key=_draw)[sample:])
    if part is not None:
        commit = _commit()
        _leave_out(config, items, [i for i in items if not in_part(i.nodeid, part, commit)])


def _leave_out(config, items, left_out):
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]


def _draw(item):
    return zlib.crc32(item.nodeid.encode()), item.nodeid


def _commit():
    run = ["git", "-C", str(HERE), "rev-parse", "HEAD"]
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()


def in_part(name, part, commit):
    """Whether a test is in part K/N: a hash of its name and the commit says so."""
    number, _, of = part.partition("/")
    if not (number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise pytest.UsageError(f"--part {part}: K/N, as 1/12, was expected")
    drawn = hashlib.sha256(f"{commit} {name}".encode()).digest()
    return int.from_bytes(drawn[:8]) % int(of) == int(number) - 1


@pytest.fixture
def collected_files(request):
    """Test files that this run collected whole, not some tests of them."""
    parts = {Path(arg.partition("::")[0]).name for arg in request.config.args if "::" in arg}
    files = {name.partition("::")[0] for name in request.config.collected}
    return {file for file in files if Path(file).name not in parts}


@pytest.fixture
def long_tests(request, collected_files):
    """The tests marked `long` of each of those files, by their names in it."""
    found = {}
    for nodeid, marks in request.config.collected.items():
        file, _, name = nodeid.partition("::")
        if "long" in marks and file in collected_files:
            found.setdefault(file, []).append(name)
    return found


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection():
    """Tests are collected without the garbage collector, which would walk ever more modules and
    tests: that was a third of the CPU time of collecting them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish():
    """Modules and tests stay until the end, so the garbage collector need not walk them again and
    again, and walks less often: that was a tenth of the CPU time of the whole run. What is garbage
    by now goes first: a dataclass with slots leaves a second class behind."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def pytest_configure(config):
    """Start the count and make the homes, once for all workers."""
    if hasattr(config, "workerinput"):
        return
    handle, path = tempfile.mkstemp(prefix="shardwise-compiles-")
    os.close(handle)
    os.environ[COMPILES] = path
    home = tempfile.mkdtemp(prefix="shardwise-tests-")
    for kind in HOMES:
        os.environ[kind] = str(Path(home) / kind.lower())
    places = [str(HERE / "startup"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(place for place in places if place)
    counter().install()  # in this process; others import it as they start


MOST_MAPPINGS = 25_000
"""Of memory, in a process of tests; Linux allows 65,530 (vm.max_map_count), a program of XLA takes
several, and LLVM ends the process where there is none left."""


MOST_PROGRAMS = 400
"""That JAX makes before mappings are counted, which takes 30 ms where they are many: large programs
took six mappings each, small ones share theirs."""
PROGRAMS: Counter[str] = Counter()
"""Made since mappings were counted, by the event that JAX reports."""


def pytest_runtest_teardown(item):
    """Forget compiled programs in time."""
    if "jax" in sys.modules:
        _listen()
        if PROGRAMS.total() > MOST_PROGRAMS and _many(Path("/proc/self/maps")):
            sys.modules["jax"].clear_caches()


@cache
def _listen():
    sys.modules["jax"].monitoring.register_event_duration_secs_listener(_heard)


def _heard(event, seconds, **about):
    if "backend_compile" in event:  # one that is read from a cache, too
        PROGRAMS[event] += 1


def _many(maps):
    PROGRAMS.clear()
    return maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPPINGS


@pytest.fixture
def answers_kept(monkeypatch):
    """A test that names it shares its answers with the others that do, in one process: each request
    is searched once (`searched.py`)."""
    from tests.searched import keep

    keep(monkeypatch)


@pytest.fixture
def scores_kept(monkeypatch):
    """A test that names it prices a published run once for all of these in one process: the whole
    table takes 15 seconds."""
    from tests.searched import keep_scores

    keep_scores(monkeypatch)


@pytest.fixture
def rows_left_out(monkeypatch):
    """Answers of `plan serve` for a test that reads no row of what else would serve: those take
    most of its time. They are shared by the tests that name this."""
    from tests.searched import leave_rows_out

    leave_rows_out(monkeypatch)


def counter():
    """`startup/sitecustomize.py`, which may not be the one that Python has imported."""
    path = HERE / "startup" / "sitecustomize.py"
    spec = importlib.util.spec_from_file_location("compile_counter", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiles():
    """What was compiled for TPUs so far, one row for each program."""
    return [json.loads(line) for line in Path(os.environ[COMPILES]).read_text().splitlines()]


def pytest_sessionfinish(session):
    """More compiles than there may be fail the run."""
    if not hasattr(session.config, "workerinput") and len(compiles()) > MOST:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    """The tests that took long, how many programs were compiled for TPUs, and by which tests if
    they are too many."""
    slow = [(test, seconds) for test, seconds in SECONDS.most_common() if seconds > LONG]
    if slow:
        terminalreporter.write_line(f"tests that took more than {LONG} s of CPU: {len(slow)}")
    for test, seconds in slow:
        terminalreporter.write_line(f"  {seconds:.0f} s: {test}")
    report = terminalreporter.config.getoption("--cpu-report")
    if report:
        rows = [f'{seconds:.2f},"{test}"' for test, seconds in SECONDS.most_common()]
        Path(report).write_text("\n".join(["seconds,test", *rows, ""]), encoding="utf-8")
    outcomes = terminalreporter.config.getoption("--outcomes")
    if outcomes:
        Path(outcomes).write_text(json.dumps(OUTCOMES), encoding="utf-8")
    found = compiles()
    if found:
        line = f"programs compiled for TPUs: {len(found)}, of at most {MOST}"
        terminalreporter.write_line(line, red=len(found) > MOST)
    if len(found) > MOST:
        for row in found:
            terminalreporter.write_line(f"  {row['name']}: {row['test']}")


def pytest_unconfigure(config):
    """Remove the file of the count and the homes."""
    if not hasattr(config, "workerinput"):
        Path(os.environ.pop(COMPILES)).unlink()
        shutil.rmtree(Path(os.environ["XDG_STATE_HOME"]).parent, ignore_errors=True)
