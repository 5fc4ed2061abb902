"""The HTTP gateway and the command line."""
