"""What the program asks of the C library, by its effect: memory that was freed is not mapped again."""

import platform
import subprocess
import sys

import pytest

FAULTS_OF_THE_LAST_ROUND = """
import resource, sys
import numpy as np
from kvcache_engine.freed_memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(768 << 10, np.uint8) for _ in range(40)]
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    del arrays
print(faults)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc knows the request")
def test_freed_memory_stays_with_the_program():
    """In a process of its own: the request cannot be taken back."""

    def faults(how):
        command = [sys.executable, "-c", FAULTS_OF_THE_LAST_ROUND, how]
        return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)

    given_back = faults("give back")
    assert given_back > 1000
    assert faults("keep") < given_back / 10
