"""A process that reads text for another one: started by `reader_processes.py`, not by people."""

import signal
import sys

from limba.config import environment

if __name__ == "__main__":
    # The process that started this one is asked to stop; it saves first, and then ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    environment.set_variables()
    with environment.quiet_imports():
        from limba.data.reader_processes import serve
    serve(int(sys.argv[1]))
