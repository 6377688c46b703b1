"""The app that the commands are tried on; where its servers are, the environment says."""

from __future__ import annotations

import os

from celery import Celery

from oncelery import Oncelery

included = os.environ.get("SHOP_INCLUDE", "").split()
app = Celery("shop", broker=os.environ["SHOP_SERVER"], backend=os.environ["SHOP_SERVER"], include=included)
once = Oncelery(app, store=os.environ["SHOP_SERVER"], namespace=os.environ["SHOP_NAMESPACE"], recommended=True)


@once.task(name="shop.charge", key="order_id", scope="tenant")
def charge(order_id: str, tenant: str = "acme") -> dict[str, str]:
    """Charge an order."""
    return {"charged": order_id, "tenant": tenant}
