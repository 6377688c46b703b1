"""What is written is read as what it was: no bytes of a serialiser are taken for ours."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelery.celery import message
from oncelery.celery.message import JSON, read, typed, write

SERIALISERS = ["json", "pickle", "msgpack", "yaml"]
ALL = [
    "application/json",
    "application/x-python-serialize",
    "application/x-msgpack",
    "application/x-yaml",
    "application/data",
]

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=5,
)
#: What begins as our own marks do, among all other bytes.
octets = st.binary() | st.binary().map(lambda rest: b"\0" + rest) | st.sampled_from([b"", b"\0", b"\0a\nb\nc", b"null"])


@pytest.mark.parametrize("serializer", SERIALISERS)
@given(value=values)
def test_a_value_is_read_as_it_was_written(serializer: str, value: object) -> None:
    written = write(value, serializer)

    assert written
    assert read(written, accept=ALL) == value


@given(value=octets)
def test_raw_bytes_are_read_as_they_were_written(value: bytes) -> None:
    written = write(value, "raw")

    assert written
    assert read(written, accept=ALL) == value


@given(
    content_type=st.sampled_from([JSON, *ALL, "application/x-encrypted"]),
    encoding=st.sampled_from(["utf-8", "binary"]),
    content=octets,
)
def test_whatever_a_serialiser_writes_is_parted_from_its_type(content_type: str, encoding: str, content: bytes) -> None:
    # An app's own serialiser may call anything JSON.
    with mock.patch.object(message, "dumps", return_value=(content_type, encoding, content)):
        written = write(None, "own")

    assert written
    assert typed(written) == (content_type, encoding, content)
