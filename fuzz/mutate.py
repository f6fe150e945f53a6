"""Turning good bytes into nearly good ones."""

from __future__ import annotations

from random import Random

_INTERESTING = (
    b"\0",
    b"\xff",
    b"|",
    b"\n",
    b"\r\n",
    b"\x7f\xff\xff\xff",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"HF",
    # A digit to `str.isdigit` and none to `int`.
    "²".encode(),
    b"9" * 20,
)


def mutated(examples: list[bytes], dice: Random) -> bytes:
    """One of the examples with a few things wrong."""
    data = bytearray(dice.choice(examples))
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(len(data) + 1)
        change = dice.randrange(6)
        if change == 0 and data:
            data[place % len(data)] ^= 1 << dice.randrange(8)
        elif change == 1:
            data[place:place] = dice.choice(_INTERESTING)
        elif change == 2:
            del data[place : place + dice.randint(1, 16)]
        elif change == 3:
            data[place:place] = data[place : place + dice.randint(1, 64)]
        elif change == 4:
            data[place : place + dice.randint(0, 8)] = dice.randbytes(dice.randint(0, 8))
        else:
            other = dice.choice(examples)
            data[place:] = other[dice.randrange(len(other)) :]
    return bytes(data)
