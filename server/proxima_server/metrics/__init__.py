"""What `/metrics` shows beside vLLM's own metrics."""
