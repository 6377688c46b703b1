"""A property that is made once, also by threads that come first together; then it is a plain attribute.

The standard `cached_property` has no lock from Python 3.12 on, and kombu's stays a call, which every publication makes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as made_once
else:

    class made_once:  # noqa: N801 - like other properties
        """See the module."""

        def __init__(self, make: Callable[[Any], Any]) -> None:
            self._make = make
            self.__doc__ = make.__doc__
            self._renew_lock()
            # A child that is forked while a thread makes the property has the lock, and not the thread.
            os.register_at_fork(after_in_child=self._renew_lock)

        def _renew_lock(self) -> None:
            self._lock = threading.RLock()

        def __get__(self, instance: Any, owner: type) -> Any:
            if instance is None:
                return self
            attributes, name = vars(instance), self._make.__name__
            with self._lock:
                if name not in attributes:
                    attributes[name] = self._make(instance)
            return attributes[name]


__all__ = ["made_once"]
