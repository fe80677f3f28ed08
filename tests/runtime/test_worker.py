"""The worker process: what it computes, how it may end, and that nothing of it is left."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import roller
from roller.errors import CodegenError
from roller.runtime import worker
from roller.runtime.worker import run_isolated


def test_worker_runs_functions_and_stays():
    first = run_isolated(os.getpid)
    assert first != os.getpid() and run_isolated(os.getpid) == first
    assert run_isolated(divmod, 7, 2) == (3, 1)


def test_worker_raises_what_the_function_raises():
    with pytest.raises(ZeroDivisionError):
        run_isolated(divmod, 1, 0)


def test_crashes_and_hangs_are_errors_and_the_next_call_works():
    with pytest.raises(roller.KernelError, match="crashed its process: SIGABRT"):
        run_isolated(os.abort)
    with pytest.raises(CodegenError, match="exit status 3"):
        run_isolated(os._exit, 3, error=CodegenError)
    begin = time.perf_counter()
    with pytest.raises(roller.KernelError, match=r"longer than 0\.3 s"):
        run_isolated(time.sleep, 60, deadline_s=0.3)
    assert time.perf_counter() - begin < 5
    assert run_isolated(divmod, 7, 2) == (3, 1)


def test_a_worker_leaves_no_files_however_it_ends():
    for end, arguments, deadline in ((os.abort, (), 60), (os._exit, (0,), 60), (time.sleep, (60,), 0.3)):
        left = Path(run_isolated(tempfile.mkdtemp))
        assert left.is_dir()
        with pytest.raises(roller.KernelError):
            run_isolated(end, *arguments, deadline_s=deadline)
        assert not left.parent.exists()


def test_a_worker_that_died_between_calls_leaves_no_files():
    left, process = Path(run_isolated(tempfile.mkdtemp)), run_isolated(os.getpid)
    os.kill(process, signal.SIGKILL)
    worker._worker.process.wait()
    assert run_isolated(os.getpid) != process and not left.parent.exists()


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"])
def test_a_worker_whose_caller_is_gone_leaves_no_files(end):
    call = "import os, tempfile; from roller.runtime.worker import run_isolated; print(run_isolated(tempfile.mkdtemp), flush=True)"
    done = subprocess.run([sys.executable, "-c", f"{call}; {end}"], capture_output=True, text=True, check=False)
    folder = Path(done.stdout.strip()).parent
    assert "roller-worker-" in folder.name
    last = time.monotonic() + 30
    while folder.exists() and time.monotonic() < last:
        time.sleep(0.01)
    assert not folder.exists()


def test_a_worker_ends_with_its_caller_whatever_it_computes():
    """It was left behind, at work for nobody, where its caller was sent SIGTERM."""
    code = (
        "import os, time; from roller.runtime.worker import run_isolated; print(run_isolated(os.getpid), flush=True)\n"
        "run_isolated(time.sleep, 600)"
    )
    caller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    worker = int(caller.stdout.readline())
    time.sleep(0.2)  # until it is asleep
    caller.terminate()
    caller.wait()
    caller.stdout.close()
    last = time.monotonic() + 30
    while _alive(worker) and time.monotonic() < last:
        time.sleep(0.01)
    assert not _alive(worker)


def _alive(process):
    """Whether a process is there that has not ended, though nobody may have asked how."""
    try:
        os.kill(process, 0)
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_what_a_quiet_worker_said_is_told_when_it_crashes(capfd):
    for _ in range(2):  # what an earlier call said is not told again
        with pytest.raises(CodegenError) as caught:
            run_isolated(crashing, "no such register", error=CodegenError, quiet=True)
        assert str(caught.value) == "crashing crashed its process: SIGABRT\nno such register"
        assert run_isolated(os.write, 2, b"nothing of interest", quiet=True) == 19
    with pytest.raises(CodegenError, match=r"SIGABRT$"):
        run_isolated(os.abort, error=CodegenError, quiet=True)
    assert capfd.readouterr().err == ""
    run_isolated(os.write, 2, b"seen")
    assert capfd.readouterr().err == "seen"


def crashing(words):
    os.write(2, words.encode())
    os.abort()


def test_what_cannot_travel_is_said():
    with pytest.raises(roller.KernelError, match="cannot be sent"):
        run_isolated(lambda: 1)
    with pytest.raises(roller.KernelError, match="cannot be sent back"):
        run_isolated(memoryview, b"x")
