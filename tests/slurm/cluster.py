"""A SLURM cluster of two nodes on this machine: its own daemons, ports, keys and folders.

An installed SLURM is not disturbed: SLURM_CONF assigns each process to this cluster.
"""

import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path

import processes

PROGRAMS = ["munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo", "setpriv"]
NODES = ["n1", "n2"]
CPUS = 2

PROJECT = Path(__file__).parents[2]

# The file whose words are counted, in the folder where commands run.
TEXT = "LICENSE"

START_SECONDS_MAX = 50
STEP_SECONDS_MAX = 30
JOB_SECONDS_MAX = 40
STOP_SECONDS_MAX = 10
POLL_SECONDS = 0.05

FINAL_STATES = ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"]

# Nothing of it needs control groups, which containers may not have. Each node has its own folder for temporary files, as
# real ones do. A job that begins again waits until its old credentials are invalid (cred_expire, seconds).
CONFIGURATION = """\
ClusterName=millstream-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
MailProg=/bin/true
SlurmdTimeout=5
KillWait=1
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus}
PartitionName=test Nodes=n1,n2 Default=YES MaxTime=5 State=UP
"""


def missing():
    """The missing requirements of a cluster, for people to read; empty if there are none."""
    if os.geteuid() != 0:
        return "its daemons need root"
    path = search_path()
    absent = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    return f"{', '.join(absent)} not found" if absent else ""


def search_path():
    # The daemons lie in folders that are not on the PATH of every user.
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


class Cluster:
    """Two nodes with two CPUs each, as SLURM counts them."""

    def __init__(self, folder):
        self.folder = folder
        self.daemons = []
        # Steps outlive the daemon of their node.
        self.warden = processes.warden(folder)
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MILLSTREAM_", "SLURM_", "PMI", "OMPI_"))
        }
        self.environment |= {
            "PATH": search_path(),
            "SLURM_CONF": str(folder / "slurm.conf"),
            "TMPDIR": str(folder / "tmp"),
            # The nodes are one machine: Open MPI would mix up their shared memory, and it may have no network but its own.
            "OMPI_MCA_btl": "self,tcp",
            "OMPI_MCA_btl_tcp_if_include": "lo",
        }
        try:
            self._configure()
            self._start()
        except BaseException:
            self.stop()
            raise

    def run(self, *command):
        """Runs a command as a user of the cluster would."""
        return self._run(command, self.folder, self.environment)

    def srun(self, mpi, options, *command):
        """Runs a command as the tasks of a job."""
        return self.run("srun", f"--mpi={mpi}", *options.split(), *command)

    def submit(self, folder, path):
        """Hands in the script `job.sh` of a folder, to be run there with this search path."""
        done = self._run(["sbatch", "--parsable", "job.sh"], folder, self.environment | {"PATH": path})
        assert done.returncode == 0, done.stderr
        return Job(done.stdout.strip(), folder)

    def wait_for_end(self, job):
        """The state in which a job has ended."""
        state = ""

        def has_ended():
            nonlocal state
            shown = self.run("scontrol", "--oneliner", "show", "job", job.number).stdout
            state = re.search(r" JobState=(\w+)", shown)[1]
            return state in FINAL_STATES

        self.wait(f"the end of job {job.number}", has_ended, JOB_SECONDS_MAX)
        return state

    def fail_node(self, name):
        """Has SLURM think that a node has failed, and come back."""
        down = self.run("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=test")
        assert down.returncode == 0, down.stderr

        def is_back():
            # The node also comes back by itself, when it registers next; a node that is not down cannot be resumed.
            self.run("scontrol", "update", f"NodeName={name}", "State=RESUME")
            state = self.run("sinfo", "--noheader", f"--nodes={name}", "--format=%T").stdout
            return state and not state.startswith("down")

        self.wait(f"return of {name}", is_back)

    def wait(self, what, is_there, seconds_max=START_SECONDS_MAX):
        end = time.monotonic() + seconds_max
        while not is_there():
            ended = [daemon.args for daemon in self.daemons if daemon.poll() is not None]
            if ended or time.monotonic() > end:
                raise RuntimeError(f"no {what} in time, {ended} ended:\n{self.logs()}")
            time.sleep(POLL_SECONDS)

    def logs(self):
        """The ends of all daemons' logs."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-2000:]}" for log in logs)

    def stop(self):
        """Ends the daemons and all that they started."""
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.warden.stdin.close()
        assert self.warden.wait(2 * STOP_SECONDS_MAX) == 0, "processes of the cluster do not end"

    def _configure(self):
        for name in ["state", "tmp"] + [f"{name}-{node}" for name in ["spool", "tmp"] for node in NODES]:
            (self.folder / name).mkdir()
        shutil.copy(PROJECT / TEXT, self.folder)
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        (self.folder / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={self.folder}/cgroup\n")
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                folder=self.folder,
                host=socket.gethostname().split(".")[0],
                ports=free_ports(1 + len(NODES)),
                cpus=CPUS,
            )
        )

    def _start(self):
        folder = self.folder
        self._daemon(
            "munged",
            ["munged", "--foreground", "--force", f"--key-file={folder}/munge.key"]
            + [f"--socket={folder}/munge.socket", f"--pid-file={folder}/munge.pid"]
            + [f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed"],
        )
        self.wait("munged", lambda: (folder / "munge.socket").exists())
        self._daemon("slurmctld", ["slurmctld", "-D", "-i"])
        for node in NODES:
            self._daemon(f"slurmd-{node}", ["slurmd", "-D", "-N", node])
        self.wait("the nodes", self._is_ready)

    def _daemon(self, name, command):
        with open(self.folder / f"{name}.log", "ab") as log:
            daemon = processes.start(
                command, env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.daemons.append(daemon)

    def _run(self, command, folder, environment):
        return processes.run(
            [str(word) for word in command],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=STEP_SECONDS_MAX,
        )

    def _is_ready(self):
        states = self.run("sinfo", "--Node", "--noheader", "--format=%T").stdout.split()
        return states == ["idle"] * len(NODES)


class Job:
    """The submitted job."""

    def __init__(self, number, folder):
        self.number = number
        self.folder = folder

    def output(self):
        return self._read("out")

    def errors(self):
        return self._read("err")

    def _read(self, ending):
        files = list(self.folder.glob(f"*-{self.number}.{ending}"))
        return files[0].read_text() if files else ""


def free_ports(count):
    """Ports without a listener."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
