"""Print docs/state-machine.md."""

import sys

from oncelery.testing.conformance.document import document

sys.stdout.write(document())
