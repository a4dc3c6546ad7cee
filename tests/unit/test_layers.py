"""No module outside the bridge, the workloads, the pipeline and the command line brings torch along."""

import subprocess
import sys

import pytest

ROOMS = ["errors", "options", "budget", "ir", "ops", "cost", "graph", "plan", "report"]
HEAVY = ["torch", "transformers", "monai"]
IMPORT_ALL = f"""
import importlib, pkgutil, sys
room = importlib.import_module("peakfold." + sys.argv[1])
for module in pkgutil.walk_packages(getattr(room, "__path__", []), room.__name__ + "."):
    importlib.import_module(module.name)
print(*(name for name in {HEAVY} if name in sys.modules))
"""


@pytest.mark.parametrize("room", ROOMS)
def test_importing_a_room_imports_no_torch(room):
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL, room], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_importing_the_package_imports_no_torch():
    code = "import sys, peakfold; print(peakfold.__version__, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == "False"
