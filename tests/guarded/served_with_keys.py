"""The service with API keys in a file, and a tenant that may have five jobs; for uvicorn."""

from __future__ import annotations

import os

from celery import Celery

from oncelery import Oncelery, Quota
from oncelery.http import create_app

#: Which file.
VARIABLE = "SERVED_KEYS"

if VARIABLE in os.environ:  # this is a server
    once = Oncelery(Celery("served", broker=os.environ["ONCELERY_STORE"]), quotas={"acme": Quota(max_active=5)})

    @once.task(name="charge", key="order")
    def charge(order: int) -> int:
        """Charge an order."""
        return order

    api = create_app(once, tasks=[charge], keys=os.environ[VARIABLE])
