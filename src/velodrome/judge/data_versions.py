"""Runs of a race whose data differ: they are separated, named by what differs, and not compared with each other.

Pure functions from results to results and sentences. Results of earlier versions do not record their data; they, and
runs that ended before they loaded any, count as of the same data as the run before them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import velodrome.job.result as typed_results

Result = Mapping[str, Any]
R = TypeVar("R", bound=Mapping[str, Any])


def differences(before: Result, after: Result) -> list[str]:
    """`training examples 1,200 → 1,500`, and so on; empty for two runs of the same data, as far as they record it."""
    old, new = before.get("data"), after.get("data")
    if not old or not new:
        return []
    counts = {"training examples": (_training(old), _training(new)), "test examples": (old["test"], new["test"])}
    found = [f"{what} {first:,} → {second:,}" for what, (first, second) in counts.items() if first != second]
    if found:
        return found
    prints = old.get("fingerprint"), new.get("fingerprint")
    # A function of the user's own may make other data for each seed.
    comparable = not (old.get("seeded") or new.get("seeded")) or before.get("seed") == after.get("seed")
    if comparable and None not in prints and prints[0] != prints[1]:
        return [f"other examples, as many as before (fingerprint {prints[0]} → {prints[1]})"]
    return []


def _training(data: Mapping[str, Any]) -> int:
    """Examples that were not held out for the test; how many of them validate is up to the job."""
    return int(data["train"]) + int(data["validation"])


def change_note(earlier: Iterable[Result], result: Result) -> str:
    """What differs between the data of a run and those of the newest of earlier runs that asked for the same; empty if
    nothing does."""
    same = newest([one for one in earlier if _request(one) == _request(result) and one.get("data")])
    return next((", ".join(found) for one in same if (found := differences(one, result))), "")


def versions(results: Sequence[Result]) -> list[int]:
    """The version of its data for each result, counted from 0 for each data set in the order in which runs began."""
    found = [0] * len(results)
    members: dict[str, list[list[int]]] = {}
    last: dict[str, int] = {}
    for at in _in_order(results):
        request, result = _request(results[at]), results[at]
        known = members.setdefault(request, [])
        if not result.get("data"):
            found[at] = last.get(request, 0)
            continue
        fits = [number for number, group in enumerate(known)
                if not any(differences(results[other], result) for other in group)]
        if not fits:
            known.append([])
            fits = [len(known) - 1]
        known[fits[0]].append(at)
        found[at] = last[request] = fits[0]
    return found


def newest(results: Sequence[R]) -> list[R]:
    """The runs of the newest data of each data set: by them alone a race is decided while it runs."""
    number = versions(results)
    last = {_request(results[at]): number[at] for at in _in_order(results)}
    return [result for at, result in enumerate(results) if number[at] == last[_request(result)]]


def with_data(result: R, version: str, change: str) -> R:
    more = {"data_version": version, "data_change": change}
    typed = result if isinstance(result, typed_results.Result) else None
    return cast("R", {**result, **more} if typed is None else typed.model_copy(update=more))


def labelled(results: Sequence[R]) -> list[R]:
    """The results, those of a data set that changed with a name of their data, and with what changed."""
    number, found = versions(results), list(results)
    for request in {_request(result) for result in results}:
        mine = [at for at in _in_order(results) if _request(results[at]) == request]
        firsts: dict[int, Result] = {}
        for at in mine:
            if results[at].get("data"):
                firsts.setdefault(number[at], results[at])
        if len(firsts) < 2:
            continue
        names = _names(firsts)
        pairs = zip(list(firsts.values())[:-1], list(firsts.values())[1:], strict=True)
        change = "; then ".join(", ".join(differences(*pair)) for pair in pairs)
        for at in mine:
            found[at] = with_data(results[at], names[number[at]], change)
    return found


def _names(firsts: Mapping[int, Result]) -> dict[int, str]:
    """`1,200 training examples`, or `fingerprint 3f2a…` where that tells versions no better apart."""
    for form in ("{training:,} training examples", "{training:,} training and {test:,} test examples",
                 "fingerprint {fingerprint}"):
        names = {number: form.format(training=_training(result["data"]), test=result["data"]["test"],
                                     fingerprint=result["data"].get("fingerprint"))
                 for number, result in firsts.items()}
        if len(set(names.values())) == len(names):
            return names
    return {number: f"version {number + 1}" for number in firsts}


def data_note(results: Iterable[Result]) -> str:
    """A sentence on data that changed during the race; empty if they did not."""
    changes = dict.fromkeys(str(result["data_change"]) for result in results if result.get("data_change"))
    if not changes:
        return ""
    return (f"The data changed during the race ({'; '.join(changes)}): runs on different data are not compared with "
            "each other.")


def _request(result: Result) -> str:
    return str((result.get("job") or result).get("dataset"))


def _in_order(results: Sequence[Result]) -> list[int]:
    return sorted(range(len(results)), key=lambda at: _started(results[at]))


def _started(result: Result) -> float:
    return float(result.get("started") or math.inf)
