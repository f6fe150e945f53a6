"""`holdfast pipeline`: what is wrong with settings is told before Spark is started, and flags go before the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.pipelines import frame
from holdfast.pipelines.errors import BadPipelineSetting, from_spark
from tests.cli.program import holdfast

KNOWN = {"sent": list, "out": str}
FILE = """
master = "local[1]"
[conf]
"spark.driver.memory" = "1g"
[audit]
sent = ["a"]
out = "from-file"
[another]
what = "ever"
"""


def test_audit_of_nothing_says_what_to_give() -> None:
    ended = holdfast("pipeline", "audit", "--sent", "a", "b")
    assert ended.code == 1 and "what was received?" in ended.err and "[bad_option]" in ended.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--allow", "everything"), "there are lost, duplicated"),
        (("--conf", "spark.driver.memory"), "write NAME=VALUE"),
        (("--config", "missing.toml"), "does not exist"),
    ],
)
def test_settings_that_make_no_sense_are_told(options: tuple[str, ...], words: str) -> None:
    ended = holdfast("pipeline", "audit", "--sent", "a", "--received", "b", *options)
    assert ended.code in (1, 2) and words in ended.err and "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("orders",), "Give the archive's directory with --to"),
        (("--to", "there"), "which topics?"),
        (("orders", "--pattern", "o.*", "--to", "there"), "and not both"),
        (("orders", "--to", "there", "--interval", "soon"), "'soon' is no duration"),
        (("orders", "--to", "there", "--batch-size", "much"), "'much' is no size"),
        (("orders", "--to", "there", "--compact-files", "1"), "at least 2"),
    ],
)
def test_archive_says_what_is_missing_before_spark_is_started(options: tuple[str, ...], words: str) -> None:
    ended = holdfast("pipeline", "archive", *options)
    assert ended.code in (1, 2) and words in ended.err and "Traceback" not in ended.err


def test_flags_go_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "pipelines.toml"
    file.write_text(FILE)
    none = {"master": None, "conf": {}, "sent": None, "out": None}
    assert frame.settings("audit", file, KNOWN, none) == (
        "local[1]",
        {"spark.driver.memory": "1g"},
        {"sent": ["a"], "out": "from-file"},
    )
    given = {**none, "master": "local[2]", "conf": {"spark.driver.memory": "3g"}, "sent": ["b", "c"]}
    assert frame.settings("audit", file, KNOWN, given) == (
        "local[2]",
        {"spark.driver.memory": "3g"},
        {"sent": ["b", "c"], "out": "from-file"},
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[audit]\nsend = []", "there are out, sent"),
        ("[audit]\nsent = 'a'", "is to be a list"),
        ("cores = 2", "there are audit, conf, master"),
        ("[audit", "cannot be read as TOML"),
    ],
)
def test_file_that_makes_no_sense_is_told(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "pipelines.toml"
    file.write_text(text)
    with pytest.raises(BadPipelineSetting, match=words) as refused:
        frame.settings("audit", file, KNOWN, {})
    assert refused.value.code == "bad_option"


def test_code_of_the_connector_survives_spark() -> None:
    failed = from_spark("An error occurred: x.y.Z: [topic_not_found] there is no topic 'orders'\n at a.b.C")
    assert (failed.code, failed.message) == ("topic_not_found", "there is no topic 'orders'")
    worker = "An exception was thrown from the Python worker: \nTraceback (most recent call last):\n  File\n"
    told = from_spark(f"{worker}ModuleNotFoundError: No module named 'pyarrow'\n SQLSTATE: 38000\n at a.b.C")
    assert told.message == "Spark could not do it: ModuleNotFoundError: No module named 'pyarrow'"
    assert from_spark("[UNRESOLVED_COLUMN] no such column\n at").code == "pipeline_failed"
