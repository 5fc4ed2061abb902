"""A seeded request draws the same numbers, however its prompt is cut into chunks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxima_engine.seeded_generator import DRAW, RewindableGenerator


def _integer(generator: torch.Generator) -> float:
    return float(torch.randint(0, 2**31, (1,), generator=generator).item())


def _exponential(generator: torch.Generator) -> float:
    return float(torch.empty(7).exponential_(generator=generator).sum())


def _several(generator: torch.Generator) -> float:
    # Speculative decoding draws uniforms to accept drafts, and then once more.
    return float(torch.empty(3).uniform_(generator=generator).sum()) + _exponential(generator)


# Ways in which vLLM's samplers draw.
DRAWS = [_integer, _exponential, _several]


def seeded(seed: int) -> RewindableGenerator:
    return RewindableGenerator.take_over(torch.Generator().manual_seed(seed))


def step(generator: RewindableGenerator, draw, *, kept: bool) -> float:
    """One step of vLLM's model runner: everybody draws, then the draw of a partial prefill is taken back."""
    generator.mark()
    drawn = draw(generator)
    if not kept:
        generator.set_offset(generator.get_offset() - DRAW)
    return drawn


@given(seed=st.integers(0, 2**63 - 1), steps=st.lists(st.tuples(st.booleans(), st.sampled_from(DRAWS)), max_size=30))
def test_draws_taken_back_leave_no_trace(seed, steps):
    """Partial prefills at the start (chunks) and in the middle (recomputation after preemption) change nothing."""
    plain = torch.Generator().manual_seed(seed)
    expected = [draw(plain) for kept, draw in steps if kept]
    generator = seeded(seed)
    drawn = [(kept, step(generator, draw, kept=kept)) for kept, draw in steps]
    assert [value for kept, value in drawn if kept] == expected


@given(seed=st.integers(0, 2**63 - 1), before=st.integers(0, 5))
def test_takes_over_where_the_other_stands(seed, before):
    plain = torch.Generator().manual_seed(seed)
    for _ in range(before):
        _integer(plain)
    own = RewindableGenerator.take_over(plain)
    assert _integer(own) == _integer(plain)


@pytest.mark.parametrize("back", [pytest.param(0, id="nowhere"), pytest.param(2 * DRAW, id="two_draws")])
def test_refuses_to_go_where_it_has_not_been(back):
    generator = seeded(1)
    step(generator, _integer, kept=True)
    step(generator, _integer, kept=True)
    with pytest.raises(ValueError, match="can only return to offset 4"):
        generator.set_offset(generator.get_offset() - back)


def test_a_draw_is_taken_back_once():
    generator = seeded(1)
    step(generator, _integer, kept=False)
    with pytest.raises(ValueError, match="last mark"):
        generator.set_offset(generator.get_offset() - DRAW)
