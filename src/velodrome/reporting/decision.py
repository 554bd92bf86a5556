"""What a race that ran until it was sure dropped and saved, recomputed from its stored runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from velodrome.errors import VelodromeError
from velodrome.job.names import expand
from velodrome.judge.compare import Row
from velodrome.judge.progress import Ending, Saving, saving
from velodrome.races.folder import RaceFolder
from velodrome.races.until_sure import UntilSure, criteria_of
from velodrome.reporting.load import RaceRecord


@dataclass(frozen=True)
class Decision:
    """How a race ended, and what it saved against the full grid."""

    ending: Ending
    saved: Saving

    @property
    def notes(self) -> list[str]:
        return [f"{self.ending.sentence} {self.saved.sentence}"]


def decision_of(record: RaceRecord, rows: Sequence[Row]) -> Decision | None:
    """The decision of a race that runs until it is sure; None for any other, or if its jobs are not known here."""
    try:
        race = record.race
        if not race.until_sure or not rows:
            return None
        entries = expand(race.model_copy(update={"repeat": race.most}))
    except VelodromeError:
        return None
    folder = RaceFolder(record.path.resolve().parent, record.name)
    criteria = criteria_of(race, (entry.job.target for entry in entries))
    return Decision(UntilSure(folder, race, entries, {}, criteria).as_stored(), saving(rows))
