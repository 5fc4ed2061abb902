"""A load that keeps a gateway busy while something else is looked at."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Mapping
from typing import Any

import httpx


class BackgroundLoad:
    """Streams that are answered in the background, each followed by the next, until told to stop.

    ``body_of``: what number N of the streams asks for next, with its own random numbers.
    """

    def __init__(
        self,
        url: str,
        streams: int,
        body_of: Callable[[int, random.Random], dict[str, Any]],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._url = url
        self._body_of = body_of
        self._headers = dict(headers or {})
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(streams)]

    def __enter__(self) -> BackgroundLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        rng = random.Random(number)
        with httpx.Client(base_url=self._url, trust_env=False, timeout=120, headers=self._headers) as client:
            while not self._stop.is_set():
                body = {"ignore_eos": True, "stream": True, **self._body_of(number, rng)}
                with (
                    contextlib.suppress(httpx.HTTPError),
                    client.stream("POST", "/v1/completions", json=body) as response,
                ):
                    if response.status_code != 200:
                        self._stop.wait(0.2)
                    for _ in response.iter_lines():
                        if self._stop.is_set():
                            break
