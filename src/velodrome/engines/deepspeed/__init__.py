"""DeepSpeed as an engine. It logs on the standard output, where events are written: from its import on, elsewhere.

Models that it trained are exported where it is not installed, too.
"""

import sys
from contextlib import redirect_stdout, suppress

with redirect_stdout(sys.stderr), suppress(ModuleNotFoundError):
    import deepspeed  # noqa: F401
