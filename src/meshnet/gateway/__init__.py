"""The OpenAI-compatible HTTP server: JSON and server-sent events in front of model services."""
