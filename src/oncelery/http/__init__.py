"""Jobs over HTTP, for FastAPI."""
