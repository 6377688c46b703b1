"""The memory store: this process only."""

from oncelery.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
