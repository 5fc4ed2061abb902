"""What is known about each request: its record, the line about it in the log, its spans and its part in the metrics."""
