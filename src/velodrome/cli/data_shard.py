"""`velodrome data shard`: writes a data set as TFRecord files to a folder, HDFS or S3."""

from __future__ import annotations

from typing import Annotated

import typer

from velodrome.cli import completion
from velodrome.cli.data_show import BadDataOption, checked
from velodrome.cli.options import Json, Mirror
from velodrome.cli.output import say, say_json
from velodrome.printable import bytes_text


def command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the data set.", autocompletion=completion.field("dataset"))
    ],
    to: Annotated[str, typer.Option("--to", metavar="URL", help="A folder, hdfs://host:port/path, webhdfs://… or "
                                    "s3://bucket/path.")],
    shards: Annotated[
        int, typer.Option("--shards", help="Files of the training part; others in proportion to their size.")
    ] = 16,
    encoding: Annotated[
        str,
        typer.Option("--encoding", help="Images as png, jpeg (loses detail) or raw.",
                     autocompletion=completion.one_of("png", "jpeg", "raw")),
    ] = "png",
    part: Annotated[str, typer.Option("--part", help="Parts to write, separated by commas.")] = "train,validation,test",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed of the validation split.")] = 1,
    validation: Annotated[float, typer.Option("--validation", help="Fraction of the training set held out for "
                                              "validation.")] = 0.1,
    bad_data: BadDataOption = "fail",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing set.")] = False,
    mirror: Mirror = None,
    json: Json = False,
) -> None:
    """Write a data set as TFRecord files, with an index that holds counts and checksums.

    Examples:

    `velodrome data shard mnist --shards 16 --to hdfs://namenode:9000/data/mnist`

    `velodrome data shard path:/data/photos --bad-data skip --to /data/shards`
    """
    from velodrome.api import datasets
    from velodrome.cli.console import JobProgress

    progress = JobProgress()
    try:
        written = datasets.shard(
            name, to, shards=shards, encoding=encoding, parts=part.split(","), seed=seed, validation=validation,
            bad_data=checked(bad_data), force=force, mirror=mirror, on_download=progress.data,
        )
    finally:
        progress.end()
    if json:
        say_json(written)
        return
    for known, count in written["parts"].items():
        say(f"{known:<10} {count['examples']:>9,} examples in {count['files']:>3} files")
    for note in written["notes"]:
        say(note)
    url = written["url"]
    say(f"{bytes_text(written['bytes'])} at {url}; train from it with --dataset shards:{url}")
