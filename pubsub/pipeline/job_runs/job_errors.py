"""The errors of jobs in one line, without the stacks of Java and Python around their cause."""

from __future__ import annotations

import re
import sys

from pyspark.errors import AnalysisException, StreamingQueryException

from pubsub.errors import PubSubError

FAILED = 3
# Errors of this package and of the system within the text of a Spark error.
_KNOWN_ERROR = re.compile(
    r"^(?:pubsub\.[\w.]+|(?:Connection\w*|FileNotFound|Permission|OS)Error): (.+)$"
)
# The text of an error of the system, with its file.
_SYSTEM_ERROR = re.compile(r"\[Errno \d+\] ([^:]+): '(.+)'")
# The last line of a stack of Python: the class of an exception and its text.
_CAUSE = re.compile(r"^((?:\w+\.)*\w+(?:Error|Exception|Warning)(?:: .+)?)$")
# The causes in a stack of Java; py4j begins the first with a colon.
_JAVA_CAUSE = re.compile(r"^(?:Caused by)?: (.+)$")
# Spark's text for two queries that begin the same batch.
_TWO_QUERIES = re.compile(r"Multiple streaming queries are concurrently using (\S+?)\.?(?:\s|$)")
# Java's errors of a full disk, which name no file.
_FULL_DISK = re.compile(r"java\.io\.IOException: (No space left on device|Disk quota exceeded)")
# Java's error of a file of the checkpoint, with the cause that the system gives.
_JAVA_FILE = re.compile(
    r"terminated with exception: (/.+) \(([^()]+)\)(?: SQLSTATE: \w+)*$", re.MULTILINE
)
# Spark's ids of a query, before the cause of its end.
_QUERY_IDS = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")
# The options of the source and the sink that the command line sets, and its own names for them.
_ARGUMENTS = {
    "url": "--url",
    "token": "--token-file",
    "tokenFile": "--token-file",
    "subscribe": "--subscribe",
    "subscribePattern": "--subscribe-pattern",
    "startingOffsets": "--starting",
    "startingTimestamp": "--starting",
}
_OPTION = re.compile(rf"\boption ({'|'.join(_ARGUMENTS)})\b")
# Separates the sentence in a Spark error from the error class and SQLSTATE around it.
_SPARK_MESSAGE = re.compile(r"^\s*\[[A-Z_.0-9]+\] (.*?)(?: SQLSTATE: \w+.*)?$", re.MULTILINE)


def print_error(error: Exception, verbose: bool) -> int:
    """Print the cause of an error, with its stack if ``verbose``, and return the exit code."""
    cause = explain(error)
    if verbose:
        print(error, file=sys.stderr)
    if cause is not None:
        cause = _OPTION.sub(lambda match: _ARGUMENTS[match[1]], cause)
        print(f"pubsub: {cause}", file=sys.stderr)
        return 1
    print(f"pubsub: {summarize(error)}; --debug shows the stack", file=sys.stderr)
    return FAILED


def summarize(error: BaseException) -> str:
    """Return the cause of an unexpected error in one line, without stacks.

    Spark puts stacks of Java and of Python around the cause: of a stack of Python, the cause is the
    last line.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [match[1] for match in map(_CAUSE.match, lines) if match]
    causes = causes or [match[1] for match in map(_JAVA_CAUSE.match, lines) if match]
    found = (causes or lines or [type(error).__name__])[-1 if causes else 0]
    return _QUERY_IDS.sub("", found).rstrip(".")


def explain(error: BaseException) -> str | None:
    """Return a one-line text for an error with a known cause, and None for any other."""
    if isinstance(error, PubSubError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    lines = str(error).splitlines()
    found = [match[1] for match in map(_KNOWN_ERROR.match, map(str.strip, lines)) if match]
    if found:
        return _SYSTEM_ERROR.sub(r"\2: \1", found[-1])
    two_queries = _TWO_QUERIES.search(str(error))
    if two_queries:
        return (
            f"{two_queries[1]}: another job uses this checkpoint; stop it, or give this job "
            "another directory with --checkpoint"
        )
    full = _FULL_DISK.search(str(error))
    if full:
        return (
            f"{full[1]}: the disk of the checkpoint, or of Spark's temporary files; make room, and "
            "run the job again"
        )
    file = _JAVA_FILE.search(str(error))
    if file:
        return f"{file[1]}: {file[2]}"
    if isinstance(error, AnalysisException) and not isinstance(error, StreamingQueryException):
        match = _SPARK_MESSAGE.search(str(error))
        return match[1] if match else lines[0]
    return None
