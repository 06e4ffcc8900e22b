"""Runs numba's own tests of its driver, and prints for each how it ended; last the card's size.

Each module of tests has a process of its own, forked before anything has called the driver: what
one leaves behind is not the next one's.
"""

import os
import pkgutil
import sys
import unittest

import numba.cuda  # loaded once, for all of the processes
import numba.cuda.tests.cudadrv as tests


class Told(unittest.TestResult):
    """Says how each test ended, by the kind of its error."""

    def startTest(self, test):
        super().startTest(test)
        self.outcome = "ok"

    def addError(self, test, error):
        super().addError(test, error)
        self.outcome = "error " + error[0].__name__

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.outcome = "failure"

    def addSubTest(self, test, part, error):
        super().addSubTest(test, part, error)
        if error is not None:
            self.outcome = "part " + error[0].__name__

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcome = "skipped"

    def stopTest(self, test):
        super().stopTest(test)
        print("test", test.id().removeprefix(tests.__name__), self.outcome, sep="\t", flush=True)


def main():
    modules = [module.name for module in pkgutil.iter_modules(tests.__path__)]
    for name in modules:
        child = os.fork()
        if child == 0:
            loader = unittest.defaultTestLoader
            loader.loadTestsFromName(f"{tests.__name__}.{name}").run(Told())
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, f"{name} ended with {status}"
    total = numba.cuda.current_context().get_memory_info().total
    print("end", total, sep="\t", flush=True)


# Some tests start this file again in another process.
if __name__ == "__main__":
    main()
