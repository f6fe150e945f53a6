"""What Spark itself logs while a pipeline's command runs: nothing, unless somebody asks for it.

What a pipeline has to say of a failure is one line, and Spark tells the same in pages of Java before it. Its own
setting `spark.log.level` brings them back: `--conf spark.log.level=WARN`. Who has a configuration of log4j keeps it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.pipelines.errors import BadPipelineSetting

LEVEL: Final = "spark.log.level"
LEVELS: Final = ("OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "ALL")
_FILE: Final = Path(__file__).with_name("log4j2.properties")
# Goes before `spark.driver.extraJavaOptions`, where others put theirs.
_DEFAULT_OPTIONS: Final = "spark.driver.defaultJavaOptions"
_CHOSEN: Final = ("log4j.configurationFile", "log4j2.configurationFile")


def quiet(given: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """Spark's settings with what it logs by, and the level to set when it has started; none where it is not ours."""
    conf = dict(given)
    level = conf.pop(LEVEL, None)
    if level is not None and level.upper() not in LEVELS:
        raise BadPipelineSetting(f"{LEVEL} is {level}; there are {', '.join(LEVELS)}")
    if _is_chosen(conf):
        return conf, level and level.upper()
    level = (level or LEVELS[0]).upper()
    ours = f'"-Dlog4j2.configurationFile={_FILE.as_uri()}" -Dholdfast.spark.log={level}'
    conf[_DEFAULT_OPTIONS] = " ".join(filter(None, (ours, conf.get(_DEFAULT_OPTIONS))))
    return conf, level


def _is_chosen(conf: Mapping[str, str]) -> bool:
    """Whether somebody has said how to log: by Java's options, or by a file in the directory of Spark's settings."""
    options = (conf.get("spark.driver.extraJavaOptions", ""), conf.get(_DEFAULT_OPTIONS, ""))
    elsewhere = (os.environ.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"))
    if any(name in each for each in (*options, *elsewhere) for name in _CHOSEN):
        return True
    directory = os.environ.get("SPARK_CONF_DIR")
    return directory is not None and any(Path(directory).glob("log4j2.*"))
