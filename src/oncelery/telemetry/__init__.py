"""What happens: as log lines and counts, by subscribing to events; for Prometheus; in a trace of the caller's."""
