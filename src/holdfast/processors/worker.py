"""A worker process: loads one processor, then answers message after message until its stdin closes.

    python -m holdfast.processors.worker --compute-ms 50:150
    python -m holdfast.processors.worker --function package.module:function

The frames are described in `protocol`. The streams of the protocol are moved away from descriptors 0 and
1 before the function is imported: what it prints goes to stderr, and what it reads from stdin is empty.

It ends when the broker does, however that went, also in the middle of a function that never returns.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import PurePath
from typing import BinaryIO, Final, NoReturn

from holdfast.broker.processing import short_error
from holdfast.model.errors import ConfigError
from holdfast.processors import protocol
from holdfast.processors.compute import Compute
from holdfast.processors.spec import parse_compute_ms, parse_function

# Workers take all cores there are; when those are short, the broker's acknowledgements come first.
NICENESS: Final = 5

Function = Callable[[protocol.ProcessorMessage], object]


def main() -> NoReturn:
    arguments = _arguments()
    requests, replies = _take_streams()
    _outlive_nobody(requests)
    _step_back()
    status = 1
    try:
        function = load(arguments.function) if arguments.function else _compute(arguments)
        _send(replies, protocol.Ready(protocol.PROTOCOL_VERSION))
        serve(function, requests, replies)
        status = 0
    except ConfigError as error:
        _send(replies, protocol.Refused(short_error(error.message)))
    except BrokenPipeError:
        pass  # the broker is gone and needs no answer
    except Exception:  # noqa: BLE001 - a bug of ours: the broker sees a death, the reason is on stderr
        traceback.print_exc()
    # At once and without exit handlers: a thread the function left behind must not keep the process.
    os._exit(status)


def serve(function: Function, requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer until the requests end."""
    while len(prefix := requests.read(protocol.LENGTH.size)) == protocol.LENGTH.size:
        length = protocol.body_length(prefix)
        body = requests.read(length)
        if len(body) < length:
            return
        _send(replies, answer(function, protocol.decode_message(body)))


def answer(function: Function, message: protocol.ProcessorMessage) -> protocol.Reply:
    """Run the function on one message; whatever it does short of ending the process is a reply."""
    try:
        value = _value(function(message))
    except BaseException as error:  # noqa: BLE001 - also SystemExit: the function must not end the worker
        return protocol.Failed(describe(error))
    if value is None:
        return protocol.Drop()
    if len(value) > protocol.VALUE_BYTES_MAX:
        return protocol.Failed(
            f"the processor returned {len(value)} bytes; at most {protocol.VALUE_BYTES_MAX} are allowed"
        )
    return protocol.Value(value)


def _value(returned: object) -> bytes | None:
    if returned is None:
        return None
    if isinstance(returned, str):
        return returned.encode()
    if isinstance(returned, bytes | bytearray | memoryview):
        return bytes(returned)  # the protocol takes no subclasses of bytes, such as `numpy.bytes_`
    raise TypeError(f"the processor returned {type(returned).__name__}; it must return bytes, str or None")


def load(spec: str) -> Function:
    """Import `package.module:function`; `ConfigError` says which part of it is wrong."""
    module_name, _, path = parse_function(spec).partition(":")
    try:
        target: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise ConfigError(
                f"processor {spec}: there is no module {error.name!r};"
                " it is looked for in the directory the broker was started in and on PYTHONPATH"
            ) from error
        raise ConfigError(f"processor {spec}: importing {module_name} failed: {describe(error)}") from error
    except BaseException as error:  # also SystemExit: a module that ends the process cannot be used
        raise ConfigError(f"processor {spec}: importing {module_name} failed: {describe(error)}") from error
    for name in path.split("."):
        if not hasattr(target, name):
            raise ConfigError(f"processor {spec}: {module_name} has no {path!r}")
        target = getattr(target, name)
    if not callable(target):
        raise ConfigError(f"processor {spec} is a {type(target).__name__}, not a function")
    if inspect.iscoroutinefunction(target) or inspect.isgeneratorfunction(target) or inspect.isclass(target):
        raise ConfigError(f"processor {spec} must be a plain function that returns bytes, str or None")
    try:
        inspect.signature(target).bind(None)
    except TypeError as error:
        raise ConfigError(f"processor {spec} must take one argument, the message: {error}") from error
    except ValueError:
        pass  # a function written in C may have no signature to look at
    return target


def describe(error: BaseException) -> str:
    """The error on one line, with the place in the function's own code where it was raised.

    Never fails: the error's type is the user's code as well, and formatting it may raise.
    """
    try:
        return short_error(_description(error))
    except BaseException:  # noqa: BLE001 - also SystemExit, from a property of the error
        return short_error(f"an error of the type {type(error).__name__}, which cannot be described")


def _description(error: BaseException) -> str:
    text = short_error("".join(traceback.format_exception_only(error)))
    # The first frame is the caller in this file; importlib's own frames say nothing to its reader.
    places = [frame for frame in traceback.extract_tb(error.__traceback__)[1:] if not frame.filename.startswith("<")]
    places = [frame for frame in places if frame.filename not in (__file__, importlib.__file__)]
    return f"{text} ({PurePath(places[-1].filename).name}:{places[-1].lineno})" if places else text


def _send(replies: BinaryIO, body: protocol.Greeting | protocol.Reply) -> None:
    replies.write(protocol.frame(body))
    replies.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="holdfast.processors.worker", description="Started by the broker.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--compute-ms", metavar="MIN:MAX")
    which.add_argument("--function", metavar="MODULE:FUNCTION")
    parser.add_argument("--seed", type=int)
    return parser.parse_args()


def _compute(arguments: argparse.Namespace) -> Function:
    ms_min, ms_max = parse_compute_ms(arguments.compute_ms)
    return Compute(ms_min, ms_max, arguments.seed)


def _take_streams() -> tuple[BinaryIO, BinaryIO]:
    """Keep stdin and stdout for the protocol, and give the function empty ones it cannot break it with."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return requests, replies


def _outlive_nobody(requests: BinaryIO) -> None:
    """End with the broker however it ends: a thread waits for the other end of stdin to close."""

    def watch() -> None:
        hung_up = select.poll()
        hung_up.register(requests.fileno(), 0)
        hung_up.poll()
        os._exit(0)

    threading.Thread(target=watch, name="holdfast-parent-watch", daemon=True).start()


def _step_back() -> None:
    """Leave signals and processor time to the broker.

    An interrupt at the terminal, or a signal to all processes of a service, is for the broker, which
    then finishes what the worker is doing. A process group does that, a session would not do: Linux
    groups processes by session before it looks at niceness, which then means nothing to the broker.
    """
    os.setpgid(0, 0)
    os.nice(NICENESS)
    for number in (signal.SIGINT, signal.SIGTERM):
        # A handler, not SIG_IGN: programs the function starts must not inherit the deafness.
        signal.signal(number, lambda *_: None)


if __name__ == "__main__":
    main()
