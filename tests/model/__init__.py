"""A model check of the ledger's protocol: every order of steps and faults, within stated bounds.

ledger.py     the store's verbs as pure functions, with time as an event
protocol.py   what uses them: callers, a broker, workers, a sweeper, an operator; and what may go wrong
search.py     every state within the bounds, the invariants on each, the shortest way to a broken one
mutants.py    planted bugs, each of which the search must find
"""
