"""opforge set up where python3 is itself a virtual environment that holds torch, as in most containers; installed from
a wheel; without PyTorch.
"""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("ruff", "mypy", "pytest")


@pytest.mark.campaign
def test_the_torch_of_a_python_that_is_itself_an_environment_is_used(tmp_path):
    """--system-site-packages shows the base Python's packages, not that environment's: another torch was asked of the
    index, in vain. Its linter is there as a package, and was no command of .venv. What pip says without an index is
    one sentence.
    """
    venv.EnvBuilder(with_pip=False).create(tmp_path / "theirs")
    theirs = tmp_path / "theirs" / "bin" / "python"
    packages = Path(
        subprocess.run(
            [theirs, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    )
    for name, version in (("torch", "2.11.0+theirs"), ("triton", "3.6.0"), ("tilelang", "0.1.15"), ("psycopg", "3.2")):
        (packages / name).mkdir()
        (packages / name / "__init__.py").write_text(f"__version__ = {version!r}\n")
        (packages / f"{name}-{version}.dist-info").mkdir()
        (packages / f"{name}-{version}.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    # what else opforge needs is this environment's
    (packages / "others.pth").write_text("\n".join(path for path in sys.path if "site-packages" in path) + "\n")
    ruff = theirs.with_name("ruff")
    ruff.write_text("#!/bin/sh\necho theirs\n")
    ruff.chmod(0o755)
    checkout = tmp_path / "checkout"
    (checkout / "scripts").mkdir(parents=True)
    (checkout / "scripts" / "setup.sh").write_bytes((ROOT / "scripts" / "setup.sh").read_bytes())
    (checkout / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (checkout / "src").symlink_to(ROOT / "src")
    environment = {**os.environ, "PYTHON": str(theirs), "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        ["bash", "scripts/setup.sh"], cwd=checkout, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    asked = [checkout / ".venv" / "bin" / "python", "-c", "import torch; print(torch.__version__, torch.__file__)"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True, env=environment).stdout
    assert told.split() == ["2.11.0+theirs", str(packages / "torch" / "__init__.py")]
    tools = [subprocess.run([checkout / ".venv" / "bin" / tool, "--version"], capture_output=True) for tool in TOOLS]
    assert [tool.returncode for tool in tools] == [0, 0, 0] and tools[0].stdout == b"theirs\n"
    assert "Traceback" not in done.stderr and "ERROR" not in done.stderr
    said = "setup: pip could not install opforge (see .venv/pip.log); going on with what this machine has\n"
    assert done.stderr == said


@pytest.mark.parametrize("words", [["new", "gated", "--formula", "y = silu(x[n])"], ["verify", "softmax"]])
def test_without_pytorch_a_verb_says_what_to_install(tmp_path, words):
    """`opforge new --formula` ended in a trace: opforge installs no torch, which is the user's own."""
    run = "import sys; sys.modules['torch'] = None; from opforge.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", run, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "OPFORGE_STORE": str(tmp_path / "s.sqlite")},
    )
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert "needs PyTorch, which is not installed. Install it with: pip install torch" in done.stderr


@pytest.mark.campaign
def test_the_wheel_works_from_another_folder(tmp_path):
    """Headers, templates and shipped evidence are in it; the command makes, compiles and verifies an operator."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    built = subprocess.run(
        [*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT], capture_output=True, text=True, timeout=300
    )
    if built.returncode and "hatchling" in built.stderr:
        pytest.skip("building a wheel needs hatchling, which cannot be had here")
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("opforge-*.whl")
    listed = subprocess.run(["git", "ls-files", "opforge"], cwd=ROOT / "src", capture_output=True, text=True)
    if listed.returncode == 0:
        assert set(listed.stdout.split()) <= set(zipfile.ZipFile(wheel).namelist())

    venv.EnvBuilder(with_pip=False).create(tmp_path / "empty")
    python = tmp_path / "empty" / "bin" / "python"
    installed = [*pip, "--python", python, "install", "--no-deps", wheel]
    subprocess.run(installed, check=True, capture_output=True, timeout=120)
    # what opforge needs is this environment's; opforge itself is there by a .pth, which is not followed twice
    (packages,) = (tmp_path / "empty" / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text("\n".join(path for path in sys.path if "site-packages" in path) + "\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {**os.environ, "OPFORGE_STORE": str(tmp_path / "s.sqlite"), "OPFORGE_CACHE": str(tmp_path / "cache")}
    environment.pop("PYTHONPATH", None)

    def opforge(*words):
        command = [tmp_path / "empty" / "bin" / "opforge", *words]
        return subprocess.run(
            command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=True, timeout=300
        ).stdout

    where = subprocess.run(
        [python, "-c", "import opforge; print(opforge.__file__)"],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert where.stdout.startswith(str(packages))
    assert "softmax" in opforge("list")
    opforge("doctor")
    opforge("new", "squares", "--home", "mine")
    judged = opforge(
        "--home", "mine", "verify", "squares", "-i", "cpp_flat", "-i", "triton_flat", "--dtype", "float32", "--quick"
    )
    assert judged.count(" Pass ") == 2
