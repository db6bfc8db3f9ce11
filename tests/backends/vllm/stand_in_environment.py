"""An environment with the stand-in for vLLM, and models of the backend."""

import json
import subprocess
import sys
from pathlib import Path

STAND_IN = Path(__file__).parent / "stand_in"
KIND = "instance_group { kind: KIND_MODEL }"


def make_environment(directory: Path) -> Path:
    """An environment that has the stand-in beside the packages of this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    packages = next((directory / "lib").glob("python3*/site-packages"))
    own = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "more.pth").write_text("\n".join([str(STAND_IN), *own]))
    return directory


def write_model(repository: Path, name: str, engine: dict[str, object], extra: str = KIND) -> Path:
    """Write a model with arguments of the engine, and return its version directory."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f'backend: "vllm"\n{extra}')
    (version / "model.json").write_text(json.dumps(engine))
    return version
