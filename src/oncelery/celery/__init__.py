"""Oncelery in a Celery app: the extension, the task class, what the worker's main process does."""
