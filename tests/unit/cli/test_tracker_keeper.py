"""When a tracker that ended is started again."""

from meshnet.cli.tracker_keeper import LONGEST_PAUSE_SECONDS, WINDOW_SECONDS, Restarts


def test_it_is_started_at_once_and_later_when_it_ends_again_and_again():
    restarts, pauses = Restarts(), []
    for second in range(10):
        restarts, pause = restarts.after_death(float(second))
        pauses.append(pause)
    assert pauses[:4] == [0.0, 0.25, 0.5, 1.0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_SECONDS


def test_a_quiet_minute_makes_good():
    restarts, _ = Restarts().after_death(0.0)
    restarts, _ = restarts.after_death(1.0)
    _, pause = restarts.after_death(1.0 + WINDOW_SECONDS)
    assert pause == 0.0
