from __future__ import annotations

import pytest
from vdali.engine.batch import Sample
from vdali.engine.errors import UsageError
from vdali.engine.sources.memory import MemorySource


def test_pairs_and_samples_are_taken_in_order():
    own = Sample("b", lambda: b"2")
    source = MemorySource([("a", b"1"), own, ("c", bytearray(b"3")), ("d", memoryview(b"4"))])
    assert [(s.id, s.read()) for s in source] == [("a", b"1"), ("b", b"2"), ("c", b"3"), ("d", b"4")]
    assert len(list(source)) == 4


def test_bytes_are_not_copied():
    data = b"x" * 1000
    (sample,) = MemorySource([("a", data)])
    assert sample.read() is data


def test_a_generator_is_streamed_and_not_silently_empty_the_second_time():
    source = MemorySource((str(n), b"") for n in range(3))
    found = iter(source)
    assert next(found).id == "0"
    assert [s.id for s in found] == ["1", "2"]
    with pytest.raises(UsageError, match="used up after one pass"):
        iter(source)


def test_ids_are_valid_utf_8():
    (pair, sample) = MemorySource([("caf\udce9", b""), Sample("caf\udce9", bytes)])
    assert pair.id == sample.id == "caf\\xe9"


@pytest.mark.parametrize("value", ["ab", ("a", 3), (1, b"x"), b"x", None, ("a", b"x", 1), ("\ud800", b"")])
def test_anything_else_is_refused(value: object):
    with pytest.raises(UsageError, match="got "):
        list(MemorySource([value]))
