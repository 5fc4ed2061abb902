"""Load generation over HTTP, comparisons and reports."""
