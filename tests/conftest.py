"""Settings of the whole suite."""

import signal

# The shell starts a script's background jobs with Ctrl-C ignored, and all their children inherit that: tests that press
# it would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items) -> None:
    """What starts Ray is slow, wherever it stands."""
    for item in items:
        if "transfer_queue" in item.fixturenames:
            item.add_marker("slow")
