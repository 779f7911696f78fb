"""The one writer: whole files or none, and never over an input, over a file only with --force."""

import errno
import os
import stat
from pathlib import Path

import pytest

from shardwise.boundary import check_folder, check_output, write_table, write_text
from shardwise.errors import BadRequest, ShardwiseError


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "plan.yaml"


def test_a_file_is_written_whole(file):
    check_output(file, "-o")
    write_text(file, "µ: 1\n")
    assert file.read_bytes() == "µ: 1\n".encode()
    write_text(file, "µ: 2\n")
    assert file.read_text(encoding="utf-8") == "µ: 2\n"
    assert [f.name for f in file.parent.iterdir()] == ["plan.yaml"]


def test_a_file_that_exists_needs_force(file):
    for write in (file.write_text, lambda text: write_text(file, text)):
        write("mine")
        with pytest.raises(BadRequest) as refused:
            check_output(file, "-o")
        assert str(refused.value) == (
            f"-o '{file}' exists; name another file, or overwrite it with --force"
        )
        check_output(file, "-o", force=True)
        assert file.read_text() == "mine"


def test_nothing_is_written_but_the_file(file):
    write_text(file, "x")
    assert not list(Path(os.environ["XDG_STATE_HOME"]).rglob("*"))


@pytest.mark.parametrize("force", [False, True])
def test_an_input_is_never_an_output(file, force):
    write_text(file, "ours")
    link = file.with_name("link.yaml")
    link.symlink_to(file)
    hard = file.with_name("hard.yaml")
    os.link(file, hard)
    for output in (file, link, hard, file.parent / "." / file.name):
        with pytest.raises(BadRequest, match="is an input of the command; name another file"):
            check_output(output, "-o", force=force, inputs=[None, file])


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for path, said in (
        (tmp_path / "no" / "a.csv", "the folder .* does not exist; give another --csv"),
        (tmp_path, "it is a folder"),
        (tmp_path / "file" / "a.csv", "does not exist"),
        (tmp_path / ("a" * 300), "File name too long"),
        (tmp_path / "a\0b", "null"),
        (tmp_path / "a.pdf", r"must end in \.csv or \.tsv"),
    ):
        with pytest.raises(BadRequest, match=said):
            check_output(path, "--csv", endings=(".csv", ".tsv") if "." in path.name else ())
    with pytest.raises(BadRequest, match=r"cannot write .*No such file.*give another --csv"):
        write_text(tmp_path / "no" / "a.csv", "", option="--csv")


def test_a_folder_that_takes_no_files_is_refused_before_the_work(file, monkeypatch):
    def refused(**_):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")  # as /proc, even to root

    monkeypatch.setattr("tempfile.mkstemp", refused)
    with pytest.raises(BadRequest, match=r"cannot write '.*': No such file.*; give another -o"):
        check_output(file, "-o")


def test_what_tries_a_place_leaves_nothing(file):
    check_output(file.with_name("new.yaml"), "-o")
    assert not list(file.parent.iterdir())


@pytest.mark.parametrize("name", ["replace", "fsync"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(file, monkeypatch, name):
    write_text(file, "old")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, name, fail)
    with pytest.raises(ShardwiseError, match="No space left on device") as raised:
        write_text(file, "new")
    assert raised.value.exit_code == 1
    monkeypatch.undo()
    assert file.read_text() == "old"
    assert [f.name for f in file.parent.iterdir()] == ["plan.yaml"]


def test_the_mode_of_a_file_is_kept(file):
    write_text(file, "a")
    assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~_umask()
    file.chmod(0o600)
    write_text(file, "b")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_links_target_is_written(file):
    link = file.with_name("link")
    link.symlink_to(file)
    write_text(file, "a")
    write_text(link, "b")
    assert link.is_symlink()
    assert file.read_text() == "b"
    check_output(link, "-o", force=True)


def test_what_is_no_file_is_written_as_it_is(tmp_path):
    for device in ("/dev/null", "/dev/stdout"):
        check_output(Path(device), "-o")
        write_text(Path(device), "x")
    with pytest.raises(ShardwiseError, match="No space left") as raised:
        write_text(Path("/dev/full"), "x")
    assert raised.value.exit_code == 1


def test_a_table(tmp_path):
    write_table(tmp_path / "a.csv", ["x", "y"], [[1, "a,b"], [None, "µ"]])
    assert (tmp_path / "a.csv").read_bytes() == 'x,y\r\n1,"a,b"\r\n,µ\r\n'.encode()


class TestFolders:
    def test_a_new_one_and_one_without_files(self, tmp_path):
        folder = tmp_path / "report" / "deep"
        check_folder(folder, "--out")
        folder.mkdir(parents=True)
        (folder / ".shardwise-left").write_text("of a run that was killed")
        (folder / "plugins").mkdir()
        check_folder(folder, "--out")

    def test_a_file_in_it_needs_force(self, tmp_path):
        (tmp_path / "thesis.txt").write_text("")
        with pytest.raises(BadRequest, match=r"holds 'thesis.txt'; .*--force"):
            check_folder(tmp_path, "--out")
        check_folder(tmp_path, "--out", force=True)

    def test_the_folder_of_an_input_is_refused(self, tmp_path):
        plan = tmp_path / "plan.yaml"
        write_text(plan, "ours")
        with pytest.raises(BadRequest, match=r"holds 'plan.yaml', an input of the command"):
            check_folder(tmp_path, "--out", force=True, inputs=[plan])

    def test_no_folder(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(BadRequest, match="is a file; name a folder"):
            check_folder(tmp_path / "file", "--out")
        with pytest.raises(BadRequest, match=r"'.*file' is a file; give another --out"):
            check_folder(tmp_path / "file" / "deep", "--out")
        with pytest.raises(BadRequest, match="File name too long"):
            check_folder(tmp_path / ("a" * 300), "--out")
