"""Distributions of token counts, as the benchmark and the lab write them."""

from __future__ import annotations

import random

import pytest

from proxima_config import token_counts


@pytest.mark.parametrize(
    ("text", "possible"),
    [
        pytest.param("7", {7}, id="fixed"),
        pytest.param("3-5", {3, 4, 5}, id="range"),
        pytest.param("64|512", {64, 512}, id="choice"),
        pytest.param("lognormal(2, 1, 3)", {1, 2, 3}, id="lognormal_cut"),
    ],
)
def test_counts_draw_what_they_say(text, possible):
    draw, source = token_counts.parse(text), random.Random(5)
    assert {draw(source) for _ in range(500)} == possible


@pytest.mark.parametrize("text", ["", "0", "-3", "9-3", "0-4", "a", "8|0", "lognormal(0, 1)", "lognormal(8)", "1.5"])
def test_texts_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match="is no token count; write 128"):
        token_counts.parse(text)
