from vdali.export.plans.progress import PhaseTracker


def test_phases_inside_phases_count_for_the_step_they_are_in():
    seen = []
    tracker = PhaseTracker(seen.append)
    tracker.start("build", None, 4)
    tracker.step("build", 1)
    tracker.start("optimize", "build", 10)
    tracker.step("optimize", 4)
    assert (seen[-1].phase, seen[-1].fraction) == ("optimize", (2 + 0.5) / 4)
    tracker.finish("optimize")
    tracker.step("build", 3)
    tracker.finish("build")
    assert seen[-1].fraction == 1.0
    assert "took" not in str(seen[-1])


def test_the_fraction_never_falls_and_a_percent_is_told_once():
    seen = []
    tracker = PhaseTracker(seen.append)
    tracker.start("build", None, 1)
    tracker.start("first", "build", 10_000)
    for step in range(10_000):
        assert tracker.step("first", step)
    tracker.finish("first")
    tracker.start("second", "build", 10)
    fractions = [moment.fraction for moment in seen]
    assert fractions == sorted(fractions)
    assert len(seen) < 110


def test_an_error_of_the_receiver_stops_the_build_and_is_kept():
    error = KeyboardInterrupt()

    def fail(moment):
        raise error

    tracker = PhaseTracker(fail)
    tracker.start("build", None, 2)
    assert tracker.error is error
    assert tracker.step("build", 0) is False


def test_steps_of_a_phase_that_never_started_are_no_error():
    assert PhaseTracker(lambda moment: None).step("unknown", 3)
