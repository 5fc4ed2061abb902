"""Numbers as tables and sentences show them."""

from __future__ import annotations


def rounded(value: float | None) -> str:
    """Three digits that matter, and all of a larger or a whole number; `-` for what is not known."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"
