"""DeepSpeed as an engine. It logs on the standard output, where events are written: from its import on, elsewhere."""

import sys
from contextlib import redirect_stdout

with redirect_stdout(sys.stderr):
    import deepspeed  # noqa: F401
