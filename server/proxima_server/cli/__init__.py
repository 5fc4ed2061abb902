"""The `proxima` command line."""
