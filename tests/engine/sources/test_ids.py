from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vdali.engine.errors import UsageError
from vdali.engine.sources.ids import bytes_from_id, id_from_bytes, member_id, shown, split_member_id

TRICKY = st.lists(
    st.sampled_from([b":", b"::", b"\\", b"\\x", b"ff", b"\xff", b"\xc3", "é".encode(), b"a", b"/", b".", b" "])
)
RAW = st.one_of(st.binary(), TRICKY.map(b"".join))


@given(RAW)
def test_an_id_leads_back_to_its_bytes(raw: bytes):
    assert bytes_from_id(id_from_bytes(raw)) == raw


@given(RAW)
def test_an_id_is_valid_utf_8(raw: bytes):
    id_from_bytes(raw).encode("utf-8", "strict")


@given(RAW, RAW)
def test_different_bytes_have_different_ids(one: bytes, other: bytes):
    assert (id_from_bytes(one) == id_from_bytes(other)) == (one == other)


@given(RAW, RAW)
def test_a_member_id_leads_back_to_shard_and_member(shard: bytes, member: bytes):
    assert split_member_id(member_id(shard, member)) == (shard, member)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"A/x.jpg", "A/x.jpg"),
        ("größe/日本.jpg".encode(), "größe/日本.jpg"),
        (b"caf\xe9.jpg", "caf\\xe9.jpg"),
        (b"a\\b.jpg", "a\\\\b.jpg"),
        (b"a\\xe9.jpg", "a\\\\xe9.jpg"),
        (b"line\nbreak.jpg", "line\nbreak.jpg"),
        (b"\xed\xa0\x80", "\\xed\\xa0\\x80"),
    ],
)
def test_an_id_stays_readable(raw: bytes, expected: str):
    assert id_from_bytes(raw) == expected


def test_colons_of_a_shard_name_never_look_like_the_border():
    assert member_id(b"a::b.tar", b"c::d.jpg") == "a\\x3a\\x3ab.tar::c::d.jpg"
    assert member_id(b"s3://bucket/a.tar", b"x.jpg") == "s3://bucket/a.tar::x.jpg"


@pytest.mark.parametrize("text", ["a\\b", "a\\", "a\\x4", "a\\xFF", "\ud800"])
def test_text_that_is_no_id_is_refused(text: str):
    with pytest.raises(UsageError, match="Not an id"):
        bytes_from_id(text)


def test_an_id_without_a_member_is_not_split():
    with pytest.raises(UsageError, match="holds no '::'"):
        split_member_id("a.tar")


def test_any_path_can_be_shown():
    assert shown("a\udcff.jpg") == "a\\xff.jpg"
