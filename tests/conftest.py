"""Settings of the whole suite."""

import signal

# The shell starts a script's background jobs with Ctrl-C ignored, and all their children inherit that: tests that press
# it would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)
