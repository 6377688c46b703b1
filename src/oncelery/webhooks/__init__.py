"""Call-backs by Standard Webhooks: signed, to public addresses only, within limits. Nothing here needs FastAPI."""
