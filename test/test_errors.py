"""Errors as the programs say them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zc_perception.errors import ConfigError, error_line


def test_words_stay_as_they_are() -> None:
    assert error_line('perception', ConfigError("model 'größe ≥ 3' …")) == "perception: error: model 'größe ≥ 3' …"


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert error_line('p', ConfigError("'a\nERROR\x1b[2J\ud800'")) == r"p: error: 'a\nERROR\x1b[2J\ud800'"


@given(st.text(st.characters(), max_size=50))
def test_it_is_one_line_that_can_be_written(text: str) -> None:
    line = error_line('p', ConfigError(text))
    assert line.splitlines() == [line] and line.isprintable()
    line.encode()
