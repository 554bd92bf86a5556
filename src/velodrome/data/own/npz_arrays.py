"""Arrays of any shape in an `.npz` file: converted once, cached, and mapped by every worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.data import cache
from velodrome.data.base import BadData, Checked, Description, Fault, Faults, Progress, refuse, summaries
from velodrome.data.images.cached_set import check_bytes
from velodrome.data.own.npz import given_arrays
from velodrome.data.split import TEST, TRAIN, VALIDATION, sizes_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from velodrome.data.examples import ArrayField, ExampleSet
    from velodrome.data.own.array_args import ArgumentPart


@dataclass(frozen=True)
class NpzArraySet:
    """Named inputs and targets of a file."""

    name: str
    path: Path
    bad_data: BadData

    @property
    def source(self) -> str:
        return repr(("npz arrays", str(self.path.resolve())))

    def key(self) -> str:
        about = self.path.stat()
        return cache.key_of(("npz arrays", 1), [(self.path.name, about.st_size, about.st_mtime_ns)])

    @cached_property
    def _given(self) -> list[ArgumentPart]:
        from velodrome.data.own.array_args import argument_parts

        return argument_parts(self.name, given_arrays(self.path))

    def describe(self, validation: float) -> Description:
        from velodrome.data.examples import implied_task

        kept = self._decoded(None)  # classes and bad examples are only known when everything was read
        inputs, targets = _fields(kept.about, "inputs"), _fields(kept.about, "targets")
        train, validated, test = sizes_of(tuple(kept.about["parts"]), validation)
        return Description(
            name=self.name, title="your own data", licence="your own", homepage="", kind="arrays", train=train,
            validation=validated, test=test, input_shape=inputs[0].shape if len(inputs) == 1 else None,
            classes=kept.about["classes"], class_names=tuple(kept.about["class_names"]),
            bytes=self.path.stat().st_size, notes=_notes(kept.about), inputs=inputs, targets=targets,
            task=implied_task(targets),
        )

    def implied_task(self) -> str | None:
        from velodrome.data.examples import implied_task

        return implied_task(_fields(self._decoded(None).about, "targets"))

    def prepare(self, progress: Progress | None) -> None:
        self._decoded(progress)

    def load(self, seed: int, validation: float) -> ExampleSet:
        import numpy as np

        from velodrome.data.own.array_examples import ArrayExamples, divided

        kept = self._decoded(None)
        about = kept.about
        examples = ArrayExamples(
            {one["name"]: kept.array(f"input{place}") for place, one in enumerate(about["inputs"])},
            {one["name"]: kept.array(f"target{place}") for place, one in enumerate(about["targets"])},
            kept.array("rows"), kept.array("parts"), about["classes"], tuple(about["class_names"]),
            frozenset(about["images"]), np.asarray(kept.array("prints")),
        )
        return divided(self.name, examples, seed, validation, _notes(about))

    def is_here(self) -> bool:
        return cache.find(self.source, self.key()) is not None

    def verify(self) -> Sequence[Checked]:
        return cache.verify(self.source)

    def forget(self) -> None:
        cache.forget(self.source)

    def _decoded(self, progress: Progress | None) -> cache.Decoded:
        kept = cache.keep(self.source, self.key(), lambda folder: self._make(folder, progress))
        if self.bad_data == "fail":
            refuse(self.name, [Fault.from_json(fields) for fields in kept.about["faults"]])
        return kept

    def _make(self, folder: Path, progress: Progress | None) -> dict[str, Any]:
        import numpy as np

        from velodrome.data.own.array_examples import read

        names = [*self._given[0].inputs]
        total = sum(array.shape[0] * int(np.prod(array.shape[1:])) * 4 for part in self._given
                    for array in part.inputs.values())
        check_bytes(self.name, total, "its arrays")
        done = 0

        def allocate(one: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
            nonlocal done
            if progress:
                progress(done, total, f"reading {self.name}")
            done += int(np.prod(shape)) * dtype.itemsize
            return cache.allocate(folder / f"input{names.index(one)}.npy", dtype, shape)

        faults = Faults()
        examples = read(self.name, self._given, allocate, faults)
        for array in examples.inputs.values():
            array.flush()  # type: ignore[attr-defined]
        for place, array in enumerate(examples.targets.values()):
            np.save(folder / f"target{place}.npy", array)
        np.save(folder / "rows.npy", examples.rows)
        np.save(folder / "parts.npy", examples.parts)
        np.save(folder / "prints.npy", examples.prints)
        return {
            "inputs": _as_json(examples.inputs), "targets": _as_json(examples.targets), "classes": examples.classes,
            "class_names": list(examples.class_names), "images": sorted(examples.images),
            "parts": [int((examples.parts == which).sum()) for which in (TRAIN, VALIDATION, TEST)],
            "faults": [fault.as_json() for fault in faults.found()],
        }


def _as_json(arrays: Any) -> list[dict[str, Any]]:
    return [{"name": one, "shape": list(array.shape[1:]), "dtype": array.dtype.name} for one, array in arrays.items()]


def _fields(about: dict[str, Any], side: str) -> tuple[ArrayField, ...]:
    from velodrome.data.examples import ArrayField

    return tuple(ArrayField(one["name"], tuple(one["shape"]), one["dtype"]) for one in about[side])


def _notes(about: dict[str, Any]) -> tuple[str, ...]:
    return summaries([Fault.from_json(fields) for fields in about["faults"]])
