"""What an arm looks like in the pictures: its line and its marker, which also print in grey."""

from __future__ import annotations

from html import escape

_DASHES = {"-": "", "--": "6 3", ":": "1.5 2.5"}
# Around the middle of a box of 28 by 12.
_MARKERS = {
    "s": "M10.5 2.5h7v7h-7z",
    "v": "M9.5 2.5h9l-4.5 7.5z",
    "^": "M9.5 9.5h9l-4.5-7.5z",
    "<": "M18 1.5v9l-7.5-4.5z",
    ">": "M10 1.5v9l7.5-4.5z",
    "D": "M14 1.5l4.5 4.5-4.5 4.5-4.5-4.5z",
    "P": "M12.5 1.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "X": "M10 4l2-2 2 2 2-2 2 2-2 2 2 2-2 2-2-2-2 2-2-2 2-2z",
    "p": "M14 1.5l4.5 3.3-1.7 5.2h-5.6l-1.7-5.2z",
    "o": "M14 2a4 4 0 1 1 0 8a4 4 0 1 1 0-8z",
}


def sample(look: tuple[str, str, str]) -> str:
    """SVG of a look: colour, and marker and dashes as matplotlib names them."""
    color, marker, dashes = look
    dashed = f' stroke-dasharray="{_DASHES[dashes]}"' if _DASHES[dashes] else ""
    return (
        f'<svg class="look" viewBox="0 0 28 12" width="28" height="12" aria-hidden="true">'
        f'<path d="M0 6H28" stroke="{escape(color)}" stroke-width="1.8"{dashed}/>'
        f'<path d="{_MARKERS[marker]}" fill="{escape(color)}"/></svg>'
    )
