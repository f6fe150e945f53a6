"""How often a file system that is shut down says that files are synced, though they are not (decision 0019).

Run as root, on Linux: `python -m benchmarks.experiments.lying_syncs [SHUTDOWNS]`

An ext4 in a file of its own is mounted, threads append to a file each and sync it, and at a random moment the file
system is shut down without writing its journal. Mounted again, each file must hold what was synced.
"""

import fcntl
import os
import random
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.storage.durable import sync_data

SHUTDOWNS = 400
FILES = 6
IMAGE_BYTES = 96 << 20
# EXT4_IOC_SHUTDOWN, and the way of doing it that writes nothing more: neither data nor journal.
SHUTDOWN, WITHOUT_LOG_FLUSH = 0x8004587D, 2

Sync = Callable[[int], None]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _write(path: Path, filler: int, sync: Sync, synced: list[int]) -> None:
    """Append and sync until the disk is gone; `synced` holds how many bytes of the file were."""
    written = 0
    with path.open("w+b", buffering=0) as file:
        try:
            while True:
                written += file.write(bytes([filler]) * random.randrange(100, 3000))
                sync(file.fileno())
                synced[filler - 1] = written
        except OSError:
            return


def _is_whole(place: Path, image: Path, files: int, sync: Sync) -> bool:
    """Whether after one shutdown everything is there that was synced."""
    _run("mount", "-o", "loop", str(image), str(place))
    synced = [0] * files
    writers = [
        threading.Thread(target=_write, args=(place / str(number), number + 1, sync, synced)) for number in range(files)
    ]
    for writer in writers:
        writer.start()
    time.sleep(random.uniform(0.02, 0.06))
    directory = os.open(place, os.O_RDONLY)
    fcntl.ioctl(directory, SHUTDOWN, struct.pack("I", WITHOUT_LOG_FLUSH))
    os.close(directory)
    for writer in writers:
        writer.join()
    _run("umount", str(place))
    _run("mount", "-o", "loop", str(image), str(place))
    try:
        contents = [(place / str(number)).read_bytes() for number in range(files)]
    finally:
        _run("umount", str(place))
    return all(contents[n][:size] == bytes([n + 1]) * size for n, size in enumerate(synced))


def main() -> None:
    shutdowns = int(sys.argv[1]) if len(sys.argv) > 1 else SHUTDOWNS
    ways: tuple[tuple[str, int, Sync], ...] = (
        ("one thread, fdatasync", 1, os.fdatasync),
        (f"{FILES} threads, fdatasync", FILES, os.fdatasync),
        (f"{FILES} threads, fdatasync, then a read", FILES, sync_data),
    )
    with tempfile.TemporaryDirectory() as scratch:
        image, place = Path(scratch) / "image", Path(scratch) / "place"
        place.mkdir()
        with image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        for name, files, sync in ways:
            _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
            missing = sum(not _is_whole(place, image, files, sync) for _ in range(shutdowns))
            print(f"{name:40} synced bytes were missing after {missing} of {shutdowns} shutdowns", flush=True)


if __name__ == "__main__":
    main()
