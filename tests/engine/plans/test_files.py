import multiprocessing
import resource
import threading

import pytest
from vdali.engine.errors import VdaliError
from vdali.engine.plans.files import locked, write_atomically


def test_a_file_is_replaced_whole_and_no_temporary_stays(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def write_with_limit(path, answers):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        write_atomically(path, bytes(2000))
    except VdaliError as error:
        answers.put(str(error))


def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=write_with_limit, args=(path, answers))
    process.start()
    assert "(2000 bytes): File too large. Free some space" in answers.get(timeout=30)
    process.join()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_does_not_exist_is_one_message(tmp_path):
    with pytest.raises(VdaliError, match=r"No such file or directory\. Make its folder writable"):
        write_atomically(tmp_path / "none" / "file", b"data")


def test_a_lock_that_is_held_is_not_got_twice(tmp_path):
    with locked(tmp_path / "lock") as first, locked(tmp_path / "lock") as second:
        assert (first, second) == (True, False)
    with locked(tmp_path / "lock") as third:
        assert third


def test_a_waiter_gets_the_lock_afterwards_even_if_its_file_was_deleted(tmp_path):
    lock = tmp_path / "lock"
    waiting, got = threading.Event(), threading.Event()

    def wait():
        with locked(lock, on_wait=waiting.set) as held:
            assert held
            got.set()

    thread = threading.Thread(target=wait)
    with locked(lock):
        thread.start()
        assert waiting.wait(10)
        assert not got.is_set()
        lock.unlink()
    thread.join(10)
    assert got.is_set()
    assert lock.exists()
