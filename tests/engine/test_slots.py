"""Slots: their buffers, and where the stages of a lane need events for them."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import FakeDevice
from vdali.engine.device import HostDevice
from vdali.engine.slots import BufferSpec, allocate_slots
from vdali.engine.stages import Lane, Role, Stage, steps_of

PIXELS = {"pixels": BufferSpec((4, 2, 2, 3), np.uint8)}


def nothing(value, _lease):
    return value


def lane_of(stages, *, shares: bool = False, slots=PIXELS) -> Lane:
    device = FakeDevice()
    host = {Role.READ, Role.FINISH}
    streams = {role: device.new_stream(role.value, is_asynchronous=role not in host) for role in Role}
    if shares:
        streams = dict.fromkeys(Role, streams[Role.READ])
    return Lane(streams, stages, allocate_slots(device, slots, 2))


def test_a_slot_has_the_buffers_of_its_spec():
    first, second = allocate_slots(HostDevice(), {**PIXELS, "out": BufferSpec((4, 9), "f4", pinned=True)}, 2)
    assert first.buffers["pixels"].shape == (4, 2, 2, 3)
    assert first.buffers["out"].dtype == np.float32
    assert not np.shares_memory(first.buffers["pixels"], second.buffers["pixels"])
    assert BufferSpec((4, 9), "f4").nbytes == 144


def test_stages_on_one_stream_are_one_step_without_events():
    stages = (
        Stage("read", Role.READ, nothing),
        Stage("decode", Role.IN, nothing, takes=("pixels",)),
        Stage("infer", Role.COMPUTE, nothing, frees=("pixels",)),
        Stage("finish", Role.FINISH, nothing),
    )
    (step,) = steps_of(lane_of(stages, shares=True))
    assert (step.stages, step.takes, step.frees) == (stages, (), ())


def test_a_buffer_that_crosses_streams_is_waited_for_where_it_is_taken():
    stages = (
        Stage("read", Role.READ, nothing),
        Stage("decode", Role.IN, nothing, takes=("pixels",)),
        Stage("resize", Role.IN, nothing),
        Stage("infer", Role.COMPUTE, nothing, frees=("pixels",)),
        Stage("more", Role.COMPUTE, nothing),
        Stage("finish", Role.FINISH, nothing),
    )
    steps = steps_of(lane_of(stages))
    assert [[stage.name for stage in step.stages] for step in steps] == [
        ["read"],
        ["decode", "resize"],
        ["infer"],
        ["more"],
        ["finish"],
    ]
    assert [(step.takes, step.frees) for step in steps] == [
        ((), ()),
        (("pixels",), ()),
        ((), ("pixels",)),
        ((), ()),
        ((), ()),
    ]


FINISH = Stage("finish", Role.FINISH, nothing)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((), "no stage"),
        ((Stage("infer", Role.COMPUTE, nothing),), "'infer', runs on an asynchronous stream"),
        ((Stage("a", Role.IN, nothing, takes=("pixels",)), FINISH), r"take \['pixels'\] and free \[\]"),
        ((FINISH,), r"have the buffers \['pixels'\], the stages take \[\]"),
        (
            (Stage("a", Role.IN, nothing, frees=("pixels",)), FINISH),
            "'a' takes or frees the buffer 'pixels' out of turn",
        ),
        (
            (Stage("a", Role.IN, nothing, takes=("pixels",)), Stage("b", Role.IN, nothing, takes=("pixels",)), FINISH),
            "'b' takes or frees the buffer 'pixels' out of turn",
        ),
        (
            (
                Stage("a", Role.IN, nothing, takes=("pixels",), frees=("pixels",)),
                Stage("b", Role.FINISH, nothing, frees=("pixels",)),
            ),
            "'b' takes or frees",
        ),
    ],
)
def test_a_lane_that_cannot_work_is_refused_and_says_why(stages, message):
    with pytest.raises(ValueError, match=message):
        steps_of(lane_of(stages))


def test_memory_goes_back_when_a_slot_does_not_fit():
    class SmallDevice(FakeDevice):
        def allocate_pinned(self, shape, dtype):
            if self.live == 3:
                raise MemoryError
            return self.allocate(shape, dtype)

    device = SmallDevice()
    with pytest.raises(MemoryError):
        allocate_slots(device, {**PIXELS, "host": BufferSpec((4,), "f4", pinned=True)}, 3)
    assert device.live == 0
