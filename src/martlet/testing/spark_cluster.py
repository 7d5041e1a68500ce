"""A standalone Spark cluster: a master and workers, each a process of its own, from pyspark alone.

The package on PyPI has all that a cluster needs, but for the scripts that start one.  A worker
starts a process for each application's executor, as on a real one; killed, it takes its executors
along.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from martlet.spark.java import java_home, logging_file, prepare_environment
from martlet.testing.ports import free_port

START_S = 120.0
"""How long the cluster may take until all workers are there, on a machine that is busy."""
_POLL_S = 0.1
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


class SparkCluster:
    """A master and workers on this machine.

    ::

        with SparkCluster(workers=2) as cluster:
            spark = spark_session("test", master=cluster.url)
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        cores: int = 1,
        memory_mb: int = 1024,
        host: str = "127.0.0.1",
    ) -> None:
        """Set up a cluster, which ``with`` starts; each worker has cores and MiB for executors.

        Args:
            host: the address at which the master and these workers listen.
        """
        self._count = workers
        self._host = host
        self._cores = cores
        self._memory_mb = memory_mb
        self._folder = tempfile.TemporaryDirectory(
            prefix="martlet-spark-", ignore_cleanup_errors=True
        )
        self._port, self._web_port = free_port(), free_port()
        self.url = f"spark://{host}:{self._port}"
        """The ``master`` for those that use it."""
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def kill_worker(self, number: int) -> None:
        """SIGKILL to a worker and to the executors that it has started."""
        process = self._workers[number]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def add_worker(self, host: str = "", inside: Sequence[str] = ()) -> None:
        """Start one more worker; it is there once `alive_workers` counts it.

        Args:
            host: the address at which it listens, if that is another one.
            inside: begins its command, such as one that enters a network namespace.
        """
        host = host or self._host
        number = len(self._workers)
        folder = Path(self._folder.name) / f"worker-{number}"
        self._workers.append(
            self._spawn(
                f"worker-{number}",
                *(_WORKER, self.url, "--host", host, "--port", "0", "--webui-port", "0"),
                *("--cores", str(self._cores), "--memory", f"{self._memory_mb}m"),
                *("--work-dir", str(folder)),
                host=host,
                inside=inside,
            )
        )

    def status(self) -> dict[str, Any]:
        """Return the master's state, as on its web page. Raises OSError: it does not answer."""
        with urllib.request.urlopen(
            f"http://{self._host}:{self._web_port}/json/", timeout=10
        ) as answer:
            status: dict[str, Any] = json.load(answer)
        return status

    @property
    def alive_workers(self) -> int:
        """How many workers the master counts on."""
        return sum(worker["state"] == "ALIVE" for worker in self.status()["workers"])

    def close(self) -> None:
        """End every process, and remove what they wrote."""
        for process in [*self._workers, *([self._master] if self._master else [])]:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._workers.clear()
        self._folder.cleanup()

    def _start(self) -> None:
        prepare_environment()
        self._master = self._spawn(
            "master",
            *(_MASTER, "--host", self._host, "--port", str(self._port)),
            *("--webui-port", str(self._web_port)),
            host=self._host,
        )
        for _ in range(self._count):
            self.add_worker()
        deadline_s = time.monotonic() + START_S
        while not self._is_complete():
            for process in [self._master, *self._workers]:
                if process.poll() is not None:
                    raise RuntimeError(f"a process of the cluster has ended: {self.logs()}")
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"no cluster after {START_S:.0f} s: {self.logs()}")
            time.sleep(_POLL_S)

    def _is_complete(self) -> bool:
        try:
            return self.alive_workers == self._count
        except OSError:
            return False

    def _spawn(
        self, name: str, *command: str, host: str, inside: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """Start a Java of Spark's, at the head of a process group of its own."""
        import pyspark

        home = Path(pyspark.__file__).parent
        # What Spark's start scripts would set.
        (library,) = (home / "jars").glob("scala-library-*.jar")
        scala = ".".join(library.stem.removeprefix("scala-library-").split(".")[:2])
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": scala,
            "SPARK_LOCAL_IP": host,
        }
        with (Path(self._folder.name) / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [
                    *inside,
                    *(java_home() / "bin" / "java", "-Xmx256m", "-XX:TieredStopAtLevel=1"),
                    f"-Dlog4j2.configurationFile={logging_file().as_uri()}",
                    *("-cp", f"{home / 'jars'}/*", *command),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder.name,
                env=environment,
                start_new_session=True,
            )

    def logs(self) -> str:
        """Return the ends of the logs of master and workers."""
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-2000:]}"
            for path in sorted(Path(self._folder.name).glob("*.log"))
        )
