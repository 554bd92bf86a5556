"""`velodrome data shard`: writes a data set as TFRecord files to a folder, HDFS or S3."""

from __future__ import annotations

from typing import Annotated

import typer

from velodrome.cli.data_show import BadDataOption, checked
from velodrome.cli.options import Json


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the data set.")],
    to: Annotated[str, typer.Option("--to", metavar="URL", help="A folder, hdfs://host:port/path, webhdfs://… or "
                                    "s3://bucket/path.")],
    shards: Annotated[
        int, typer.Option("--shards", help="Files of the training part; the other parts in proportion.")
    ] = 16,
    encoding: Annotated[str, typer.Option("--encoding", help="Images as png, jpeg (loses detail) or raw.")] = "png",
    part: Annotated[str, typer.Option("--part", help="Parts to write, separated by commas.")] = "train,validation,test",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed of the validation split.")] = 1,
    validation: Annotated[float, typer.Option("--validation", help="Fraction of the training set held out for "
                                              "validation.")] = 0.1,
    bad_data: BadDataOption = "fail",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing set.")] = False,
    json: Json = False,
) -> None:
    """Write a data set as TFRecord files, with an index that holds counts and checksums.

    Examples:

    `velodrome data shard mnist --shards 16 --to hdfs://namenode:9000/data/mnist`

    `velodrome data shard path:/data/photos --bad-data skip --to /data/shards`
    """
    import json as json_module

    from velodrome.cli.console import JobProgress
    from velodrome.data import catalogue
    from velodrome.data.shards.index import PARTS
    from velodrome.data.shards.write import write_shards
    from velodrome.data.storage.open import open_store
    from velodrome.errors import BadRequest

    chosen = [known for known in PARTS if known in part.split(",")]
    if not chosen or set(part.split(",")) - set(PARTS):
        raise BadRequest(f"--part {part!r}: give some of {','.join(PARTS)}, separated by commas")
    policy = checked(bad_data)
    store = open_store(to)
    progress = JobProgress()
    try:
        catalogue.prepare(name, progress.data, bad_data=policy)
        splits = catalogue.load_mapped(name, seed=seed, validation=validation, bad_data=policy)
        about = catalogue.describe(name, validation=validation, bad_data=policy)
        index = write_shards(
            splits, about, store, shards=shards, encoding=encoding, parts=chosen, seed=seed, validation=validation,
            force=force, progress=progress.data,
        )
    finally:
        progress.end()
    counts = {known: {"files": len(index.files(known)), "examples": index.examples(known)} for known in index.parts}
    if json:
        print(json_module.dumps({"name": name, "url": store.url, "encoding": encoding, "bytes": index.bytes,
                                 "parts": counts, "notes": list(splits.notes)}))
        return
    for known, count in counts.items():
        print(f"{known:<10} {count['examples']:>9,} examples in {count['files']:>3} files")
    for note in splits.notes:
        print(note)
    print(f"{index.bytes / 2**20:,.1f} MiB at {store.url}; train from it with --dataset shards:{store.url}")
