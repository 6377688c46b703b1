from __future__ import annotations

import pytest

from oncelery.codec import decode, encode
from oncelery.job import Failure


def test_an_error_with_half_a_character_is_written_with_its_escape() -> None:
    name = b"caf\xe9.csv".decode("utf-8", "surrogateescape")

    written = encode(Failure(type="FileNotFoundError", message=name))

    assert decode(written, Failure).message == "caf\\udce9.csv"


@pytest.mark.parametrize("value", [{"caf\udce9": 1}, ("caf\udce9",), [{"in": ["caf\udce9"]}]])
def test_half_a_character_is_written_wherever_it_is(value: object) -> None:
    assert b"caf\\\\udce9" in encode(value)


def test_numbers_that_lua_wrote_as_text_are_read_as_numbers() -> None:
    assert decode(b'{"fence": "1794744006173461"}', dict[str, int]) == {"fence": 1794744006173461}
