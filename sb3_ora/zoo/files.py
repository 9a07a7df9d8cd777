"""Where hyperparameters lie, and what they are."""

import functools
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

import sb3_ora


def default_config(algo: str) -> str:
    """
    :param algo: name of one of the algorithms of this package
    :return: path of its hyperparameter file: inside the installed package, or beside it in a source checkout
    """
    package = Path(sb3_ora.__file__).parent
    folder = package / "hyperparams"
    return str((folder if folder.is_dir() else package.parent / "hyperparams") / f"{algo}.yml")


def default_hyperparameters(algo: str, env_id: str) -> dict[str, Any]:
    """
    What the hyperparameter files say, without importing rl-zoo3.

    :param algo: name of an algorithm in rl-zoo3
    :param env_id: environment
    :return: its entry by name; where it has none, those among which rl-zoo3 chooses, ``atari`` and ``default``
    """
    path = Path(default_config(algo))
    if not path.is_file():
        spec = find_spec("rl_zoo3")
        folders = [] if spec is None else spec.submodule_search_locations or []
        files = [Path(folder, "hyperparams", f"{algo}.yml") for folder in folders]
        path = next(filter(Path.is_file, files), path)
    if not path.is_file():
        return {}
    content = _read(path, path.stat().st_mtime_ns)
    names = [env_id] if env_id in content else ["atari", "default"]
    return {name: content[name] for name in names if name in content}


@functools.lru_cache(maxsize=16)
def _read(path: Path, changed: int) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())
