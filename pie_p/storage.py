"""Storage: files that are either there whole or not there at all, and one writer at a time.

A write goes to a temporary file in the same folder, is flushed to the disk, and takes its name by a rename, which is atomic.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pie_p.errors import PiePError, ProfileError

try:
    import fcntl
except ModuleNotFoundError:  # pragma: no cover - no advisory locks on this system: one writer at a time is then the user's care
    fcntl = None  # type: ignore[assignment]

TEMPORARY: Final = ".part"


def sha256(content: bytes) -> str:
    """SHA-256 as 64 hex digits.

    >>> sha256(b"")[:8]
    'e3b0c442'
    """
    return hashlib.sha256(content).hexdigest()


def write_atomically(path: Path, content: bytes, *, error: type[PiePError] = ProfileError) -> None:
    """Put a file in its place whole, or leave what was there.

    Raises:
        PiePError: of the class `error`, when the disk refuses; the temporary file is gone then.
    """
    write_together({path: content}, error=error)


def write_together(contents: Mapping[Path, bytes], *, error: type[PiePError] = ProfileError) -> None:
    """Put files of one folder in their places, in this order, once all of them are on the disk: a full disk changes none.

    Raises:
        PiePError: of the class `error`, when the disk refuses; the temporary files are gone then.
    """
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}") for path in contents}
    path = next(iter(contents))
    try:
        try:
            for path, content in contents.items():
                with temporary[path].open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            for path in contents:
                temporary[path].replace(path)
        finally:
            for leftover in temporary.values():
                leftover.unlink(missing_ok=True)
        _sync_folder(path.parent)
    except OSError as problem:
        raise error(f"cannot write {path}: {problem.strerror or problem}; nothing was changed") from None


def check_target(folder: str | Path, *, mark: str = "", error: type[PiePError] = ProfileError) -> Path:
    """A folder that can be written into, or made: what a long piece of work asks before it starts.

    Args:
        folder: where results will go.
        mark: text that stands in a `manifest.json` of the kind that may be written over; empty: anything may be there.
        error: class of what is raised.

    Raises:
        PiePError: of the class `error`: a file stands there, there is no permission, or the manifest is of another kind.
    """
    place = Path(folder)
    try:
        nearest = next(path for path in (place, *place.absolute().parents) if path.exists())
    except (OSError, ValueError) as problem:  # no permission to look; a null byte
        raise error(f"cannot write into {str(place)[:200]}: {getattr(problem, 'strerror', None) or problem}") from None
    if not nearest.is_dir():
        raise error(f"cannot write into {place}: {nearest} is not a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise error(f"cannot write into {place}: no permission in {nearest}")
    manifest = place / "manifest.json"
    if mark and manifest.exists() and mark.encode() not in read_whole(manifest, what="manifest", error=error):
        raise error(f"{manifest} is that of something else, which is not written over; choose another folder")
    return place


def read_whole(path: Path, *, what: str, most: int = 1 << 31, error: type[PiePError] = ProfileError) -> bytes:
    """The bytes of a file of at most `most` bytes.

    Raises:
        PiePError: of the class `error`: missing, a folder, too large, unreadable.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise error(f"{path} has {size} bytes; a {what} has at most {most}")
            return file.read(most + 1)
    except FileNotFoundError:
        raise error(f"no {what} at {path}") from None
    except OSError as problem:
        raise error(f"cannot read the {what} {path}: {problem.strerror or problem}") from None


@contextlib.contextmanager
def locked(folder: str | Path, *, error: type[PiePError] = ProfileError) -> Iterator[Path]:
    """Make the folder, hold its lock, and clear away what an interrupted writer left.

    Raises:
        PiePError: of the class `error`: the path is not a folder, cannot be made, or another process writes in it.
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        handle = os.open(place, os.O_RDONLY)
    except OSError as problem:
        raise error(f"cannot write into {place}: {problem.strerror or problem}") from None
    try:
        lock_file(handle, busy=f"another process is writing into {place}; wait until it is done", error=error)
        for leftover in place.glob(f".*{TEMPORARY}"):
            leftover.unlink(missing_ok=True)
        yield place
    finally:
        os.close(handle)  # gives the lock back, as a crash does


def lock_file(handle: int, *, busy: str, error: type[PiePError] = ProfileError) -> None:
    """Hold an open file or folder until it is closed, as a crash closes it too.

    Raises:
        PiePError: of the class `error` and with the text `busy`: another process holds it.
    """
    if fcntl is None:
        return  # type: ignore[unreachable]  # pragma: no cover
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise error(busy) from None


def _sync_folder(folder: Path) -> None:
    """The rename itself must reach the disk; some systems cannot sync a folder, and lose nothing but that promise."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
