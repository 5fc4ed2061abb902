"""Why an engine ended, from what its processes logged and how they exited."""

from __future__ import annotations

import logging

import pydantic
import pytest

from proxima_config.errors import ConfigError
from proxima_engine.root_cause import FailureHandler, FailureLog, one_line


class Processes:
    """Engine processes that log exceptions, each into its own file."""

    def __init__(self, directory):
        self._directory = directory

    def log(self, process: int, said: str, error: Exception) -> None:
        handler = FailureHandler(self._directory)
        handler._path = self._directory / f"failure-{process}.jsonl"
        handler.emit(logging.LogRecord("vllm", logging.ERROR, "", 0, said, None, (type(error), error, None)))


@pytest.fixture
def processes(tmp_path):
    return Processes(tmp_path)


@pytest.fixture
def failures(tmp_path):
    return FailureLog(tmp_path)


PARENT = RuntimeError("Engine core initialization failed. Failed core proc(s): {'EngineCore': 1}")


def test_the_worker_knows_better_than_the_engine_core(processes, failures):
    processes.log(1, "EngineCore failed to start.", RuntimeError("see above"))
    processes.log(2, "WorkerProc failed to start.", ValueError("no such tensor"))
    assert str(failures.explain_start(PARENT)) == "ValueError: no such tensor"


def test_harmless_errors_before_are_not_the_cause(processes, failures):
    processes.log(1, "Failed to load plugin x", ImportError("x"))
    processes.log(1, "EngineCore failed to start.", ValueError("too small"))
    processes.log(1, "cleaning up failed", OSError("busy"))
    assert str(failures.explain_start(PARENT)) == "ValueError: too small"


def test_half_a_line_of_a_killed_process_is_skipped(failures, processes, tmp_path):
    processes.log(1, "EngineCore failed to start.", ValueError("too small"))
    (tmp_path / "failure-2.jsonl").write_text('{"time": 1.0, "said": "Wor')
    assert str(failures.explain_start(PARENT)) == "ValueError: too small"


def test_a_signal_is_named_when_nothing_was_logged(failures):
    killed = RuntimeError("Engine core initialization failed. Failed core proc(s): {'EngineCore': -9}")
    assert str(failures.explain_start(killed)) == "process EngineCore was ended by SIGKILL (out of memory?)"


def test_what_the_parent_knows_is_better_than_nothing(failures):
    assert str(failures.explain_start(ValueError("max_model_len\nis too large"))) == (
        "ValueError: max_model_len is too large"
    )


def test_our_own_errors_pass_unchanged(failures):
    error = ConfigError("x")
    assert failures.explain_start(error) is error


def test_death_without_a_word(failures):
    assert failures.explain_death({"EngineCore": 0}) == "the engine died: its process ended without saying why"


class Settings(pydantic.BaseModel):
    size: int

    @pydantic.model_validator(mode="after")
    def bounded(self) -> Settings:
        if self.size > 9:
            raise ValueError("too large\nfor this model")
        return self


@pytest.mark.parametrize(
    ("size", "line"),
    [
        pytest.param("a", "size: Input should be a valid integer, unable to parse string as an integer", id="field"),
        pytest.param(10, "too large for this model", id="whole"),
    ],
)
def test_validation_errors_become_one_line(size, line):
    with pytest.raises(pydantic.ValidationError) as caught:
        Settings(size=size)
    assert one_line(caught.value) == line


@pytest.mark.parametrize(
    ("error", "line"),
    [pytest.param(KeyError("a"), "KeyError: 'a'", id="message"), pytest.param(EOFError(), "EOFError", id="none")],
)
def test_exceptions_become_one_line(error, line):
    assert one_line(error) == line
