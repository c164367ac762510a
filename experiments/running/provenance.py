"""Where a figure comes from: the machine, the software versions and the source revision."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True)
class Provenance:
    """What every row records about its origin; the fields are columns of the results file.

    `cores` is the number of processors this process may use. `git_rev` and `git_dirty` ("true" or
    "false") describe the checkout that dtypelab runs from, and are empty when it is installed
    otherwise.
    """

    cpu: str
    cores: int
    os: str
    python: str
    numpy: str
    llvmlite: str
    dtypelab_version: str
    git_rev: str
    git_dirty: str


@cache
def collect() -> Provenance:
    """The provenance of this process, read once."""
    rev, dirty = _git(Path(__file__).resolve().parents[2])
    return Provenance(
        cpu=_cpu(),
        cores=_cores(),
        os=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        numpy=_version("numpy"),
        llvmlite=_version("llvmlite"),
        dtypelab_version=dtypelab_version(),
        git_rev=rev,
        git_dirty=dirty,
    )


def dtypelab_version() -> str:
    """Version of the installed distribution, or of pyproject.toml in a plain checkout."""
    installed = _version("dtypelab")
    if installed:
        return installed
    pyproject = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if not pyproject.is_file():
        return ""
    import tomllib

    project = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("project", {})
    return str(project.get("version", ""))


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _cpu() -> str:
    """Marketing name of the processor; the architecture's name where the system has none."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in {"model name", "Model", "cpu model"}:
                return value.strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _git(root: Path) -> tuple[str, str]:
    """Revision and dirtiness of the checkout at `root`; two empty strings when it is not one."""
    # Only a checkout of dtypelab itself counts, not a larger repository around an installed copy.
    if not (root / ".git").exists():
        return "", ""
    rev = _run_git(root, "rev-parse", "HEAD")
    if not rev:
        return "", ""
    # Results files are outputs of sweeps: writing one must not make the next row "dirty".
    status = _run_git(root, "status", "--porcelain", "--", ".", ":(exclude)results")
    return rev, "" if status is None else str(bool(status)).lower()


def _run_git(root: Path, *arguments: str) -> str | None:
    # Where git calls us, in a hook for example, these name the repository that it works on.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
