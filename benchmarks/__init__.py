"""What Oncelery costs, beside what people write by hand today: `python -m benchmarks`.

One module per question: cycle, duplicates, fingerprints, round_trips, footprint. `measure` compares; `ours`, `recipe`
and `handwritten` are what is compared; `sites` has the servers, `report` the tables.
"""
