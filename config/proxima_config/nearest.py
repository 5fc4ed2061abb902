"""Finds the valid name that a mistyped one was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Below this similarity a suggestion is more confusing than none (difflib's own default).
CUTOFF = 0.6


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate most similar to ``word``; for dotted names the last part counts alone, too.

    A key in the wrong section (``max_num_seqs``, ``scheduler.port``) is closer by its last part than as a whole. Of
    equally close ones the first is meant.
    """
    names = list(candidates)
    leaf = word.rpartition(".")[2]
    same_leaf = [name for name in names if name.rpartition(".")[2] == leaf]
    if same_leaf:
        return same_leaf[0]
    whole = difflib.get_close_matches(word, names, n=1, cutoff=CUTOFF)
    by_leaf: dict[str, str] = {}
    for name in names:
        by_leaf.setdefault(name.rpartition(".")[2], name)
    leaves = difflib.get_close_matches(leaf, by_leaf, n=1, cutoff=CUTOFF)
    found = [*whole, *(by_leaf[match] for match in leaves)]
    return max(found, key=lambda name: _similarity(word, leaf, name), default=None)


def _similarity(word: str, leaf: str, name: str) -> float:
    as_whole = difflib.SequenceMatcher(None, word, name).ratio()
    return max(as_whole, difflib.SequenceMatcher(None, leaf, name.rpartition(".")[2]).ratio())
