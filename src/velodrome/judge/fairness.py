"""What makes a comparison of two configurations less than fair, in words: updates of different size, and crashes.

Pure functions from rows to sentences, without their full stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from velodrome.judge.compare import Row

#: Consistencies under which every worker updates the weights by itself.
_BY_ITSELF = frozenset({"asp", "ssp", "dssp"})


def update_size(row: Row) -> int:
    """Examples behind one update of the weights: of all workers if they are synchronous, else of one."""
    result = row.results[0]
    if recorded := result.get("batch_of_step"):
        return int(recorded)
    by_itself = (result.get("consistency") or ("asp" if row.servers else "bsp")) in _BY_ITSELF
    per_worker = row.configuration.fields.get("batch_scope", "per-worker" if by_itself else "global") == "per-worker"
    if by_itself:
        return row.batch_size if per_worker else max(1, row.batch_size // row.workers)
    return row.batch_size * (row.workers if per_worker else 1)


def updates_note(best: Row, others: Iterable[Row]) -> str:
    """`torch/ddp updates the weights after 128 examples, torch/single after 64`; empty for updates of the same size, or
    if names say it."""
    found = [f"{other.name} after {update_size(other):,}" for other in others if _differs(best, other)]
    if not found:
        return ""
    return (f"{best.name} updates the weights after {update_size(best):,} examples, {' and '.join(found)}: "
            "this is another training")


def _differs(best: Row, other: Row) -> bool:
    sizes = update_size(best), update_size(other)
    named = all(f"batch {size}" in row.name.split(", ") for size, row in zip(sizes, (best, other), strict=True))
    return sizes[0] != sizes[1] and not named


def configurations_of(rows: Iterable[Row], always: Mapping[str, int], target: str | None) -> dict[str, dict[str, int]]:
    """Runs, failures and update size of every configuration, by name; `always` as for `crashes`.

    With a target also the runs that reached it.
    """
    found = {
        row.name: {"runs": row.runs, "failed": row.failed, "crashed": row.crashed}
        | ({} if row.is_script else {"update_size": update_size(row)})
        | ({"reached": row.reached} if target else {})
        for row in rows
    }
    return found | {name: {"runs": 0, "failed": count, "crashed": count} for name, count in always.items()}


def crash_note(row: Row) -> str:
    """`crashed in 2 of 5 runs`; empty if it did not."""
    return f"crashed in {row.crashed} of {_runs(row.attempts)}" if row.crashed else ""


def crashes(rows: Iterable[Row], always: Mapping[str, int]) -> str:
    """`torch/ddp with 2 workers crashed in 2 of 5 runs`, and so on for all that did; empty if none did.

    `always` counts the crashes of configurations of which no run finished, by name.
    """
    found = [f"{row.name} {crash_note(row)}" for row in rows if row.crashed]
    found += [f"{name} crashed in {'its only run' if count == 1 else f'all of {count} runs'}"
              for name, count in always.items()]
    return "; ".join(found)


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"
