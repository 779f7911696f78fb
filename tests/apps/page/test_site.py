"""An exported site: what the page answers, as files; found by key, kept when stopped, refused where
it cannot be."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from starlette.testclient import TestClient
from tests.apps.commands import run as command
from tests.apps.page.site_states import drawn, faults

from shardwise.apps.page import site
from shardwise.apps.page.app import page_app
from shardwise.apps.page.call import _answered
from shardwise.apps.page.grid import GridState, grid_state, site_grid
from shardwise.apps.page.site import check_site, write_site
from shardwise.apps.page.views import VIEWS
from shardwise.commands.pricing import predict
from shardwise.errors import BadRequest
from shardwise.planner.kept_plans import KeptPlans
from shardwise.planner.simulate import steady
from shardwise.planner.simulate.steady import steady_run
from shardwise.planner.training import plan_train

PAGE = ["app.css", "app.js", "grid", "index.html"]
FEW = {"hbm": {"chunks": "16"}, "book": {"quiz": "yes"}, "models": {"model": "llama-3-8b"}}
"""States of quick views."""
DECISIONS = {
    "start": {"model": "llama-3.2-1b", "tokens": "1e11", "days": "12"},
    "training": {"model": "llama-3-8b", "on": "v5e", "chips": "16", "batch": "262144"},
    "serving": {"model": "llama-3-8b", "on": "h100", "chips": "2"},
}


def chosen(asked):
    return [grid_state(VIEWS[name], words) for name, words in asked.items()]


def packed(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def same_as_the_page(folder):
    """Every state of the index is what the API answers for its key."""
    index = packed(folder / "grid/index.json.gz")
    with TestClient(page_app(), base_url="http://localhost") as page:
        assert [one["name"] for one in index["views"]] == list(index["states"])
        for view, states in index["states"].items():
            for key, name in states.items():
                words = dict(one.split("=", 1) for one in key.split("&")) if key else {}
                said = page.get(f"/api/view/{view}", params={**words, "fine": "yes"}).json()
                assert packed(folder / f"grid/{view}/{name}.json.gz") == said, (view, key)
    return index


def test_a_site_answers_as_the_page_does(tmp_path):
    wrong = GridState(view="hbm", words=(("chip", "v9"),))
    done = write_site(tmp_path, site_grid(views=list(FEW)), [*chosen(FEW), wrong], None)
    index = same_as_the_page(tmp_path)
    assert list(index["states"]["hbm"]) == ["chunks=16", "chip=v9"]
    assert (done.states, done.refused) == (6, 1), "with the states that answers link to"
    page = (tmp_path / "index.html").read_text()
    assert '<div id="root" data-grid="grid/index.json.gz">' in page
    assert "Content-Security-Policy" in page
    assert done.size == sum(one.stat().st_size for one in tmp_path.rglob("*") if one.is_file())


def test_a_site_goes_on_where_it_was_stopped(tmp_path):
    grid, (first, *others) = site_grid(views=list(FEW)), chosen(FEW)

    def stop(done, of, left):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_site(tmp_path, grid, [first, *others], stop)
    (made,) = (tmp_path / "grid" / first.view).iterdir()
    assert packed(tmp_path / "grid/index.json.gz")["states"][first.view], "what is there opens"
    assert sorted(one.name for one in tmp_path.iterdir()) == PAGE
    before, heard = made.stat().st_mtime_ns, []
    check_site(tmp_path)
    write_site(tmp_path, grid, [first, *others], lambda *said: heard.append(said))
    assert made.stat().st_mtime_ns == before
    assert [said[:2] for said in heard] == [(2, 3), (3, 3), (4, 5), (5, 5)], "links add states"
    assert heard[0][2] > 0 == heard[1][2], "seconds left"


def test_a_site_that_was_killed_goes_on(tmp_path, monkeypatch):
    """The index comes first: without it the folder would be something else."""

    def killed(*_):
        raise SystemExit

    monkeypatch.setattr(site, "_write_all", killed)
    with pytest.raises(SystemExit):
        write_site(tmp_path, site_grid(views=list(FEW)), chosen(FEW), None)
    check_site(tmp_path)


@pytest.mark.slow
def test_sigterm_ends_its_processes_too(tmp_path):
    """Those that search would go on without it, for minutes."""
    export = [sys.executable, "-m", "shardwise", "ui", "--coarse", "--export", str(tmp_path)]
    own = subprocess.Popen(export, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        until(lambda: len(list(tmp_path.glob("grid/*/*.gz"))) > 1)
        own.send_signal(signal.SIGTERM)
        assert own.wait(30) == 128 + signal.SIGTERM
        until(lambda: not alive(own.pid))
        check_site(tmp_path, coarse=True)
    finally:
        if alive(own.pid):
            os.killpg(own.pid, signal.SIGKILL)
        own.wait()


def until(holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(group):
    """Whether a process of the group runs."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadRequest, match=r"--export .* holds 'notes.txt'; name another folder"):
        check_site(tmp_path)
    (tmp_path / "grid").mkdir()
    old = gzip.compress(json.dumps({"made_by": "another"}).encode())
    (tmp_path / "grid/index.json.gz").write_bytes(old)
    with pytest.raises(BadRequest, match=r"a site of another version of shardwise; name another"):
        check_site(tmp_path)


def test_a_grid_has_every_default_and_what_is_asked_for():
    grid = site_grid(models=["qwen3-8b"], chips=["b200"])
    states = grid.states()
    assert {one.view for one in states if not one.words} == set(VIEWS)
    assert GridState(view="training", words=(("model", "qwen3-8b"), ("on", "b200"))) in states
    planned = {dict(one.words).get("on") for one in states if one.view == "training"}
    assert planned == {"b200", None}
    usual = site_grid()
    assert (len(usual.models), len(usual.chips)) == (20, 10)
    with pytest.raises(BadRequest, match=r"unknown model 'qwen4'"):
        site_grid(models=["qwen4"])


def test_options_that_cannot_take_effect_are_refused(capsys, tmp_path):
    for words, said in (
        (["--model", "llama-3-8b"], "--model is of a site that is written; give --export DIR too"),
        (["--export", str(tmp_path), "--port", "1"], "--port is of a page that is served"),
        (["--export", str(tmp_path), "--view", "rofline"], "did you mean 'roofline'?"),
        (["--at", "training?chips=many"], "control 'chips' is 'many'"),
    ):
        code, _, err = command(capsys, "ui", *words)
        assert code == 2, err
        assert said in err


def test_the_command_says_how_long_it_takes_first(capsys, tmp_path):
    code, out, err = command(capsys, "ui", "--export", str(tmp_path / "site"), "--view", "programs")
    assert code == 0, err
    assert "48 states of 1 view: about 1 minute on " in err
    assert "48 states in " in out
    assert f"python -m http.server --directory {tmp_path / 'site'}" in out


def test_a_coarse_site_has_quick_answers_of_planners(tmp_path):
    grid = replace(site_grid(views=["serving", "hbm"]), coarse=True)
    asked = {"model": "llama-3.2-1b", "on": "h100", "chips": "1", "output": "32"}
    states = chosen({"serving": asked, "hbm": FEW["hbm"]})
    write_site(tmp_path, grid, states, None)
    ((_, name),) = packed(tmp_path / "grid/index.json.gz")["states"]["serving"].items()
    said = packed(tmp_path / f"grid/serving/{name}.json.gz")
    assert said["refines"] == "", "nothing is to come"
    assert any("--coarse" in one for one in said["warnings"])
    assert "--coarse" in said["commands"][-1]
    assert not any(
        "change" in line for line in (*said["lines"], *(t["title"] for t in said["tables"]))
    )
    assert [fault for one in drawn(tmp_path) for fault in faults(tmp_path, *one)] == []
    check_site(tmp_path, coarse=True)
    with pytest.raises(BadRequest, match=r"are not full; give --coarse as before, or name another"):
        check_site(tmp_path)


@pytest.mark.slow
def test_decisions_and_what_they_lead_to(tmp_path):
    done = write_site(tmp_path, site_grid(views=list(DECISIONS)), chosen(DECISIONS), None)
    states = same_as_the_page(tmp_path)["states"]
    assert done.states == 4
    assert any("tokens=1e11" in key for key in states["training"]), "the link of the first answer"


@pytest.mark.slow
def test_drawn_states_of_a_site_say_what_their_commands_say(tmp_path):
    grid = site_grid(views=[name for name in VIEWS if name not in DECISIONS])
    states = random.Random(45).sample(grid.states(), 12)
    write_site(tmp_path, grid, states, None)
    held = drawn(tmp_path)
    assert len(held) >= len(states)
    assert [fault for state in held for fault in faults(tmp_path, *state)] == []
    view, key, name = held[0]
    path = tmp_path / "grid" / view / f"{name}.json.gz"
    path.write_bytes(gzip.compress(json.dumps(packed(path) | {"says": "another"}).encode()))
    assert list(faults(tmp_path, view, key, name)) == [
        f"{view}?{key}: the file is not the page's answer"
    ]


def test_states_of_a_model_share_their_searches(monkeypatch):
    """A chip beside two others is searched once for both; files are the same as without."""
    searched = []

    def counted(request, **more):
        searched.append(request.piece)
        return plan_train(request, **more)

    monkeypatch.setattr(predict, "plan_train", counted)
    monkeypatch.setattr(site, "_PLANS", KeptPlans())
    words = {"model": "llama-3.2-1b", "chips": "4", "batch": "65536", "beside": "l4"}
    both = [grid_state(VIEWS["training"], {**words, "on": on}) for on in ("v5e", "v6e")]
    alone = [unkept(one, monkeypatch) for one in both]
    before = len(searched)
    assert [answer(one) for one in both] == alone
    again = searched[before:]
    assert len(again) < before
    beside = [piece for piece in again if piece.chip.id == "l4"]
    assert len(beside) == len([p for p in searched[:before] if p.chip.id == "l4"]) / 2


def test_a_state_and_what_it_leads_to_share_their_runs(monkeypatch):
    """Servers of a first answer are simulated once; the file of the next state is the same."""
    ran = []

    def counted(*given, **more):
        ran.append(given)
        return steady_run(*given, **more)

    monkeypatch.setattr(steady, "steady_run", counted)
    monkeypatch.setattr(site, "_PLANS", KeptPlans())
    words = {"model": "llama-3.2-1b", "task": "serve it", "on": "v6e", "output": "32"}
    (link,) = [
        one
        for one in site._links(answer(grid_state(VIEWS["start"], words)))
        if one.view == "serving"
    ]
    before = len(ran)
    found = answer(link)
    assert len(ran) - before < before / 4
    assert json.loads(gzip.decompress(found))["says"], "so many chips are a slice"
    assert unkept(link, monkeypatch) == found


def answer(state):
    """A state's file, with no answer remembered."""
    _answered.cache_clear()
    return site.answer_file(state)


def unkept(state, monkeypatch):
    with monkeypatch.context() as other:
        other.setattr(site, "_PLANS", KeptPlans())
        return answer(state)
