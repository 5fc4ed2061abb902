"""Pure scheduling decisions: no vLLM, no torch, no I/O, no clock of its own."""
