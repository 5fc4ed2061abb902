"""The sections of the settings tree, by topic; ``proxima_config.settings`` puts them together."""
