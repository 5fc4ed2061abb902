"""KV blocks of requests that yield, kept in host memory until they resume (docs/decisions/0012-yield-without-loss.md)."""
