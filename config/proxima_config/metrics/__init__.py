"""The metrics by topic; ``proxima_config.metrics_catalogue`` lists them all."""
