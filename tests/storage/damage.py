"""Seeded damages to files: what a bad disk, a bad copy or a curious hand can do."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path


def trials(name: str, usual: int) -> int:
    """Return the number of random trials: ``usual``, or what the environment variable says."""
    return int(os.environ.get(f"QKVARY_{name}", str(usual)))


def flip_bit(path: Path, generator: random.Random) -> None:
    data = bytearray(path.read_bytes())
    position = generator.randrange(len(data))
    data[position] ^= 1 << generator.randrange(8)
    path.write_bytes(bytes(data))


def truncate(path: Path, generator: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: generator.randrange(len(data))])


def zero_page(path: Path, generator: random.Random) -> None:
    data = bytearray(path.read_bytes())
    start = generator.randrange(len(data))
    length = min(4096, len(data) - start)
    if not any(data[start : start + length]):
        data[start] ^= 255
    else:
        data[start : start + length] = bytes(length)
    path.write_bytes(bytes(data))


def extend(path: Path, generator: random.Random) -> None:
    path.write_bytes(path.read_bytes() + generator.randbytes(generator.randrange(1, 50)))


def swap(path: Path, generator: random.Random) -> None:
    others = [other for other in path.parent.iterdir() if other.is_file() and other != path]
    others = [other for other in others if other.read_bytes() != path.read_bytes()]
    if not others:
        flip_bit(path, generator)
        return
    other = generator.choice(sorted(others))
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def delete(path: Path, generator: random.Random) -> None:
    path.unlink()


def edit_digit(path: Path, generator: random.Random) -> None:
    """Change one digit: the edit that keeps a text file well formed."""
    data = bytearray(path.read_bytes())
    digits = [index for index, byte in enumerate(data) if chr(byte).isdigit()]
    if not digits:
        flip_bit(path, generator)
        return
    index = generator.choice(digits)
    data[index] = ord("0") + (data[index] - ord("0") + generator.randrange(1, 10)) % 10
    path.write_bytes(bytes(data))


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    flip_bit,
    truncate,
    zero_page,
    extend,
    swap,
    delete,
    edit_digit,
)


def damaged_copies(sound: Path, place: Path, count: int, *, part: str | Path = "") -> Iterator[str]:
    """Copy a folder again and again, each time with a file of a part damaged; yields how."""
    for seed in range(count):
        generator, damage = random.Random(seed), DAMAGES[seed % len(DAMAGES)]
        shutil.copytree(sound, place)
        path = generator.choice(sorted((place / part).iterdir()))
        damage(path, generator)
        yield f"{damage.__name__} of {path.name}, seed {seed}"
        shutil.rmtree(place)
