"""What can go wrong with a pipeline's input, with a stable code for each case."""

from __future__ import annotations

from holdfast.model.errors import CallerError


class RecordsNotFound(CallerError):
    """A file, directory or pattern that leads to no file."""

    code = "records_not_found"


class BadRecords(CallerError):
    """Files that hold something else than the records that were asked for."""

    code = "bad_records"


class BadPipelineSetting(CallerError):
    """A setting of a pipeline is unknown, missing or makes no sense."""

    code = "bad_option"
