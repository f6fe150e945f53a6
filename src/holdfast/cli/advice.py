"""What each finding of `holdfast doctor` means for a person, and what to do about it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.storage.doctor import Kind

# Stands for the directory of the spill in the commands below.
_SPILL: Final = "DIRECTORY"


class Advice(NamedTuple):
    meaning: str
    action: str

    def action_for(self, spill: Path) -> str:
        """With commands that can be typed as they are."""
        return self.action.replace(_SPILL, shlex.quote(str(spill)))


_COPY: Final = "Restore the file from a copy if there is one. The broker serves everything around it."

ADVICE: Final = {
    Kind.TORN_TAIL: Advice(
        "A write that a crash interrupted, behind everything that is known to have been synced. It was not "
        "acknowledged.",
        "Nothing: the broker cuts it off at its next start, `--repair` does it now. If no crash explains it, copy the "
        "file before either: damage to the very last batches can look the same.",
    ),
    Kind.BAD_INDEX: Advice(
        "An index speeds up searching and tells how far its segment was synced; no message is in it.",
        "`--repair` rebuilds it from its segment.",
    ),
    Kind.DAMAGED_BATCHES: Advice("Acknowledged messages changed on the disk; they are not served.", _COPY),
    Kind.MISSING_OFFSETS: Advice("Acknowledged messages of this segment are gone.", _COPY),
    Kind.EARLY_SEGMENT: Advice(
        "A crash came before the segment in front of it was synced. Nothing in this one was acknowledged.",
        "Nothing: the broker deletes it at its next start.",
    ),
    Kind.OVERLAPPING_SEGMENT: Advice(
        "Two segments claim the same offsets; one of them does not belong here.",
        "Find out where the files come from and restore this partition from a copy.",
    ),
    Kind.PARTITION_MISSING: Advice(
        "The messages of this partition are gone; the broker would begin it anew at offset 0.",
        "Restore the directory from a copy before the next start, or delete the topic.",
    ),
    Kind.TOPIC_NOT_IN_STATE: Advice(
        "state.sqlite does not know this topic, its messages are there.",
        "Nothing: the broker takes it up again at its next start. Its cursors may be lost.",
    ),
    Kind.CURSOR_BEYOND_END: Advice(
        "A reader had acknowledged messages that are no longer in the log.",
        "Start the broker and move the reader with `holdfast cursors seek`.",
    ),
    Kind.STATE_DAMAGED: Advice(
        "Topics and cursors are kept in this file; messages are not.",
        "Restore it from a copy, or start the broker: it sets the file aside, finds the topics again and keeps "
        "the cursors that can still be read.",
    ),
    Kind.STATE_MISSING: Advice(
        "Topics and cursors were kept in this file; messages were not.",
        "Restore it from a copy, or start the broker: it finds the topics again, cursors are lost.",
    ),
    Kind.IDENTITY_DAMAGED: Advice(
        "The broker does not start without a sound holdfast.json; messages are not in it.",
        "Restore it from a copy, or move it away: the next start writes a new one with the name in --node.",
    ),
    Kind.IDENTITY_MISSING: Advice(
        "The broker takes the directory for a new one; messages stay as they are.",
        "Nothing: the next start writes it with the name in --node.",
    ),
    Kind.TOPIC_FILE_BAD: Advice(
        "It is only needed when state.sqlite is lost.",
        "Restore it from a copy if there is one; the topic works without it.",
    ),
    Kind.IDS_DAMAGED: Advice(
        "Retention deleted these messages; one of them that is sent again now is stored again.",
        "Nothing: the broker passes over the file, and replaces it when it deletes more.",
    ),
    Kind.UNREADABLE: Advice(
        "The file could not be read, so nothing is known about it.",
        "Check permissions and the disk (its messages stand in the system's log), then look again.",
    ),
    Kind.STATE_SET_ASIDE: Advice(
        "A broker started with a damaged state.sqlite some time ago.",
        "Delete it once you are sure that no cursor is missing.",
    ),
    Kind.STRAY_FILE: Advice("It takes no part in anything.", "Nothing. It may be deleted while no broker runs."),
    Kind.SPILL_WAITING: Advice(
        "The broker took these messages while their store was away; they are acknowledged and on this disk only.",
        "Start the broker: it stores them when the store is there. Without it, "
        "`holdfast spill replay DIRECTORY` does. Keep the directory until then.",
    ),
    Kind.SPILL_FAILED: Advice(
        "The store refused these messages, or they changed on the disk; they are not stored.",
        "`holdfast spill export DIRECTORY --failed` says why for each. Remove the cause: the broker tries refused "
        "messages again by itself, and `holdfast spill replay DIRECTORY --failed` does so without it. A damaged line "
        "stays there: restore it from a copy of its file if there is one.",
    ),
    Kind.SPILL_DAMAGED: Advice(
        "Lines changed on the disk. They will go to failed/, all others will be stored.",
        "`holdfast spill verify DIRECTORY` names them. Restore the file from a copy, under its own name, if there is "
        "one.",
    ),
    Kind.SPILL_RECOVERING: Advice(
        "A recovery in bulk took these files and did not finish. Their messages are acknowledged, and no broker stores "
        "them.",
        "Run the same `holdfast pipeline recover` again. It goes on where it was cut off.",
    ),
    Kind.SPILL_PROGRESS_DAMAGED: Advice(
        "It said how much of a file of the spill is stored.",
        "Start the broker. It reads its log from the beginning to see what is there, and stores the rest of the file.",
    ),
    Kind.SPILL_ROOM_SCARCE: Advice(
        "The spill leaves this much room on its disk, and refuses publishers with disk_full when it is reached.",
        "Make room on that disk, name another with --spill-dir, or lower spill_free_bytes_min.",
    ),
    Kind.SPILL_NOT_WRITABLE: Advice(
        "The broker does not start with a spill that it cannot write to.",
        "Give the broker's user the right to write there, name another directory with --spill-dir, or go without one "
        "with --no-spill.",
    ),
}
