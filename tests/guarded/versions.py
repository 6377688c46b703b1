"""What Celery itself does otherwise in versions before the newest, with plain tasks as well."""

from __future__ import annotations

import celery
import pytest

CELERY = tuple(int(part) for part in celery.__version__.split(".")[:2])

resolves_annotations = pytest.mark.skipif(CELERY < (5, 6), reason="Celery 5.5 does not read annotations that are text")
dumps_models = pytest.mark.skipif(CELERY < (5, 7), reason="before Celery 5.7 callers dump models themselves")
restores_often = pytest.mark.skipif(CELERY < (5, 6), reason="kombu 5.5 looks for old messages in its own time")
tells_of_rejections = pytest.mark.skipif(CELERY < (5, 7), reason="before Celery 5.7 a rejected task has no result")
counts_partial_arguments = pytest.mark.skipif(
    CELERY < (5, 7), reason="before Celery 5.7 an errback with an argument of its own is called as if it took three"
)
