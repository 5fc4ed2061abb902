"""KV blocks of requests that yield, kept in host memory until they resume (docs/swap.md)."""
