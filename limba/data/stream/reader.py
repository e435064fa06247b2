"""A process that reads shards for a training process; `processes.py` starts it."""

import signal
import sys

from limba.config import environment

if __name__ == "__main__":
    # The process that started this one handles these signals: it saves first, and then ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    environment.set_variables()
    environment.set_logging()
    with environment.quiet_imports():
        from limba.data.stream.processes import serve
    serve(int(sys.argv[1]))
