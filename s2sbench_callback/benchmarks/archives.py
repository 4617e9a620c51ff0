"""Sets as they are downloaded: folders and files inside archives, unpacked once into the cache."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import tarfile
import zipfile
from pathlib import Path

from s2sbench_callback.cache import cache_folder, made_once

_ENDINGS = (".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar", ".zip")


def unpacked(path: Path, cache_dir: str | Path | None = None) -> Path:
    """A file or folder as it can be read.

    What is there is returned as it is. An archive, and a path that is not there but stands beside it as ``<path>.tar.gz``, ``.tgz``, ``.tar.xz``,
    ``.tar.bz2``, ``.tar``, ``.zip`` or, for a file, ``<path>.gz``, is unpacked into the cache folder, once for each size and time of change.

    Args:
        path: File or folder, or archive of it.
        cache_dir: Where to unpack; by default below the user's cache folder.

    Returns:
        The path, or what was unpacked in its place. In an archive the folder may stand at the top, or its content alone.

    Raises:
        ValueError: If the archive is damaged, or wants to write outside its folder.
    """
    if path.is_dir() or (path.is_file() and not path.name.endswith(_ENDINGS)):
        return path
    packed = [path] if path.is_file() else [beside for ending in (*_ENDINGS, ".gz") if (beside := path.with_name(path.name + ending)).is_file()]
    if not packed:
        return path
    archive = packed[0]
    status = archive.stat()
    name = hashlib.blake2b(f"{archive.resolve()} {status.st_size} {status.st_mtime_ns}".encode(), digest_size=8).hexdigest()
    folder = made_once(cache_folder(cache_dir) / "unpacked" / f"{archive.name}-{name}", lambda empty: _unpack(archive, empty))
    if archive.name.endswith(".gz") and not archive.name.endswith(".tar.gz"):
        return folder / path.name
    inside = [entry for entry in folder.iterdir() if entry.name not in ("__MACOSX", ".DS_Store")]
    # Archives are made of a folder, or in it.
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def _unpack(archive: Path, folder: Path) -> None:
    try:
        if archive.name.endswith(".zip"):
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(folder)
        elif archive.name.endswith(_ENDINGS):
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
        else:
            with gzip.open(archive) as stream, (folder / archive.name.removesuffix(".gz")).open("wb") as target:
                shutil.copyfileobj(stream, target)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise ValueError(f"{archive} cannot be unpacked: {error}; is the download whole?") from error
