"""What a compiled program is kept by."""

from types import SimpleNamespace

from shardwise.profiler.ahead import job

TARGET = {"slice": "v5e:1x1", "platform": "tpu", "capacity": 1.0}


def kept_by(monkeypatch, tmp_path, own, asked):
    """The key of a program that has compiler options of its own."""
    program = SimpleNamespace(mesh=SimpleNamespace(shape={}), options=own)
    lowered = SimpleNamespace(as_text=lambda **_: "module")
    monkeypatch.setattr(job, "topology_devices", lambda target: [])
    monkeypatch.setattr(job, "_lowered", lambda *_: (program, lowered, 0.0))
    monkeypatch.setattr(job, "compiled", lambda *_: ({}, "HloModule a"))
    found = job.compile_job(TARGET, "a:b", {}, asked, str(tmp_path), None)
    return found["key"]


def test_options_of_the_program_itself_are_part_of_what_it_is_kept_by(monkeypatch, tmp_path):
    def key(own, asked):
        return kept_by(monkeypatch, tmp_path, own, asked)

    assert key({}, {}) == key({}, {})
    assert key({"xla_flag": True}, {}) != key({}, {})
    assert key({"xla_flag": True}, {}) != key({"xla_flag": False}, {})
    assert key({"xla_flag": True}, {"xla_flag": False}) == key({"xla_flag": False}, {})
