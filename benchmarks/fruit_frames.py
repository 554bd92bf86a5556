"""How alike are the frames of the fruits? Each is a film of a turning fruit, and the publisher divided its frames.

    python benchmarks/fruit_frames.py                # needs the fruits: velodrome data prepare fruits

Prints mean absolute differences of pixels (0 to 255): of every frame of the publisher's test part to the next frame of
its film, to the training frame nearest to it in the film, to a random training frame of its variety, and to one of
another variety; and how often the most similar training frame, by pixels, is of the right variety.
"""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath

import numpy as np

from velodrome.data import cache
from velodrome.data.catalogue import data_set, prepare
from velodrome.data.sources.archives import Fruits
from velodrome.data.split import TEST, TRAIN


def film(name: str) -> tuple[str, int]:
    """Which film of its variety a frame belongs to, and its place in it: `r2_17_100.jpg` is the 17th of `r2`."""
    match = re.fullmatch(r"(?:(r\d*)_)?(\d+)_100", PurePosixPath(name).stem)
    assert match, name
    return match[1] or "", int(match[2])


def main() -> None:
    prepare("fruits:variety")
    fruits = data_set("fruits:variety")
    assert isinstance(fruits, Fruits)
    listing = fruits.lister()
    kept = cache.find(fruits.source, fruits.key())
    assert kept is not None
    images, labels, parts = (kept.array(name) for name in ("images", "labels", "parts"))
    frames = [film(file.name) for file in listing.files]
    random = np.random.default_rng(1)
    trained = np.flatnonzero(parts == TRAIN)
    by_frame = {(int(labels[place]), *frame): place for place, frame in enumerate(frames)}
    apart: dict[str, list[float]] = {"next": [], "nearest trained": [], "own variety": [], "another variety": []}
    steps: list[int] = []

    def distance(first: int, second: int) -> float:
        return float(np.abs(images[first].astype(np.int16) - images[second].astype(np.int16)).mean())

    for place in np.flatnonzero(parts == TEST):
        own = trained[labels[trained] == labels[place]]
        same_film = [other for other in own if frames[other][0] == frames[place][0]]
        if same_film:
            nearest = min(same_film, key=lambda other: abs(frames[other][1] - frames[place][1]))
            steps.append(abs(frames[nearest][1] - frames[place][1]))
            apart["nearest trained"].append(distance(place, nearest))
        following = by_frame.get((int(labels[place]), *frames[place][:1], frames[place][1] + 1))
        if following is not None:
            apart["next"].append(distance(place, following))
        apart["own variety"].append(distance(place, random.choice(own)))
        apart["another variety"].append(distance(place, random.choice(trained[labels[trained] != labels[place]])))

    # A hundredth of the pixels, averaged, is enough to find the most similar frame.
    small = images.reshape(-1, 10, 10, 10, 10, 3).mean(axis=(2, 4)).reshape(len(images), -1).astype(np.float32)
    squares = (small[trained] ** 2).sum(axis=1)
    right = 0
    tested = np.flatnonzero(parts == TEST)
    for place in tested:
        closest = trained[np.argmin(squares - 2 * small[trained] @ small[place])]
        right += int(labels[closest] == labels[place])
    found = {
        **{name: {"mean": round(float(np.mean(values)), 2), "median": round(float(np.median(values)), 2)}
           for name, values in apart.items()},
        "frames to the nearest trained": {"mean": round(float(np.mean(steps)), 2), "median": float(np.median(steps))},
        "nearest training frame has the right variety": round(right / len(tested), 4),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
