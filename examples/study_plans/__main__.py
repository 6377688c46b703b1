"""`python -m examples.study_plans`, from the root of the checkout: all of it, on a private Valkey, until Ctrl-C.

Options are those of `oncelery up`: `--port 8001`, `--folder …`.
"""

from __future__ import annotations

import os
import sys
from base64 import b64encode
from secrets import token_bytes

from oncelery.cli import main

# What call-backs are signed with; and they go to this machine, which is not allowed unless you say so.
os.environ.setdefault("ONCELERY_WEBHOOK_SECRETS", "whsec_" + b64encode(token_bytes(32)).decode())
os.environ.setdefault("ONCELERY_ALLOW_PRIVATE", "yes")
# So that nobody waits long when a whole worker is killed; 30 s by default.
os.environ.setdefault("ONCELERY_LEASE", "5")

main(
    [
        *("up", "-A", "examples.study_plans.app", "--api", "examples.study_plans.api:api"),
        *("--folder", ".oncelery/study_plans"),
        *sys.argv[1:],
    ],
    prog_name="python -m examples.study_plans",
)
