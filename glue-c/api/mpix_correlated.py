"""For Python programs that want to request checkpoints themselves.

>>> import mpix_correlated
>>> number = mpix_correlated.checkpoint(all=True, wait=True)   # None: there is none
>>> mpix_correlated.restarts()
0
"""

import ctypes
import os

_here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libmpix_correlated.so")
_library = ctypes.CDLL(_here if os.path.exists(_here) else "libmpix_correlated.so")

SET, ALL, WAIT, EXIT = 0, 1, 2, 4


def checkpoint(all=False, wait=False, then_exit=False):
    """Request a checkpoint; its number, or None if the job is not protected or it failed."""
    number = ctypes.c_ulonglong()
    flags = (ALL if all else SET) | (WAIT if wait else 0) | (EXIT if then_exit else 0)
    code = _library.MPIX_Correlated_checkpoint(flags, ctypes.byref(number))
    return number.value if code == 0 else None


def restarts():
    """How often this process was restored from an image."""
    return _library.MPIX_Correlated_restarts()
