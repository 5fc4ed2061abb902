"""Scheduling policy, vLLM adapters and engine lifecycle."""
