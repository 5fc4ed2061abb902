"""Alerts, recording rules and dashboard, generated from the metrics catalogue."""
