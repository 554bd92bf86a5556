"""Data sets as TFRecord files: written, fetched, decoded. What Python callers use is exported here."""

from velodrome.data.shards.data_set import ShardSet, load_shards

__all__ = ["ShardSet", "load_shards"]
