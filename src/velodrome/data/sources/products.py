"""Kaggle's Fashion Product Images: `styles.csv` and `images/<id>.jpg`. Kaggle wants an account, so the user fetches it.

`fashion-products:gender` takes another column of the table as the label.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from velodrome.data import cache
from velodrome.data.base import DataError, Faults
from velodrome.data.delimited import columns, read_rows
from velodrome.data.fetch import MIRROR, mirror_folder
from velodrome.data.images.photos import Listing, PhotoSet
from velodrome.data.source import Description
from velodrome.data.split import TRAIN
from velodrome.data.storage.trees import File, FolderTree
from velodrome.errors import BadRequest
from velodrome.printable import shown

FOLDER = "fashion-products"
HOMEPAGE = "https://www.kaggle.com/datasets/paramaggarwal/fashion-product-images-small"
LABELS = ("articleType", "gender", "masterCategory", "subCategory", "baseColour", "season", "usage")
#: A class with fewer pictures is dropped: a tenth of them for validation would be none.
FEWEST = 10
#: Height and width of the small edition; the large one is brought to it.
SIZE = (80, 60)
#: How deep Kaggle's archives put the table, by edition.
_WITHIN = ("", "fashion-dataset", "myntradataset")


@dataclass(frozen=True)
class Products(PhotoSet):
    def variant(self, option: str) -> Products:
        if option not in LABELS:
            raise BadRequest(f"data set {FOLDER + ':' + option!r}: the label is one of {', '.join(LABELS)}")
        return replace(
            self, name=f"{FOLDER}:{option}", lister=partial(list_products, option), options=(option,),
            title=f"Kaggle's Fashion Product Images, by {option}",
        )

    def key(self) -> str:
        """What was prepared stays usable when the mirror it came from is out of reach."""
        kept = cache.stored_key(self.source) if find_products() is None else None
        return kept or super().key()

    def describe(self, validation: float) -> Description:
        if self.is_here():
            return super().describe(validation)
        return Description(
            name=self.name, title=self.title, licence=self.licence, homepage=self.homepage, train=None, validation=None,
            test=None, input_shape=(*SIZE, 3), classes=None,
        )

    def is_here(self) -> bool:
        return find_products() is not None or cache.stored_key(self.source) is not None


def find_products() -> Path | None:
    """The folder with the table and the images, in the cache or the mirror."""
    for top in (cache.folder(), mirror_folder()):
        for within in _WITHIN if top is not None else ():
            place = Path(top or "") / FOLDER / within
            if (place / "styles.csv").is_file() and (place / "images").is_dir():
                return place
    return None


def list_products(label: str) -> Listing:
    """Every product with a picture and a label of a class that is not rare."""
    place = find_products()
    if place is None:
        raise DataError(
            f"data set '{FOLDER}' must be fetched by hand, because Kaggle wants an account: get it from {HOMEPAGE} and "
            f"put styles.csv and images/ into {cache.folder() / FOLDER}, or into {FOLDER}/ of a folder that "
            f"--mirror or {MIRROR} names"
        )
    table = place / "styles.csv"
    heads = columns(table)
    if missing := {"id", label} - set(heads):
        raise DataError(f"{table} has no column {missing.pop()!r} but {', '.join(map(shown, heads))}: fetch it again")
    # The published table has flaws for every user: they are reported, and are no reason to refuse it.
    flaws = Faults()
    images = FolderTree(place / "images", follow_links=True)
    pictures = {file.name: file for file in images.files}
    rows: list[tuple[File, str]] = []
    for line, cells in read_rows(table, flaws, join_last=True):
        number, text = cells["id"].strip(), cells[label].strip()
        picture = pictures.get(f"{number}.jpg")
        if not number.isdecimal() or not text:
            flaws.add("rows without a number or a label", f"line {line}")
        elif picture is None:
            flaws.add("products without a picture", number)
        else:
            rows.append((picture, text))
    sizes = Counter(text for _, text in rows)
    for text, size in sorted(sizes.items()):
        if size < FEWEST:
            flaws.add(f"classes with fewer than {FEWEST} pictures", text, f"{size}")
    names = sorted(text for text, size in sizes.items() if size >= FEWEST)
    places = {name: number for number, name in enumerate(names)}
    kept = [(picture, places[text]) for picture, text in rows if text in places]
    return Listing(
        tree=images, files=[picture for picture, _ in kept], labels=[mark for _, mark in kept],
        parts=[TRAIN] * len(kept), class_names=names,
        notes=tuple(f"{flaw}: {flaw.remedy}" for flaw in flaws.found()),
    )


DATA_SETS = (
    Products(
        name=FOLDER, title="Kaggle's Fashion Product Images, by articleType", licence="MIT (as Kaggle says)",
        homepage=HOMEPAGE, bad_data="fail", place=FOLDER, lister=partial(list_products, LABELS[0]), size=SIZE,
        channels=3, options=(LABELS[0],),
    ),
)
