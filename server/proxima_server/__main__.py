"""`python -m proxima_server ...` is `proxima serve ...`."""

from __future__ import annotations

import sys

from proxima_server.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
