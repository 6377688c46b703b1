"""Where the provider calls: an event is checked, accepted at once, and left to a worker."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from secrets import token_bytes

from examples.webhooks.app import book
from fastapi import FastAPI, HTTPException, Request, Response

from oncelery import WebhookVerificationError, verify_webhook
from oncelery.http import map_errors, submit

#: What the provider signs the events of each tenant with: `whsec_…`, several while one rotates.
SECRETS: dict[str, str] = json.loads(os.environ.get("WEBHOOK_SECRETS", "{}"))

#: For tenants that nobody knows: they are refused as a wrong signature is, which tells nothing of who is a tenant.
NOBODY_S = "whsec_" + b64encode(token_bytes(32)).decode()

api = FastAPI()
map_errors(api)


@api.post("/tenants/{tenant}/webhooks")
async def receive(tenant: str, request: Request) -> Response:
    """Accept an event that the provider has signed for this tenant; one that it sends again is the same job."""
    try:
        event = verify_webhook(await request.body(), request.headers, SECRETS.get(tenant, NOBODY_S))
    except WebhookVerificationError as error:
        raise HTTPException(401, str(error)) from None
    return await submit(book, kwargs={"tenant": tenant, "event_id": request.headers["webhook-id"], "event": event})
