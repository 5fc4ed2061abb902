"""Settings, presets and the catalogue of metrics. Imports nothing of ours and no vLLM."""
