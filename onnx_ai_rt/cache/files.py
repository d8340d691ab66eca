"""Files that are whole or not there."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from onnx_ai_rt.cache.headers import Bytes


def write_atomically(path: str | os.PathLike[str], data: Bytes) -> None:
    """Writes a file of these bytes; see `atomic_file`."""
    with atomic_file(path) as file:
        file.write(data.data)


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write beside `path`, renamed at the end: at every moment the old content or the new one is there.

    Devices and pipes are written as they are.

    Raises:
        OSError: as for any file, and naming `path`; nothing has changed then, nor after an error of the caller's.
    """
    try:
        with _special_or_temporary(Path(path)) as file:
            yield file
    except OSError as error:
        if error.errno is not None:  # else it has a text alone, and a name would hide it
            # Never the temporary file's name, which says nothing to the caller.
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None
        raise


@contextmanager
def _special_or_temporary(target: Path) -> Iterator[BinaryIO]:
    if target.is_symlink():  # what it points to is replaced, not the link
        target = target.resolve()
    if target.is_dir() or not target.name:
        code = errno.EISDIR if target.is_dir() else errno.ENOENT
        raise OSError(code, os.strerror(code))
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    # Short, so that the name fits where the target's own does.
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:  # the new name is to survive a power cut as well
        os.fsync(folder)
    finally:
        os.close(folder)
