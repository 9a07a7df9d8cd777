import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import sb3_ora

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(sb3_ora.__file__).parents[1]), *sys.path])}
#: Run by its path: importing the package takes seconds
PROCESS = str(Path(sb3_ora.__file__).parent / "study" / "process.py")


def test_output_goes_to_the_log(tmp_path):
    script = """
import subprocess, sys
from pathlib import Path
from runpy import run_path
output_to = run_path(sys.argv[1])["output_to"]
with output_to(Path("a/log")):
    print("one")
    subprocess.run([sys.executable, "-c", "print('two')"], check=True)
print("three")
"""
    done = subprocess.run([sys.executable, "-c", script, PROCESS], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "three\n" and (tmp_path / "a" / "log").read_text() == "one\ntwo\n"


def test_a_cell_ends_with_the_process_that_started_it(tmp_path):
    code = f"from runpy import run_path; run_path({PROCESS!r})['end_with_parent'](); open('up', 'w')"
    code += "; import time; time.sleep(120)"
    parent = f"import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', {code!r}], stdin=subprocess.PIPE)"
    parent += "; print(p.pid, flush=True); time.sleep(120)"
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    wait_until((tmp_path / "up").exists)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    wait_until(lambda: not alive(child))


def alive(pid):
    """Whether a process runs; one that waits to be collected does not."""
    state = Path(f"/proc/{pid}/stat")
    if Path("/proc").is_dir():
        return state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_the_package_does_not_import_what_only_studies_need():
    code = (
        "import sys, sb3_ora; print({'joblib', 'scipy', 'pandas', 'matplotlib', 'rl_zoo3', 'sb3_ora.study'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
