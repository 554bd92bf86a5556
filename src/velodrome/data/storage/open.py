"""Opens the store at an address: a folder, hdfs://, webhdfs:// or s3://."""

from __future__ import annotations

from velodrome.data.storage.backends import is_remote, split_url
from velodrome.data.storage.folder import FolderStore
from velodrome.data.storage.remote import RemoteStore
from velodrome.data.storage.store import Store


def open_store(url: str) -> Store:
    """The store at an address. Nothing is asked of it yet, so a host that is away is noticed at the first use."""
    scheme, place = split_url(url)
    return RemoteStore(url, scheme) if is_remote(scheme) else FolderStore(place)
