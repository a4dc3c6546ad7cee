import os
import signal
import sys
import threading
import time
from types import ModuleType

import pytest

from peakfold.cli.interrupts import interruptible


def press():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(10):
        pass


def test_it_interrupts_and_puts_the_handlers_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)
    with pytest.raises(KeyboardInterrupt), interruptible():
        press()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)) == before


def test_the_compiler_is_left_to_end_first():
    compiler = ModuleType("numba.core.compiler")
    exec("def compiles(call):\n    call()\n    return 'compiled'\n", compiler.__dict__)
    done = []

    def work():
        done.append(compiler.compiles(press))
        time.sleep(5)

    with pytest.raises(KeyboardInterrupt), interruptible():
        work()
    assert done == ["compiled"]


def test_other_threads_change_nothing():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with interruptible():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


class Pressing:
    def __del__(self):
        press()


@pytest.mark.filterwarnings("error")
def test_one_that_python_drops_comes_again(capsys):
    before = sys.unraisablehook

    def work():
        kept = Pressing()
        del kept
        time.sleep(5)

    with pytest.raises(KeyboardInterrupt), interruptible():
        work()
    assert sys.unraisablehook is before
    assert capsys.readouterr().err == ""
