import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import filelock
import numpy as np
import pytest

import sb3_ora
from sb3_ora.study.runner import run_cells, run_process
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
    assert done.returncode == 1 and str(log) in done.stderr and "2 of 4 cells failed" in done.stderr
    assert "ValueError: tau must be a number in (0, 1], got 7" in log.read_text()
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
    from sb3_ora.study.__main__ import main

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
    from sb3_ora.study.__main__ import main

    study = write_study(tmp_path, TEXT)
    for cell in study.cells()[:2]:
        write_cell(cell)
    given = ["run", str(study.path), "--output", str(tmp_path / "out"), "--print-commands"]
    assert main(given) == 0
    assert capsys.readouterr().out.splitlines() == [study.cells()[2].shell_line]
    write_cell(study.cells()[2])
    assert main(given) == 0 and capsys.readouterr().out == ""
