from types import SimpleNamespace

import pytest

from recipe.common.trainer import watchdog


@pytest.mark.parametrize("progress", [(1, 0), (0, 1)])
def test_the_stall_clock_starts_again_with_every_response_and_every_finished_group(monkeypatch, progress):
    now = 0.0
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: now))
    stall = watchdog.StallWatch(10, "algorithm.r3.stall_timeout_s")
    responses, groups = progress
    for step in range(5):
        for now in (9.0 * step, 9.0 * step + 8):
            stall.see(responses * step, groups * step)
    now += 3
    told = f"stall_timeout_s=10 s .{4 * responses} responses of {4 * groups} finished groups"
    with pytest.raises(TimeoutError, match=told):
        stall.see(4 * responses, 4 * groups)
