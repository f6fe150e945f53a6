"""Checking a backup, every byte of it, against its manifest. Nothing is changed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.backup import format as backup_format
from holdfast.backup.chunks import read_whole
from holdfast.backup.format import MANIFEST, PLAN, Manifest, PartitionBackup, StoredFile, TopicBackup
from holdfast.model.errors import BackupDamaged, BackupUnusable


class Finding(msgspec.Struct, frozen=True):
    """What is wrong, and with which file."""

    file: str
    problem: str


class Verified(msgspec.Struct, kw_only=True):
    """What was looked at; sound where nothing was found."""

    directory: str
    cluster: str = ""
    begun_ms: int = 0
    topics: int = 0
    partitions: int = 0
    files: int = 0
    messages: int = 0
    bytes: int = 0
    cursors: int = 0
    subscriptions: int = 0
    writers: int = 0
    # Stretches of partitions that are not restored unless that is asked for.
    aside: int = 0
    # An update was begun and not finished; the backup of before is what was checked.
    has_unfinished_update: bool = False
    # What is wrong with the plan of one, if something is: the backup itself does not need it.
    plan_problem: str | None = None
    findings: list[Finding] = msgspec.field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.findings


def found(directory: Path) -> Manifest:
    """The manifest of a backup. Raises `BackupUnusable` where there is none, `BackupDamaged`."""
    manifest = backup_format.load(directory)
    if manifest is not None:
        return manifest
    if (directory / PLAN).exists():
        raise BackupUnusable(
            f"{directory} is a backup that was not finished; go on with it: holdfast backup create {directory}"
        )
    raise BackupUnusable(f"{directory} is not a backup: it has no {MANIFEST}")


def verify(directory: Path, on_progress: Callable[[int, int], None] = lambda done, total: None) -> Verified:
    """Read everything. Raises `BackupUnusable` for what is no backup."""
    verified = Verified(directory=str(directory))
    try:
        manifest = found(directory)
    except BackupDamaged as error:
        verified.findings.append(Finding(MANIFEST, error.message))
        return verified
    verified.cluster, verified.begun_ms = manifest.cluster, manifest.begun_ms
    verified.topics, verified.cursors, verified.writers = (
        len(manifest.topics),
        len(manifest.cursors),
        len(manifest.writers),
    )
    verified.subscriptions, verified.aside = len(manifest.subscriptions), len(list(manifest.partitions_aside()))
    try:
        planned = backup_format.load(directory, PLAN)
        verified.has_unfinished_update = planned is not None and planned.revision > manifest.revision
    except (BackupDamaged, BackupUnusable) as error:
        verified.plan_problem = error.message
    total = sum(file.bytes for _, _, file in manifest.files())
    for topic, partition in itertools.chain(manifest.partitions(), manifest.partitions_aside()):
        verified.partitions += 1
        _look_at(directory, topic, partition, verified, lambda: on_progress(verified.bytes, total))
    _look_at_cursors(manifest, verified)
    return verified


def _look_at(
    directory: Path, topic: TopicBackup, partition: PartitionBackup, verified: Verified, tell: Callable[[], None]
) -> None:
    position, epoch = partition.first, 0
    name = f"{topic.topic}/{partition.partition}"
    for file in partition.files:
        verified.files += 1
        if file.first != position:
            verified.findings.append(Finding(MANIFEST, f"{name}: offsets {position} to {file.first - 1} are missing"))
        epoch = _look_at_file(directory, topic, partition, file, epoch, verified)
        position = file.end
        tell()
    if position != partition.end:
        problem = f"{name} ends at offset {position} in its files, at {partition.end} in the manifest"
        verified.findings.append(Finding(MANIFEST, problem))


def _look_at_file(
    directory: Path, topic: TopicBackup, partition: PartitionBackup, file: StoredFile, epoch: int, verified: Verified
) -> int:
    verified.bytes += file.bytes
    try:
        there, epoch = read_whole(directory, topic, partition.partition, file.first, epoch, file.bytes)
    except BackupDamaged as error:
        verified.findings.append(Finding(file.file, error.message.removeprefix(f"{file.file}: ")))
        return epoch
    if there.bytes != file.bytes:
        problem = f"it has {there.bytes} bytes, the manifest says {file.bytes}"
    elif there.sha256 != file.sha256:
        problem = "its bytes are not those that were written: the SHA-256 does not match"
    elif there.end != file.end:
        problem = f"it ends at offset {there.end}, the manifest says {file.end}"
    else:
        verified.messages += there.end - there.first
        return epoch
    verified.findings.append(Finding(file.file, problem))
    return epoch


def _look_at_cursors(manifest: Manifest, verified: Verified) -> None:
    ends = {(topic.topic, each.partition): each.end for topic, each in manifest.partitions()}
    for cursor in manifest.cursors:
        for partition, offset in cursor.offsets.items():
            if not 0 <= offset <= ends.get((cursor.topic, partition), -1):
                problem = f"the cursor {cursor.name} of {cursor.topic}/{partition} stands at {offset}, behind the end"
                verified.findings.append(Finding(MANIFEST, problem))
