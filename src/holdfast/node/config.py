"""The settings of a broker: what there is, what it defaults to, and where a value may come from.

A TOML file is overridden by the environment (`HOLDFAST_<NAME>`), which is overridden by flags. Names are the
same everywhere: `text_dialect` in the file, `HOLDFAST_TEXT_DIALECT`, `--text-dialect`.
"""

from __future__ import annotations

import difflib
import ipaddress
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_type_hints

import msgspec
from msgspec import Meta

from holdfast.backends.cluster.sync_policy import parse_sync_policy
from holdfast.backends.plain.settings import PlainSettings
from holdfast.backends.postgres import address
from holdfast.broker import callback_addresses
from holdfast.broker.callback_addresses import CallbackPolicy
from holdfast.consensus.partner import PairSettings
from holdfast.consensus.timing import DEFAULT_ELECTIONS, ElectionSettings, election_timeout_ms
from holdfast.model import limits
from holdfast.model.errors import BadCursorName, BadValue, ConfigError
from holdfast.model.names import NODE_NAME, cursor_name
from holdfast.model.topics import TopicConfig
from holdfast.model.waiting import RetentionWait
from holdfast.node.environment import PREFIX, settings_in
from holdfast.processors.spec import ProcessorSettings, ProcessorSpec

_PORT_MAX = 65535
_PAIR_HEARTBEAT_MS: Final = 1_000


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every setting, with its default and what it is for."""

    data: Annotated[str, Meta(description="the data directory")] = "holdfast-data"
    node: Annotated[str, Meta(description="the name this broker goes by, kept in a new data directory")] = "n1"
    store: Annotated[
        str | None,
        Meta(
            description="where messages live: postgresql://USER:PASSWORD@HOST/DATABASE, or postgres for one that the "
            "broker starts itself; absent: the data directory"
        ),
    ] = None
    store_timeout_ms: Annotated[
        int, Meta(ge=100, description="how long the database may take for an answer before it counts as away")
    ] = 5_000
    spill: Annotated[
        bool | None,
        Meta(
            description="keep messages on this broker's disk while the store cannot take them; absent: yes with a "
            "PostgreSQL as the store, else no"
        ),
    ] = None
    spill_dir: Annotated[
        str | None, Meta(description="where the spill keeps them; absent: spill under the data directory")
    ] = None
    spill_flush_ms: Annotated[
        int, Meta(ge=1, description="how often the spill looks whether the store is back, and writes what may be lost")
    ] = 100
    spill_max_batch: Annotated[
        int,
        Meta(ge=1, le=limits.MESSAGES_PER_BATCH_MAX, description="messages of one batch that the spill stores again"),
    ] = 100
    spill_events_per_file: Annotated[
        int, Meta(ge=1, description="messages in a file of the spill; those of one request are never torn apart")
    ] = 10_000
    spill_retry_interval_s: Annotated[
        float,
        Meta(
            gt=0,
            description="how often the store is asked again for topics and messages that it refused",
        ),
    ] = 5
    spill_startup_recovery_timeout_s: Annotated[
        float,
        Meta(ge=0, description="how long after a start spilled messages are stored without leaving room for new ones"),
    ] = 3600
    spill_deadline_ms_min: Annotated[
        int, Meta(ge=1, description="a store that takes no longer than this for a push is never called too slow")
    ] = 200
    spill_deadline_ms_max: Annotated[
        int,
        Meta(
            ge=1, description="a push that takes longer than this goes to the spill, however slow the store usually is"
        ),
    ] = 2_000
    spill_free_bytes_min: Annotated[
        int, Meta(ge=0, description="room that the spill leaves on its disk; four times as much gives a warning")
    ] = 64 * limits.MIB
    text: Annotated[str, Meta(description="HOST:PORT of the text protocol; port 0 picks a free one")] = "127.0.0.1:8080"
    http: Annotated[str, Meta(description="HOST:PORT of the HTTP interface; port 0 picks a free one")] = (
        "127.0.0.1:8090"
    )
    queen: Annotated[
        str | None,
        Meta(description="HOST:PORT where HTTP is served too, such as 127.0.0.1:6632, where Queen's clients look"),
    ] = None
    peer: Annotated[
        str | None, Meta(description="HOST:PORT where the other nodes of the cluster reach this one; absent: none do")
    ] = None
    peers: Annotated[
        list[str], Meta(description="all nodes of the cluster as NODE=HOST:PORT, this one included; empty: it is alone")
    ] = msgspec.field(default_factory=list)
    join: Annotated[
        str | None,
        Meta(description="HOST:PORT where any node of a cluster listens for peers: this one asks there to be let in"),
    ] = None
    pair: Annotated[
        Literal["primary", "backup"] | None,
        Meta(
            description="this node and the other one in peers serve without a majority; what it is at its first start"
        ),
    ] = None
    plain_partner: Annotated[
        str | None,
        Meta(description="of a pair: HOST:PORT of the text protocol of the other one, which may be any broker"),
    ] = None
    heartbeat_ms: Annotated[
        Annotated[int, Meta(ge=100, le=60_000)] | None,
        Meta(description="how often nodes say that they are there; absent: every 100 ms, in a pair every 1,000 ms"),
    ] = None
    election_timeout_ms: Annotated[
        str | None,
        Meta(
            description="MIN:MAX milliseconds without a leader before this node stands for election, drawn anew each "
            "time, or one number for exactly that long; absent: 5 to 10 heartbeats"
        ),
    ] = None
    initial_leader: Annotated[
        str | None, Meta(description="the node that leads a new cluster first, if it is there; absent: any")
    ] = None
    shrink_after_ms: Annotated[
        Annotated[int, Meta(ge=2_000, le=86_400_000)] | None,
        Meta(
            description="how long a node of a cluster is silent before the others go on without its vote, down to the "
            "last one; absent: a majority of the nodes is always needed"
        ),
    ] = None
    misses: Annotated[
        int, Meta(ge=1, description="of a pair: so many heartbeats missed, and the other one is gone")
    ] = 3
    require_backup: Annotated[
        bool, Meta(description="of a pair: refuse to publish rather than store a message on one node only")
    ] = False
    text_dialect: Annotated[
        Literal["standard", "ack"],
        Meta(description="standard, or ack, which answers publishes with ACK and delivers bare payloads"),
    ] = "standard"
    sync: Annotated[
        str, Meta(description="when a message is acknowledged: group (after the disk has it), interval:MS or none")
    ] = "group"
    auto_create: Annotated[bool, Meta(description="create a topic when it is first used")] = True
    retention_ms: Annotated[int | None, Meta(description="how long new topics keep messages; absent: for ever")] = None
    retention_bytes: Annotated[
        int | None, Meta(description="how much new topics keep in each partition; absent: everything")
    ] = None
    retention_waits_for: Annotated[
        list[str],
        Meta(description="readers, by their cursors, that retention waits for in topics that they read; empty: nobody"),
    ] = msgspec.field(default_factory=list)
    retention_waits_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=limits.RETENTION_WAITS_MS_MAX,
            description="how much longer than else a message is kept for a reader that is waited for",
        ),
    ] = limits.RETENTION_WAITS_MS
    retention_check_ms: Annotated[int, Meta(ge=10, description="how often retention looks for what to delete")] = 30_000
    segment_bytes: Annotated[
        int, Meta(ge=4096, description="size at which a segment file is sealed and the next one begun")
    ] = limits.SEGMENT_BYTES_DEFAULT
    message_bytes_max: Annotated[
        int, Meta(ge=1, le=limits.MESSAGE_BYTES_MAX_SETTABLE, description="the largest message that is taken")
    ] = limits.MESSAGE_BYTES_MAX
    http_body_bytes_max: Annotated[
        int, Meta(ge=1024, le=limits.GIB, description="the largest HTTP request body that is taken")
    ] = limits.HTTP_BODY_BYTES_MAX
    http_host_names: Annotated[
        list[str], Meta(description="names besides its address under which browsers may reach the HTTP interface")
    ] = msgspec.field(default_factory=list)
    connections_max: Annotated[
        int, Meta(ge=1, description="text connections, and as many HTTP connections, served at once")
    ] = limits.CONNECTIONS_MAX
    half_line_timeout_ms: Annotated[
        int, Meta(ge=10, description="how long a text client may leave a line unfinished")
    ] = int(limits.TEXT_HALF_LINE_TIMEOUT_S * 1000)
    callback_networks: Annotated[
        list[str],
        Meta(
            description="where callbacks may go: networks as 10.0.0.0/8, public for all addresses of the internet, and "
            "local for this machine, as long as the broker listens on it only"
        ),
    ] = msgspec.field(default_factory=lambda: [callback_addresses.PUBLIC, callback_addresses.LOCAL])
    callback_port_min: Annotated[int, Meta(ge=1, le=65535, description="the lowest port that callbacks may go to")] = (
        limits.CALLBACK_PORT_MIN
    )
    callback_ack_timeout_ms: Annotated[
        int,
        Meta(ge=100, description="how long a receiver may leave messages unacknowledged before they are sent again"),
    ] = limits.CALLBACK_ACK_TIMEOUT_MS
    callback_acks: Annotated[
        bool, Meta(description="tell receivers with SUBACK and UNSUBACK that they were subscribed or removed")
    ] = False
    dedupe_ids_max: Annotated[int, Meta(ge=1, description="how many message ids a partition remembers")] = (
        limits.DEDUPE_IDS_MAX
    )
    dedupe_age_ms_max: Annotated[int, Meta(ge=1, description="how long a partition remembers a message id")] = (
        limits.DEDUPE_AGE_MS_MAX
    )
    transaction_expiry_ms: Annotated[
        int, Meta(ge=100, description="how long staged messages can be committed; then they are dropped")
    ] = limits.TRANSACTION_EXPIRY_MS
    transaction_staged_bytes_max: Annotated[
        int, Meta(ge=1, description="staged bytes in one of eight internal partitions before stages are refused")
    ] = limits.STAGED_BYTES_MAX
    compute_ms: Annotated[
        str | None, Meta(description="MIN:MAX milliseconds of pseudo computing for each message before delivery")
    ] = None
    processor: Annotated[
        str | None, Meta(description="MODULE:FUNCTION that each message passes through before delivery")
    ] = None
    processor_topics: Annotated[list[str], Meta(description="topics that have the processor; empty: all of them")] = (
        msgspec.field(default_factory=list)
    )
    processor_workers: Annotated[
        int | None, Meta(description="worker processes; absent: one for each core, at least two")
    ] = None
    processor_attempts: Annotated[
        int, Meta(description="how often a message is tried before it goes to the dead letters")
    ] = limits.PROCESSOR_ATTEMPTS_MAX
    processor_timeout_ms: Annotated[
        int, Meta(description="how long one attempt may take before its worker is replaced")
    ] = limits.PROCESSOR_TIMEOUT_MS
    processor_inflight: Annotated[
        int, Meta(description="messages of one partition that may be in the workers at once")
    ] = limits.PROCESSOR_INFLIGHT_PER_PARTITION
    drain_ms: Annotated[int, Meta(ge=0, description="how long a stop waits for what was received to be answered")] = (
        10_000
    )
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="the least important log line to write")
    ] = "info"
    log_format: Annotated[Literal["text", "json"], Meta(description="log lines for people or for machines")] = "text"

    def checked(self) -> Config:
        """Itself, or `ConfigError` for what types alone cannot say."""
        parse_address("text", self.text)
        parse_address("http", self.http)
        if self.queen is not None:
            parse_address("queen", self.queen)
        parse_sync_policy(self.sync)
        if not NODE_NAME.match(self.node):
            raise ConfigError(f"node is {self.node!a}; a name has 1 to 64 letters, digits, '_' and '-'")
        if self.store is not None:
            address.check(self.store)
            if self.peers or self.peer is not None or self.pair is not None or self.join is not None:
                raise ConfigError("a broker with a store of its own has no peers; leave out either store or peers")
        if self.spill_deadline_ms_min > self.spill_deadline_ms_max:
            raise ConfigError(
                f"spill_deadline_ms_min is {self.spill_deadline_ms_min}, which is more than spill_deadline_ms_max, "
                f"{self.spill_deadline_ms_max}"
            )
        if self.peer is not None:
            parse_address("peer", self.peer)
        if self.plain_partner is not None:
            self._check_plain(self.plain_partner)
        elif self.pair is not None and len(self.peer_addresses) != 2:
            raise ConfigError(
                f"a pair has two nodes, but peers names {len(self.peer_addresses)}; name both, or leave pair out"
            )
        if self.join is not None:
            self._check_join(self.join)
        self._check_elections()
        if (self.peers or self.join is not None) and self.pair is None and self.sync != "group":
            raise ConfigError(
                f"sync is {self.sync}, but a node of a cluster votes for what its disk has: with peers it must be group"
            )
        if self.peer_addresses and (self.peer is None or self.node not in self.peer_addresses):
            raise ConfigError(
                f"peers must name this node too, and peer the address it listens on: peer = HOST:PORT, and "
                f"{self.node}=HOST:PORT among peers"
            )
        if self.processor_spec is not None:
            self.processor_settings.checked(self.processor_spec)
        try:
            self.default_topic.checked()
            self.callback_policy  # noqa: B018 - raises
            self.retention_wait  # noqa: B018 - raises
        except BadValue as error:
            raise ConfigError(error.message) from error
        return self

    def _check_elections(self) -> None:
        if self.store is not None and self.heartbeat_ms is not None:
            raise ConfigError("heartbeat_ms is given, but a broker with a store of its own has no peers; leave it out")
        if self.store is not None or self.pair is not None:
            only_with_elections = ("election_timeout_ms", "initial_leader", "shrink_after_ms")
            if idle := [name for name in only_with_elections if getattr(self, name) is not None]:
                kind = "one of a pair" if self.pair is not None else "a broker with a store of its own"
                raise ConfigError(f"{idle[0]} is given, but {kind} holds no elections; leave it out")
        may_have_peers = self.peers or self.peer is not None or self.join is not None
        if self.shrink_after_ms is not None and not may_have_peers:
            raise ConfigError(
                "shrink_after_ms is given, but a broker without peers has nobody to go on without; leave it out"
            )
        leader = self.initial_leader
        if leader is not None and leader not in (self.peer_addresses or (self.node,)):
            names = ", ".join(sorted(self.peer_addresses) or [self.node])
            raise ConfigError(f"initial_leader is {leader!a}, which is not a node of this cluster; they are {names}")
        self.election_settings  # noqa: B018 - raises

    @property
    def election_settings(self) -> ElectionSettings:
        """Raises `ConfigError`."""
        heartbeat_ms = DEFAULT_ELECTIONS.heartbeat_ms if self.heartbeat_ms is None else self.heartbeat_ms
        if self.pair is not None:
            return DEFAULT_ELECTIONS
        try:
            timeout_ms = election_timeout_ms(self.election_timeout_ms, heartbeat_ms)
        except ValueError as error:
            raise ConfigError(f"election_timeout_ms is {self.election_timeout_ms!a}; {error}") from error
        return ElectionSettings(heartbeat_ms, *timeout_ms, self.initial_leader, self.shrink_after_ms)

    def _check_join(self, address: str) -> None:
        parse_address("join", address)
        if self.pair is not None:
            raise ConfigError("one of a pair joins no cluster; leave out either pair or join")
        if self.peer is None:
            raise ConfigError("a node that joins a cluster needs an address for the others: give peer = HOST:PORT too")

    def _check_plain(self, partner: str) -> None:
        parse_address("plain_partner", partner)
        if self.pair is None or self.peers or self.peer is not None:
            raise ConfigError("plain_partner goes with pair = primary or backup, and without peer and peers")
        if self.sync not in ("group", "none"):
            raise ConfigError(f"sync is {self.sync}, but with plain_partner it is group or none")
        if self.spills or self.store is not None:
            raise ConfigError("one with a plain_partner keeps its messages itself; leave store and spill out")

    def shown(self) -> Config:
        """The same for people: without what is secret."""
        if self.store is None:
            return self
        return msgspec.structs.replace(self, store=address.shown(self.store))

    @property
    def spills(self) -> bool:
        return self.store is not None if self.spill is None else self.spill

    @property
    def spill_directory(self) -> Path:
        return Path(self.data) / "spill" if self.spill_dir is None else Path(self.spill_dir)

    @property
    def peer_addresses(self) -> dict[str, str]:
        """All nodes of the cluster by name. Raises `ConfigError`."""
        addresses: dict[str, str] = {}
        for text in self.peers:
            node, equals, address = text.partition("=")
            if not equals or not NODE_NAME.match(node) or node in addresses:
                raise ConfigError(f"peers has {text!a}; write NODE=HOST:PORT, each node once")
            parse_address("peers", address)
            addresses[node] = address
        return addresses

    @property
    def pair_settings(self) -> PairSettings | None:
        if self.pair is None:
            return None
        heartbeat_ms = _PAIR_HEARTBEAT_MS if self.heartbeat_ms is None else self.heartbeat_ms
        return PairSettings(heartbeat_ms / 1000, self.misses, self.require_backup, self.pair == "primary")

    @property
    def plain_settings(self) -> PlainSettings | None:
        """Of one whose partner is reached over the text protocol."""
        pair = self.pair_settings
        if self.plain_partner is None or self.pair is None or pair is None:
            return None
        there = parse_address("plain_partner", self.plain_partner)
        return PlainSettings(self.plain_partner, there, self.pair, self.text_dialect == "ack", pair)

    @property
    def default_topic(self) -> TopicConfig:
        return TopicConfig(retention_ms=self.retention_ms, retention_bytes=self.retention_bytes)

    @property
    def retention_wait(self) -> RetentionWait:
        """Raises `ConfigError`."""
        try:
            return RetentionWait(tuple(map(cursor_name, self.retention_waits_for)), self.retention_waits_ms)
        except BadCursorName as error:
            raise ConfigError(f"retention_waits_for: {error.message}") from error

    @property
    def callback_policy(self) -> CallbackPolicy:
        listens = [parse_address("", each)[0] for each in (self.text, self.http, self.queen, self.peer) if each]
        # Who gives it other names has somebody in front of it that passes on what others ask for.
        is_local = all(map(_is_loopback, listens)) and not self.http_host_names
        return CallbackPolicy(self.callback_networks, port_min=self.callback_port_min, is_local=is_local)

    @property
    def processor_spec(self) -> ProcessorSpec | None:
        if self.compute_ms is None and self.processor is None:
            return None
        return ProcessorSpec.parse(compute_ms=self.compute_ms, function=self.processor)

    @property
    def processor_settings(self) -> ProcessorSettings:
        return ProcessorSettings(
            workers=self.processor_workers,
            attempts_max=self.processor_attempts,
            timeout_ms=self.processor_timeout_ms,
            inflight_per_partition=self.processor_inflight,
        )


SETTINGS = Config.__struct_fields__
# Alike on all nodes of a cluster, and without an address: `holdfast up` takes them for all of its nodes.
OF_CLUSTERS: Final = ("heartbeat_ms", "election_timeout_ms", "initial_leader", "shrink_after_ms")
_ONLY_IN_A_PAIR: Final = ("misses", "require_backup")
# As Queen MQ names them; a broker that takes its place finds its settings in the environment.
ALIASES: Final = {
    "FILE_BUFFER_DIR": "spill_dir",
    "FILE_BUFFER_FLUSH_MS": "spill_flush_ms",
    "FILE_BUFFER_MAX_BATCH": "spill_max_batch",
    "FILE_BUFFER_EVENTS_PER_FILE": "spill_events_per_file",
    "FILE_BUFFER_RETRY_INTERVAL": "spill_retry_interval_s",
    "FILE_BUFFER_STARTUP_RECOVERY_TIMEOUT": "spill_startup_recovery_timeout_s",
}


def load(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]) -> Config:
    """The settings from all three sources. Raises `ConfigError` that names the source of what is wrong."""
    values: dict[str, object] = {}
    sources = [
        (f"in {file}", _from_file(file) if file is not None else {}),
        ("in the environment", _from_environment(environment)),
        ("on the command line", {name: value for name, value in flags.items() if value is not None}),
    ]
    for where, given in sources:
        for name, value in given.items():
            if name not in SETTINGS:
                close = difflib.get_close_matches(name, SETTINGS, n=1)
                hint = f"; did you mean {close[0]}?" if close else "; see docs/configuration.md"
                raise ConfigError(f"{where}: there is no setting {name}{hint}")
            values[name] = _checked_value(where, name, value)
    try:
        config = msgspec.convert(values, Config)
        if config.pair is None and (idle := [name for name in _ONLY_IN_A_PAIR if name in values]):
            raise ConfigError(f"{idle[0]} is a setting of a pair; leave it out, or give pair = primary or backup too")
        return config.checked()
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from error


def load_for_cluster(
    nodes: Sequence[str], environment: Mapping[str, str], flags: Mapping[str, object]
) -> dict[str, Any]:
    """Those of `OF_CLUSTERS` that are given for a cluster of these nodes. Raises `ConfigError` as `load` does.

    Of the environment only these are read: the others may be those of a broker beside the cluster.
    """
    # Addresses are checked elsewhere; these only tell which nodes there are.
    places = {"node": nodes[0], "peer": "127.0.0.1:0", "peers": [f"{node}=127.0.0.1:0" for node in nodes]}
    given = _from_environment(environment)
    wanted = {PREFIX + name.upper(): value for name, value in given.items() if name in OF_CLUSTERS}
    config = load(None, wanted, {**flags, **places})
    return {name: value for name in OF_CLUSTERS if (value := getattr(config, name)) is not None}


def description(name: str) -> str:
    """What a setting is for."""
    hint = get_type_hints(Config, include_extras=True)[name]
    return next(str(meta.description) for meta in hint.__metadata__ if isinstance(meta, Meta))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_address(name: str, text: str) -> tuple[str, int]:
    """`HOST:PORT`, also `[::1]:8080`."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > _PORT_MAX:
        raise ConfigError(f"{name} is {text!a}; write HOST:PORT, such as 127.0.0.1:8080")
    return host, int(port)


def _from_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings in the environment, also under the names of Queen MQ. Raises `ConfigError`."""
    aliased = {name: environment[alias] for alias, name in ALIASES.items() if alias in environment}
    return aliased | settings_in(environment, SETTINGS)


def _checked_value(where: str, name: str, value: object) -> object:
    """Convert one value to its setting's type; text, as the environment has it, is understood for any type."""
    hint = get_type_hints(Config, include_extras=True)[name]
    try:
        if isinstance(value, str) and get_type_hints(Config)[name] == list[str]:
            value = [part.strip() for part in value.split(",") if part.strip()]
        return msgspec.convert(value, hint, strict=not isinstance(value, str))
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {name} is {value!a}: {error}; it is {description(name)}") from error
