"""What Ray's exceptions mean for a node, as the rest of a sentence that begins with its name. Imports no Ray."""

from __future__ import annotations

#: By the name of the exception or of one that it is derived from.
_REASONS = {
    "ActorUnavailableError": "cannot be reached through Ray: the connection to its actor broke, because its Ray daemon "
    "ended or its network is down",
    "NodeDiedError": "is lost: its Ray node died",
    "OutOfMemoryError": "ended its agent: Ray's memory monitor ended it, because the node ran out of memory",
    "WorkerCrashedError": "ended its agent: the process of Ray's actor there crashed",
    "ActorDiedError": "ended its agent: Ray's actor there died",
}
_LONGEST = 300


def reason_of(error: BaseException, seconds: float | None = None) -> str:
    """Why a node failed; `seconds` is the time that was allowed for what timed out."""
    names = [kind.__name__ for kind in type(error).__mro__]
    if "GetTimeoutError" in names:
        within = "in time" if seconds is None else f"within {seconds:g} s"
        return (f"did not start Ray's actor {within}: its Ray node is busy, or still prepares the runtime_env; raise "
                "start_timeout of the cluster")
    if "RuntimeEnvSetupError" in names:
        return f"cannot prepare the runtime_env: {_essence(error)}"
    known = next((_REASONS[name] for name in names if name in _REASONS), None)
    return known or f"cannot be reached through Ray: {_essence(error)} ({type(error).__name__})"


def _essence(error: BaseException) -> str:
    """The line of a message that names the cause: one that reports an error, else the last one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = next((line for line in lines if "ERROR" in line), lines[-1] if lines else "Ray gave no reason")
    return found[:_LONGEST]
