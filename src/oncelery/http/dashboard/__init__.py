"""The dashboard: why a job ran, who holds it, what a duplicate was answered; and acting on it, safely.

app         create_dashboard: the routes
desk        what all pages stand on
session     who is signed in, and that a form is ours
rendering   templates, names of static files, headers
live        a page that is open changes with the ledger
pages       what each page reads, from the same operations as the JSON API
story       one job, in the order in which it happened
acts        cancel, revive, discard: what is said before, and what came of it
figures     numbers that are added up: outcomes by minute, durations by task, duplicates by hour
"""

from __future__ import annotations

from oncelery.http.dashboard.app import create_dashboard, mount_dashboard

__all__ = ["create_dashboard", "mount_dashboard"]
