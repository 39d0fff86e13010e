"""For Python programs that want to say themselves when a checkpoint is taken.

>>> import mpix_correlated
>>> line = mpix_correlated.checkpoint(all=True, wait=True)   # None: there is none
>>> mpix_correlated.restarts()
0
"""

import ctypes
import os

_here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libmpix_correlated.so")
_library = ctypes.CDLL(_here if os.path.exists(_here) else "libmpix_correlated.so")

SET, ALL, WAIT, EXIT = 0, 1, 2, 4


def checkpoint(all=False, wait=False, then_exit=False):
    """Ask for a line; its number, or None if the job is not protected or the line failed."""
    line = ctypes.c_ulonglong()
    flags = (ALL if all else SET) | (WAIT if wait else 0) | (EXIT if then_exit else 0)
    code = _library.MPIX_Correlated_checkpoint(flags, ctypes.byref(line))
    return line.value if code == 0 else None


def restarts():
    """How often this process was restored from an image."""
    return _library.MPIX_Correlated_restarts()
