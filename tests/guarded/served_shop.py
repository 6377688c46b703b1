"""The shop of the faults behind HTTP: run by real workers, served by as many processes as a test starts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from faults.shop import Shop

from oncelery.http import create_app

#: The app's settings, as JSON.
SETTINGS = "SERVED_SETTINGS"


def environment(settings: Mapping[str, object]) -> dict[str, str]:
    """Give what tells a server its app's settings."""
    return {SETTINGS: json.dumps(dict(settings))}


if SETTINGS in os.environ:  # this is a server
    shop = Shop(**json.loads(os.environ[SETTINGS]))
    app = create_app(shop.once, tasks=[shop.charge, shop.charge_when_told])
