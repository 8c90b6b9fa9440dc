"""scripts/setup.sh where python3 is itself a virtual environment that holds torch, as in most containers."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_the_torch_of_a_python_that_is_itself_an_environment_is_used(tmp_path):
    """--system-site-packages shows the base Python's packages, not that environment's: another torch was asked of the
    index, in vain.
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
