"""Which processor a topic has and how patient the stage is with it: the settings, checked."""

from __future__ import annotations

import os
import re
from typing import Final

import msgspec

from holdfast.broker.processing import COMMIT_MESSAGES_MAX
from holdfast.model.errors import ConfigError
from holdfast.model.limits import PROCESSOR_ATTEMPTS_MAX, PROCESSOR_INFLIGHT_PER_PARTITION, PROCESSOR_TIMEOUT_MS

# Two, so that one message that hangs does not stop everything else.
WORKERS_MIN_DEFAULT: Final = 2
# A worker is a whole Python process of some 20 MB and more.
WORKERS_MAX: Final = 256
# Beyond an hour a message is not late but lost.
TIMEOUT_MS_MAX: Final = 3_600_000
ATTEMPTS_MAX: Final = 100

_RANGE = re.compile(r"(\d{1,7})(?::(\d{1,7}))?\Z")
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*\Z")


class ProcessorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Either pseudo computing for so many milliseconds or somebody's function, never both."""

    compute_ms: tuple[int, int] | None = None
    function: str | None = None
    seed: int | None = None

    @classmethod
    def parse(cls, *, compute_ms: str | None = None, function: str | None = None) -> ProcessorSpec:
        """From the settings as a person writes them; `ConfigError` says what would be right."""
        if (compute_ms is None) == (function is None):
            raise ConfigError("a processor is either --compute-ms MIN:MAX or --processor MODULE:FUNCTION, not both")
        if compute_ms is not None:
            return cls(compute_ms=parse_compute_ms(compute_ms))
        assert function is not None
        return cls(function=parse_function(function))

    def arguments(self, worker_number: int) -> list[str]:
        """The command line of one worker. Each worker rolls its own dice, also with a fixed seed."""
        if self.function is not None:
            return ["--function", self.function]
        assert self.compute_ms is not None
        arguments = ["--compute-ms", f"{self.compute_ms[0]}:{self.compute_ms[1]}"]
        return arguments if self.seed is None else [*arguments, "--seed", str(self.seed + worker_number)]

    def __str__(self) -> str:
        if self.function is not None:
            return self.function
        assert self.compute_ms is not None
        return f"compute {self.compute_ms[0]}:{self.compute_ms[1]} ms"


def parse_compute_ms(text: str) -> tuple[int, int]:
    """`50:150`, or `100` for always the same time."""
    match = _RANGE.match(text.strip())
    if match is None:
        raise ConfigError(f"compute-ms must be MIN:MAX in milliseconds, such as 50:150, not {text[:60]!r}")
    low, high = int(match[1]), int(match[2] or match[1])
    if low > high:
        raise ConfigError(f"compute-ms must not begin above its end: {low}:{high}; did you mean {high}:{low}?")
    return low, high


def parse_function(text: str) -> str:
    """`package.module:function`; whether it can be imported, a worker finds out."""
    if not _FUNCTION.match(text):
        raise ConfigError(f"processor must be MODULE:FUNCTION, such as shop.pricing:add_tax, not {text[:120]!r}")
    return text


class ProcessorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How many, how long, how often. `workers=None` means one for each processor core, at least two."""

    workers: int | None = None
    attempts_max: int = PROCESSOR_ATTEMPTS_MAX
    timeout_ms: int = PROCESSOR_TIMEOUT_MS
    inflight_per_partition: int = PROCESSOR_INFLIGHT_PER_PARTITION

    def checked(self, spec: ProcessorSpec) -> ProcessorSettings:
        """Itself, or `ConfigError` where a number is out of range or contradicts the processor."""
        _within("processor-workers", self.worker_count, WORKERS_MAX)
        _within("processor-attempts", self.attempts_max, ATTEMPTS_MAX)
        _within("processor-timeout-ms", self.timeout_ms, TIMEOUT_MS_MAX)
        _within("processor-inflight", self.inflight_per_partition, COMMIT_MESSAGES_MAX)
        if spec.compute_ms is not None and spec.compute_ms[1] >= self.timeout_ms:
            raise ConfigError(
                f"compute-ms goes up to {spec.compute_ms[1]}, but processor-timeout-ms is {self.timeout_ms}:"
                " every such message would end as a dead letter"
            )
        return self

    @property
    def worker_count(self) -> int:
        if self.workers is not None:
            return self.workers
        return min(WORKERS_MAX, max(WORKERS_MIN_DEFAULT, os.cpu_count() or 1))


def _within(name: str, value: int, value_max: int) -> None:
    if not 1 <= value <= value_max:
        raise ConfigError(f"{name} must be 1 to {value_max}, not {value}")
