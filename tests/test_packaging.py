import compileall
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STARTUP = ROOT / "startup"
WATCHED = ["rl_zoo3.utils", "rl_zoo3.hyperparams_opt", "rl_zoo3.exp_manager"]


def python(code, *folders, options=(), **variables):
    """
    Run code in an interpreter that has read no .pth file but those in ``folders``.

    :return: what it printed.
    """
    start = f"import site, sys\nfor folder in {[str(folder) for folder in folders]}: site.addsitedir(folder)\n"
    env = {key: value for key, value in os.environ.items() if key != "SB3_ORA_NO_HOOK"} | variables
    command = [sys.executable, "-I", "-S", *options, "-c", start + code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def packages(tmp_path):
    """A folder with a stand-in for rl_zoo3, and one for sb3_ora that writes down what it is asked to patch."""

    def write(sb3_ora="PATCHED = []\ndef patch(module): PATCHED.append(module.__name__)", utils="ALGOS = {}"):
        folder = tmp_path / "packages"
        for name in ("rl_zoo3", "sb3_ora"):
            (folder / name).mkdir(parents=True)
            (folder / name / "__init__.py").touch()
        (folder / "rl_zoo3" / "utils.py").write_text(utils)
        for name in ("hyperparams_opt", "exp_manager", "train"):
            (folder / "rl_zoo3" / f"{name}.py").touch()
        (folder / "sb3_ora" / "zoo.py").write_text(sb3_ora)
        return folder

    return write


# The start-up hook


def test_hook_patches_three_modules_and_nothing_else(packages):
    code = """
import rl_zoo3.train, rl_zoo3.utils, json, rl_zoo3.hyperparams_opt, rl_zoo3.exp_manager
print(json.dumps(sys.modules["sb3_ora.zoo"].PATCHED))
"""
    assert json.loads(python(code, packages(), STARTUP)) == WATCHED


def test_hook_gives_modules_their_own_loader_back(packages):
    code = """
import rl_zoo3.utils as utils, inspect
print(type(utils.__loader__).__name__, utils.__spec__.loader is utils.__loader__, inspect.getsource(utils).strip())
"""
    assert python(code, packages(), STARTUP) == "SourceFileLoader True ALGOS = {}\n"


def test_hook_imports_nothing_heavy(tmp_path):
    (tmp_path / "other.pth").write_text("import sys")  # what reading any .pth file imports does not count
    code = f"""
before, finders = set(sys.modules), list(sys.meta_path)
site.addsitedir({str(STARTUP)!r})
print(sorted(set(sys.modules) - before), sys.meta_path[1:] == finders)
"""
    assert python(code, tmp_path) == "['sb3_ora_zoo_hook'] True\n"


def test_hook_starts_within_a_millisecond(tmp_path):
    folder = shutil.copytree(STARTUP, tmp_path / "startup")
    compileall.compile_dir(folder, quiet=1)  # as pip does
    code = f"""
import time, colorsys  # the first import is dearer than others
sys.path.append({str(folder)!r})
line = {(folder / "sb3_ora_zoo.pth").read_text()!r}
start = time.process_time()
exec(line)
print(time.process_time() - start, type(sys.meta_path[0]).__name__)
"""
    outputs = [python(code).split() for _ in range(15)]
    assert {name for _, name in outputs} == {"ZooFinder"}
    assert min(float(seconds) for seconds, _ in outputs) <= 1e-3  # a busy machine can only slow it down


def test_hook_is_installed_once():
    code = f"site.addsitedir({str(STARTUP)!r}); print([type(f).__name__ for f in sys.meta_path].count('ZooFinder'))"
    assert python(code, STARTUP) == "1\n"


def test_hook_can_be_switched_off(packages):
    code = "import rl_zoo3.utils; print('sb3_ora.zoo' in sys.modules, [type(f).__name__ for f in sys.meta_path])"
    printed = python(code, packages(), STARTUP, SB3_ORA_NO_HOOK="1")
    assert printed.startswith("False") and "ZooFinder" not in printed


def test_hook_without_sb3_ora_is_silent(packages):
    folder = packages()
    shutil.rmtree(folder / "sb3_ora")
    assert python("import rl_zoo3.utils; print(rl_zoo3.utils.ALGOS)", folder, STARTUP) == "{}\n"


@pytest.mark.parametrize("fault", ["import nonexistent_module", "1 / 0", "def patch(module): raise KeyError('fault')"])
def test_a_broken_sb3_ora_does_not_break_rl_zoo3(packages, fault):
    folder = packages(sb3_ora=fault)
    code = "import rl_zoo3.utils; print(rl_zoo3.utils.ALGOS)"
    printed = python(code, folder, STARTUP)
    assert printed.startswith("{}\n")
    assert printed.count("RuntimeWarning: sb3_ora could not register its algorithms with rl_zoo3") == 1
    assert python(code, folder, STARTUP, options=["-W", "error"]) == "{}\n"


def test_errors_of_rl_zoo3_pass_through(packages):
    code = """
try:
    import rl_zoo3.utils
except ZeroDivisionError:
    print("rl_zoo3.utils" in sys.modules, "sb3_ora.zoo" in sys.modules)
"""
    assert python(code, packages(utils="1 / 0"), STARTUP) == "False False\n"


def test_absent_rl_zoo3_is_reported_as_usual():
    code = """
import importlib.util
try:
    import rl_zoo3.utils
except ModuleNotFoundError as error:
    print(error)
sys.modules["rl_zoo3"] = type(sys)("rl_zoo3")
sys.modules["rl_zoo3"].__path__ = []
print(importlib.util.find_spec("rl_zoo3.utils"))
"""
    assert python(code, STARTUP) == "No module named 'rl_zoo3'\nNone\n"


def test_reloading_patches_again(packages):
    code = """
import importlib, rl_zoo3.utils
importlib.reload(rl_zoo3.utils)
print(sys.modules["sb3_ora.zoo"].PATCHED)
"""
    assert python(code, packages(), STARTUP) == "['rl_zoo3.utils', 'rl_zoo3.utils']\n"


def test_pth_file_without_its_module_is_silent(tmp_path):
    shutil.copy(STARTUP / "sb3_ora_zoo.pth", tmp_path)
    assert python("", tmp_path) == ""


def test_pth_file_is_one_import_line():
    lines = (STARTUP / "sb3_ora_zoo.pth").read_text().splitlines()
    assert len(lines) == 1 and lines[0].startswith("import ")  # site.py executes lines that start so


def test_start_file_names_the_same_function(monkeypatch):
    """From Python 3.15 on, each line of a .start file is a function to call (PEP 829)."""
    monkeypatch.syspath_prepend(str(STARTUP))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    (line,) = (STARTUP / "sb3_ora_zoo.start").read_text().splitlines()
    pkgutil.resolve_name(line)()
    assert [type(finder).__name__ for finder in sys.meta_path].count("ZooFinder") == 1


def test_literal_command_through_the_hook():
    """``python -m rl_zoo3.train --algo ora_iqn``, which refuses algorithms and environments it does not know."""
    code = f"""
import runpy
sys.path += {[str(ROOT), *filter(None, sys.path)]}
sys.argv = ["train", "--algo", "ora_iqn", "--env", "or_gym/Knapsack-v9"]
try:
    runpy.run_module("rl_zoo3.train", run_name="__main__", alter_sys=True)
except ValueError as error:
    print(error)
"""
    assert "or_gym/Knapsack-v9 not found in gym registry, you maybe meant or_gym/Knapsack-v" in python(code, STARTUP)


# Installation


@pytest.fixture
def checkout(tmp_path):
    """A copy of the source tree, as building writes into it."""
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "logs", "_build", "tests", "studies")
    return shutil.copytree(ROOT, tmp_path / "checkout", ignore=ignored)


@pytest.fixture
def environment(tmp_path):
    """A virtual environment that sees the packages of this one, but reads none of their .pth files."""
    venv.create(tmp_path / "env")
    executable = next(tmp_path.glob("env/[bS]*/python*"))
    (site_packages,) = [path for path in tmp_path.glob("env/**/site-packages") if path.is_dir()]
    here = Path(pytest.__file__).parent.parent
    (site_packages / "zz_parent.pth").write_text(f"{here}\n")
    return executable, site_packages


def run(*command, cwd):
    # Variables of a make that runs these tests would reach the one that is tested
    dropped = {"PYTHONPATH", "SB3_ORA_NO_HOOK", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"}
    env = {key: value for key, value in os.environ.items() if key not in dropped}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def install(environment, *what, cwd):
    pip = [sys.executable, "-m", "pip", "--python", environment[0]]
    run(*pip, "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", *what, cwd=cwd)


def build(kind, checkout, cwd):
    """:return: what to give to ``pip install``"""
    if kind in ("wheel", "sdist"):
        code = f"from setuptools import build_meta; build_meta.build_{kind}({str(cwd / 'dist')!r})"
        run(sys.executable, "-c", code, cwd=checkout)
        return [next((cwd / "dist").iterdir())]
    return {
        "folder": [checkout],
        "editable": ["-e", checkout],
        "editable, strict": ["--config-settings=editable_mode=strict", "-e", checkout],
    }[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist", "folder", "editable", "editable, strict"])
def test_installed_package_works_and_leaves_nothing(checkout, environment, tmp_path, kind):
    executable, site_packages = environment
    before = set(site_packages.rglob("*"))
    install(environment, *build(kind, checkout, tmp_path), cwd=tmp_path)

    (tmp_path / "elsewhere").mkdir()
    command = [executable, "-m", "rl_zoo3.train", "--algo", "ora_iqn", "--env", "CartPole-v1"]
    printed = run(*command, "-n", 60, "--eval-freq", -1, "-params", "learning_starts:50", cwd=tmp_path / "elsewhere")
    assert "Saving to logs/ora_iqn/CartPole-v1_1" in printed
    hyperparams = Path(re.search(r"Loading hyperparameters from: (.*)", printed)[1])
    assert hyperparams.read_text() == (ROOT / "hyperparams" / "ora_iqn.yml").read_text()
    assert site_packages in hyperparams.parents or kind.startswith("editable")
    if not kind.startswith("editable"):
        assert (site_packages / "sb3_ora" / "py.typed").is_file()

    run(sys.executable, "-m", "pip", "--python", executable, "uninstall", "--yes", "sb3_ora", cwd=tmp_path)
    assert set(site_packages.rglob("*")) == before


@pytest.mark.slow
def test_deleted_checkout_leaves_python_alone(checkout, environment, tmp_path):
    install(environment, "-e", checkout, cwd=tmp_path)
    shutil.rmtree(checkout)
    assert run(environment[0], "-c", "import rl_zoo3.utils as utils; print('iqn' in utils.ALGOS)", cwd=tmp_path) == "False\n"


def test_makefile_has_its_targets():
    targets = ["train", "test", "test-slow", "lint", "type", "format", "doc", "bench"]
    printed = run("make", "--dry-run", "VENV=/nowhere", "ARGS=--my-argument", *targets, cwd=ROOT)
    expected = "/nowhere/bin/python -m rl_zoo3.train --algo ora_iqn --env CartPole-v1 -P --my-argument"
    assert expected in printed.splitlines()
    assert printed.count("-m venv /nowhere") == 1 and printed.count("--my-argument") == len(targets) + 1  # format has two


def test_makefile_installs_once(tmp_path):
    stamp = tmp_path / "base.stamp"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()

    def commands():
        return run("make", "--dry-run", f"VENV={tmp_path}", "bench", cwd=ROOT).splitlines()

    assert len(commands()) == 3
    stamp.touch()
    assert commands() == [f"{tmp_path}/bin/python -m benchmarks "]
    os.utime(stamp, (0, 0))  # older than setup.cfg
    assert len(commands()) == 3
