"""Python with numpy (and its BLAS threads), random numbers, a generator, an open file."""
import hashlib
import random
import sys
import tempfile
import threading
import time

import numpy

random.seed(7)
generator = numpy.random.default_rng(7)
a = generator.random((300, 300))
file = tempfile.TemporaryFile("w+")
lock = threading.RLock()
lock.acquire()


def waiting():
    with lock:
        file.write("the thread was here\n")


thread = threading.Thread(target=waiting)
thread.start()
print("ready", flush=True)
digest = hashlib.sha256()
for step in range(150):
    a = a @ a.T
    a /= abs(a).max()
    a += generator.random((300, 300)) * 0.01
    digest.update(a.tobytes())
    file.write(f"{random.random()}\n")
    time.sleep(0.005)
lock.release()
thread.join()
file.seek(0)
digest.update(file.read().encode())
print(digest.hexdigest())
sys.exit(5)
