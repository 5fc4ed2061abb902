"""Errors that a person at the command line sees.

    ProximaError              exit 1: something failed
    ├── UsageError            exit 2: the call itself is wrong
    │   └── ConfigError       exit 2: a setting is unknown, out of bounds or contradictory
    ├── ModelError            exit 1: a model cannot be found, read or prepared
    ├── EngineStartError      exit 1: the engine could not start; the message is the root cause
    └── EngineDiedError       exit 1: the engine is lost and may not be started again

The command line prints the message as its last line and nothing else; tracebacks appear at log level debug.
"""

from __future__ import annotations


class ProximaError(Exception):
    """Base of all errors with a message meant for people."""

    exit_code = 1


class UsageError(ProximaError):
    exit_code = 2


class ConfigError(UsageError):
    """Names the key, the value, the rule and, for an unknown key, the nearest valid one."""


class ModelError(ProximaError):
    pass


class EngineStartError(ProximaError):
    pass


class EngineDiedError(ProximaError):
    pass
