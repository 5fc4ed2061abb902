"""`proxima tune`: settings that serve a load better than the defaults, found by trying them."""
