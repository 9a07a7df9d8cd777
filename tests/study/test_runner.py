import argparse
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import filelock
import numpy as np
import pytest
import yaml
from rl_zoo3.exp_manager import ExperimentManager

import sb3_ora
from sb3_ora.study.__main__ import main
from sb3_ora.study.checking import ZOO_KEYS, check_cells
from sb3_ora.study.definition import load_study
from sb3_ora.study.runner import Outcome, run_cells, run_process
from sb3_ora.study.state import state_of
from tests.study.made_up import write_cell, write_study

ROOT = str(Path(sb3_ora.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])}

TEXT = """
environments: {CartPole-v1: {}}
seeds: 3
evaluation: {freq: 100, episodes: 2, final_episodes: 2}
configs:
  tuned:
    hyperparams: {n_timesteps: 300, n_envs: 1, learning_starts: 50, train_freq: 4, gradient_steps: 1}
methods:
  ora-cvar: {algo: ora_iqn, hyperparams: {n_heads: 3}}
"""


def script(code):
    """A command like that of a cell."""
    return [sys.executable, "-c", code]


def test_process_and_its_output():
    outcome = run_process(
        "cell", script("import sys; print('why'); sys.exit(3 if sys.argv[1:] == ['--end-with-parent'] else 0)"), "log"
    )
    assert outcome == ("cell", "log", 3, "why")
    code = "import os, sys; print(os.environ['OMP_NUM_THREADS'], sys.stdin is not None)"
    assert run_process("cell", script(code), "log") == ("cell", "log", 0, "1 True")


def test_failures_do_not_stop_the_others(tmp_path, monkeypatch, capsys):
    pytest.importorskip("joblib", reason="needs joblib")
    study = write_study(tmp_path, TEXT)
    done, *_ = cells = study.cells()
    write_cell(done)
    code = f"import sys, os; open(os.path.join({str(tmp_path)!r}, 'ran' + sys.argv[1]), 'w'); sys.exit(sys.argv[1] == '2')"
    monkeypatch.setattr(type(done), "command", property(lambda cell: [*script(code), str(cell.seed)]))
    failed = run_cells(cells)
    assert sorted(path.name for path in tmp_path.glob("ran*")) == ["ran2", "ran3"]
    assert [(outcome.name, outcome.code) for outcome in failed] == [("ora-cvar/ora_iqn/CartPole-v1_2", 1)]
    printed = "".join(capsys.readouterr())
    assert "3/3" in printed and f"failed: {failed[0].name}, see {cells[1].folder / 'cell.log'}" in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "slurm"}, "backend must be one of 'threading', 'dask', 'ray', got 'slurm'"),
        ({"address": "tcp://1.2.3.4:5"}, "address='tcp://1.2.3.4:5' has no meaning with backend='threading'"),
    ],
)
def test_wrong_engines(options, message):
    pytest.importorskip("joblib", reason="needs joblib")
    with pytest.raises(ValueError, match=message):
        run_cells([], **options)


@pytest.mark.parametrize(
    ("backend", "hint"),
    [("dask", r"the extra \[cluster\]: pip install -c constraints.txt '.\[cluster\]'"), ("ray", "ray: pip install ray")],
)
def test_engines_that_are_not_installed(tmp_path, monkeypatch, capsys, backend, hint):
    study = write_study(tmp_path, TEXT)
    monkeypatch.setattr("sb3_ora.study.runner.find_spec", lambda name: None)
    assert main(["run", str(study.path), "--output", str(tmp_path / "out"), "--backend", backend]) == 2
    assert re.fullmatch(f"error: backend '{backend}' needs {hint}\n", capsys.readouterr().err)
    assert not study.root.exists()


def test_cells_of_other_settings_start_no_process(tmp_path, monkeypatch, capsys):
    study = write_study(tmp_path, TEXT)
    for cell in study.cells()[:2]:
        write_cell(cell)
    before = {path: path.read_bytes() for path in study.root.rglob("*") if path.is_file()}
    study.path.write_text(TEXT.replace("n_timesteps: 300", "n_timesteps: 400"))
    started = []
    monkeypatch.setattr(
        "sb3_ora.study.runner.run_process", lambda name, *rest: started.append(name) or Outcome(name, "", 0, "")
    )
    assert main(["run", str(study.path), "--output", str(tmp_path / "out")]) == 1
    assert started == [study.cells()[2].name]
    printed = capsys.readouterr()
    why = "holds results of other settings: remove it, or choose another output (n_timesteps: 300 -> 400)"
    for cell in study.cells()[:2]:
        assert f"not run: {cell.name}: {cell.folder} {why}\n" in printed.out
    assert "2 of 3 cells failed:" in printed.err and printed.err.count(why) == 2
    assert {path: path.read_bytes() for path in before} == before


def test_the_list_of_failures_says_why(tmp_path, monkeypatch, capsys):
    study = write_study(tmp_path, TEXT)
    log = study.cells()[0].folder / "cell.log"
    outcomes = iter(
        [
            Outcome("a", str(log), 1, f"a warning\nValueError: tau must be a number\n{log}"),
            Outcome("b", "b.log", -9, ""),
            Outcome("c", "c.log", 0, ""),
        ]
    )
    monkeypatch.setattr("sb3_ora.study.runner.run_process", lambda *_: next(outcomes))
    assert main(["run", str(study.path), "--output", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.splitlines()[-3:] == [
        "2 of 3 cells failed:",
        f"  {log}: ValueError: tau must be a number",
        "  b.log: ended with -9",
    ]


# Before the first cell


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("algo: ora_iqn", "algo: ora_iqm", "methods.ora-cvar.algo must be one of .*'ora_iqn'.*, got 'ora_iqm'"),
        ("CartPole-v1", "CartPol-v1", "environments: 'CartPol-v1' is not registered with Gymnasium; similar: 'CartPole-v1'.*"),
        (
            "CartPole-v1",
            "'a.b:CartPole-v1'",
            r"environments: 'a.b:CartPole-v1' must be given as 'CartPole-v1', with .* \[a.b\]",
        ),
        ("CartPole-v1", "ALE/Pong-v5", r"environments: ALE/Pong-v5 needs the extra \[atari\]: .*"),
        (
            "n_heads",
            "n_head",
            "each key of hyperparams for methods.ora-cvar must be an argument of ORAIQN or a key of rl-zoo3, got 'n_head'; "
            "similar: 'n_heads'.*",
        ),
        ("n_heads: 3", "seed: 3", "each key of hyperparams for methods.ora-cvar must be .* got 'seed'.*"),
        ("seeds: 3", "packages: [no_such_package]", "packages: 'no_such_package' cannot be imported: No module named .*"),
        ("  tuned:", "  tuned:\n    base: none", "hyperparams for methods.ora-cvar must have 'policy', as its base is 'none'"),
    ],
)
def test_mistakes_are_found_before_the_first_cell(tmp_path, monkeypatch, capsys, old, new, message):
    monkeypatch.setattr("sb3_ora.zoo.extras.find_spec", lambda name: None)
    assert old in TEXT
    study = write_study(tmp_path, TEXT.replace(old, new, 1))
    given = [str(study.path), "--output", str(tmp_path / "out")]
    assert main(["run", *given]) == 2
    assert re.fullmatch(f"error: {message}\n", capsys.readouterr().err)
    assert not study.root.exists()
    assert main(["run", *given, "--print-commands"]) == main(["status", *given]) == 0


def test_environments_of_packages_are_found(tmp_path):
    study = write_study(tmp_path, TEXT.replace("CartPole-v1", "Packaged-v0") + "packages: [tests.study.packaged]\n")
    check_cells(study.cells())


@pytest.mark.parametrize("name", ["ablation", "atari", "cartpole", "ensemble_size", "knapsack", "nano_drone", "zoo"])
def test_nothing_is_wrong_with_the_studies_of_the_paper(name, monkeypatch):
    monkeypatch.setattr("sb3_ora.study.checking.check_environment", lambda env_id: None)  # may be of extras
    path = Path(ROOT) / "studies" / f"{name}.yml"
    for config in yaml.safe_load(path.read_text())["configs"]:
        check_cells(load_study(path, config, seeds=1).cells())


def test_keys_of_rl_zoo3_are_taken_by_it(tmp_path):
    """Each key that the check lets through is one that rl-zoo3 takes away before it calls the algorithm."""
    values = {
        "n_timesteps": 10,
        "n_envs": 1,
        "normalize": False,
        "frame_stack": 1,
        "env_wrapper": None,
        "vec_env_wrapper": None,
    }
    values |= {"callback": None, "monitor_kwargs": {}}
    assert {*values, "noise_type", "noise_std"} == {*ZOO_KEYS}
    manager = ExperimentManager(argparse.Namespace(), "dqn", "CartPole-v1", str(tmp_path), verbose=0)
    assert manager._preprocess_hyperparams({**values, "gamma": 0.9})[0] == {"gamma": 0.9}


def study_command(*arguments, cwd, check=True):
    """Run ``python -m sb3_ora.study``."""
    command = [sys.executable, "-m", "sb3_ora.study", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def numbers(study):
    """Every number that a study's cells have measured, but for times and memory."""
    found = {}
    for cell in study.cells():
        for name in ("episodes.csv", "final.csv", "risk.csv"):
            found[cell.name, name] = (cell.folder / name).read_text()
        with np.load(cell.folder / "evaluations.npz") as evaluations:
            found[cell.name, "evaluations"] = {key: evaluations[key].tolist() for key in evaluations}
    return found


def assert_as_alone(study, folder):
    """The study is complete, with the numbers of one that ran cell after cell on this machine."""
    assert [state_of(cell) for cell in study.cells()] == ["complete"] * 3
    folder.mkdir()
    alone = write_study(folder, TEXT)
    study_command("run", "made_up.yml", "--output", "out", "--jobs", 1, cwd=folder)
    assert numbers(study) == numbers(alone)


def test_a_reader_that_has_had_enough(tmp_path):
    """As `--print-commands | head` does with many cells."""
    write_study(tmp_path, TEXT)
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "sb3_ora.study", "run", "made_up.yml", "--print-commands"]
    try:
        done = subprocess.run(
            command, cwd=tmp_path, env=ENVIRONMENT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=600
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.slow
def test_commands(tmp_path):
    """What a user types: print, run with a broken method, look, repair, run the rest, report, and rl-zoo3's own plots."""
    pytest.importorskip("joblib", reason="needs joblib")
    text = TEXT.replace("seeds: 3", "seeds: 2") + "  iqn: {algo: iqn, hyperparams: {tau: 7}}\n"
    study = write_study(tmp_path, text)
    given = ("made_up.yml", "--output", "out")
    lines = study_command("run", *given, "--print-commands", cwd=tmp_path).stdout.splitlines()
    assert lines == [cell.shell_line for cell in study.cells()]
    assert state_of(study.cells()[0]) == "missing"
    subprocess.run(lines[0], shell=True, cwd=tmp_path, env=ENVIRONMENT, check=True, timeout=600)
    assert state_of(study.cells()[0]) == "complete"

    done = study_command("run", *given, "--jobs", 2, cwd=tmp_path, check=False)
    log = study.root / "iqn" / "iqn" / "CartPole-v1_1" / "cell.log"
    why = "ValueError: tau must be a number in (0, 1], got 7"
    assert done.returncode == 1 and f"{log}: {why}" in done.stderr and "2 of 4 cells failed" in done.stderr
    assert why in log.read_text()
    printed = study_command("status", *given, cwd=tmp_path).stdout
    assert "2 complete, 2 incomplete" in printed and str(log) in printed

    (tmp_path / "made_up.yml").write_text(text.replace("tau: 7", "tau: 1"))
    study_command("run", *given, "--jobs", 2, "--only", "iqn", cwd=tmp_path)
    assert "4 complete" in study_command("status", *given, cwd=tmp_path).stdout
    page = Path(study_command("report", *given, cwd=tmp_path).stdout.strip())
    assert page == study.root / "report" / "report.md" and "IQN" in page.read_text().upper()

    plots = ["all_plots", "-a", "ora_iqn", "iqn", "-e", "CartPole-v1", "-f", "out/made_up-tuned/ora-cvar"]
    plots += ["out/made_up-tuned/iqn", "--no-display", "-print"]
    command = [sys.executable, "-m", "sb3_ora.zoo"]
    done = subprocess.run([*command, *plots], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "CartPole-v1-ORA_IQN-out/made_up-tuned/ora-cvar: 2" in done.stdout, (
        done.stdout + done.stderr
    )
    curves = ["plot_train", "-a", "ora_iqn", "-e", "CartPole-v1", "-f", "out/made_up-tuned/ora-cvar", "-w", "2"]
    subprocess.run([*command, *curves], cwd=tmp_path, env=ENVIRONMENT, check=True, timeout=600)
    watch = ["enjoy", "--algo", "ora_iqn", "--env", "CartPole-v1", "-f", "out/made_up-tuned/ora-cvar"]
    watch += ["--exp-id", "2", "--no-render", "-n", "20"]
    subprocess.run([*command, *watch], cwd=tmp_path, env=ENVIRONMENT, check=True, timeout=600)


@pytest.fixture
def cluster(tmp_path):
    """A Dask scheduler and two workers, each a process; the address and the processes of the workers."""
    pytest.importorskip("joblib", reason="needs joblib")
    pytest.importorskip("distributed", reason="needs dask[distributed]")

    def start(name, *arguments):
        code = f"from distributed.cli.dask_{name} import main; main()"
        options = ["--scheduler-file", "scheduler.json", "--no-dashboard", *arguments]
        return subprocess.Popen(
            [sys.executable, "-c", code, *options], cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.DEVNULL
        )

    scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "0")
    workers = [start("worker", "--nworkers", "1", "--nthreads", "1", "--no-nanny", "--host", "127.0.0.1") for _ in range(2)]
    yield str(tmp_path / "scheduler.json"), workers
    for process in (*workers, scheduler):
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_worker_that_dies_changes_no_number(tmp_path, cluster):
    from distributed import Client

    study = write_study(tmp_path, TEXT)
    file, workers = cluster
    with Client(scheduler_file=file, timeout=60) as client:
        client.wait_for_workers(2, timeout=60)
        address = client.scheduler.address
        pids = {pid: worker for worker, pid in client.run(os.getpid).items()}
        arguments = ["run", "made_up.yml", "--output", "out", "--backend", "dask", "--address", address]
        command = [sys.executable, "-m", "sb3_ora.study", *arguments]
        run = subprocess.Popen(
            command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        victim = pids[workers[0].pid]
        while not (client.processing()[victim] and any(state_of(cell) == "running" for cell in study.cells())):
            assert run.poll() is None, run.communicate()[0]
            time.sleep(0.05)
        workers[0].kill()
        output, _ = run.communicate(timeout=600)
    assert run.returncode == 0 and workers[1].poll() is None, output
    assert_as_alone(study, tmp_path / "alone")


@pytest.mark.slow
def test_a_worker_of_ray_that_dies_changes_no_number(tmp_path):
    """A Ray cluster on this machine, which the command starts itself."""
    pytest.importorskip("ray", reason="needs ray")
    study = write_study(tmp_path, TEXT)
    command = [sys.executable, "-m", "sb3_ora.study", "run", "made_up.yml", "--output", "out", "--backend", "ray"]
    run = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def workers():
        titles = {path.parent.name: path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")}
        return [int(pid) for pid, title in titles.items() if title.startswith(b"ray::run_process")]

    while not (workers() and any(state_of(cell) == "running" for cell in study.cells())):
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.05)
    os.kill(workers()[0], signal.SIGKILL)
    output, _ = run.communicate(timeout=600)
    assert run.returncode == 0, output
    assert_as_alone(study, tmp_path / "alone")


def test_why_a_process_failed():
    outcome = run_process("cell", [sys.executable, "-S", "-c", "raise SystemExit('why')"], "log")
    assert outcome == ("cell", "log", 1, "why")


def test_cells_end_with_the_process_that_started_them(tmp_path):
    """However it ends, and however many run at once: none goes on, and none is begun."""
    code = f"""
import sys
from sb3_ora.study.runner import _on_joblib
wait = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); os.read(0, 1)"
calls = [(str(i), [sys.executable, "-c", wait, {str(tmp_path)!r} + "/" + str(i)], "log") for i in range(6)]
list(_on_joblib(calls, 2, "threading", None))
"""
    parent = subprocess.Popen([sys.executable, "-c", code], env=ENVIRONMENT)
    deadline = time.monotonic() + 120
    while len([path for path in tmp_path.iterdir() if path.read_text()]) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    begun = sorted(tmp_path.iterdir())
    assert len(begun) == 2
    for path in begun:
        while (Path("/proc") / path.read_text() / "cmdline").exists() and time.monotonic() < deadline:
            if not (Path("/proc") / path.read_text() / "cmdline").read_bytes():  # ended, not yet collected
                break
            time.sleep(0.05)
        assert time.monotonic() < deadline
    time.sleep(0.5)
    assert sorted(tmp_path.iterdir()) == begun


def test_a_cell_that_runs_elsewhere_has_not_failed(tmp_path, monkeypatch, capsys):
    study = write_study(tmp_path, TEXT)
    monkeypatch.setattr(type(study.cells()[0]), "command", property(lambda cell: script("import sys; sys.exit(75)")))
    assert run_cells(study.cells()) == []
    assert "left to the process that runs it: ora-cvar/ora_iqn/CartPole-v1_1" in "".join(capsys.readouterr())


def test_the_process_of_a_cell_that_runs_elsewhere(tmp_path, monkeypatch, capsys):
    study = write_study(tmp_path, TEXT)
    cell = study.cells()[0]
    cell.folder.mkdir(parents=True)
    (cell.folder / "cell.log").write_text("what it says\n")
    monkeypatch.setattr("sb3_ora.study.cell.WAIT_FOR_LOCK", 0)
    with filelock.FileLock(cell.folder / "cell.lock"):
        assert main(cell.command[3:]) == 75
    assert "could not be acquired" in capsys.readouterr().err
    assert "Traceback" not in (cell.folder / "cell.log").read_text()


def test_nothing_to_print(tmp_path, capsys):
    study = write_study(tmp_path, TEXT)
    for cell in study.cells()[:2]:
        write_cell(cell)
    given = ["run", str(study.path), "--output", str(tmp_path / "out"), "--print-commands"]
    assert main(given) == 0
    assert capsys.readouterr().out.splitlines() == [study.cells()[2].shell_line]
    write_cell(study.cells()[2])
    assert main(given) == 0 and capsys.readouterr().out == ""
