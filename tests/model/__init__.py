"""A model check of the ledger's protocol: every order of steps and faults, within stated bounds.

ledger.py          the store's verbs as pure functions, with time as an event
mail.py            a broker that delivers at least once
steps.py           what a step is, and what it changes
protocol.py        who uses both, step by step, and what may go wrong between any two steps
invariants.py      what must be true after every step
search.py          every state within the bounds, and the shortest way to a broken one
configurations.py  the bounds: quick ones for the tests, thorough ones for `python -m tests.model`
mutants.py         planted bugs, each of which the search must find
twin.py            the model and a real store side by side, so that neither drifts from the other

Not modelled: steps and progress, payloads and their mismatch, attempts and back-off, durability and fail-over, several
keys, the signs by which the sweeper takes a queued message for lost.
"""
