"""Triton kernels, typed wrappers and torch references. No vLLM."""
