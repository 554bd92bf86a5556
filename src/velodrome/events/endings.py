"""How a result shows that its race ended the run, because it could not win any more.

Such a run is stored as interrupted, with the cause `beaten`; verdicts count it as a lower bound of its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The cause of such an end.
BEATEN = "beaten"


def ended_early(result: Mapping[str, Any]) -> bool:
    """Whether a run was ended because it could not win any more."""
    return result["status"] == "interrupted" and (result.get("error") or {}).get("cause") == BEATEN
