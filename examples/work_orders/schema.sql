CREATE TABLE IF NOT EXISTS tickets (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The fingerprint of (site, number): what makes a ticket the one it is, however often it is sent.
    idempotency_key text NOT NULL UNIQUE,
    site            text NOT NULL,
    number          int NOT NULL,
    asset           text NOT NULL,
    fault           text NOT NULL,
    opened_at       timestamptz NOT NULL
);
