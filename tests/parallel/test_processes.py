"""Tasks in several processes: what they give, what they tell, and what happens when one of them dies."""

import os
import signal

import psutil
import pytest
import torch

from tests.support.processes import Program
from tests.support.squares import DEADLY, LOGGED, ODD, WRONG, Squares
from truncate_kit.core.errors import DeviceError, TruncateKitError, UsageError
from truncate_kit.core.parallel import Processes

WEIGHTS = torch.tensor([5, 3])


def workers_of(process: int) -> list[psutil.Process]:
    """Processes that tasks run in: children of the server that Python forks them from."""
    return [
        worker
        for server in psutil.Process(process).children()
        if server.status() != psutil.STATUS_ZOMBIE and "multiprocessing.forkserver" in " ".join(server.cmdline())
        for worker in server.children()
    ]


def test_every_task_is_done_once_and_by_several(two_processes):
    said = []
    found = dict(two_processes.run(Squares(WEIGHTS, seconds=0.05), range(1, 21), said.append))
    assert {number: square for number, (square, _, _) in found.items()} == {n: 3 * n * n for n in range(1, 21)}
    assert {device for _, _, device in found.values()} == {"cpu"}
    processes = {process for _, process, _ in found.values()}
    assert len(processes) == 2
    assert os.getpid() not in processes
    assert sorted(message[1] for message in said if message[0] == "squared") == list(range(1, 21))
    assert {name for name, *steps in said if steps == [3, 3]} == {f"number {n}" for n in range(1, 21)}
    assert dict(two_processes.run(Squares(2 * WEIGHTS), [7], said.append))[7][0] == 6 * 49  # the new work


def test_tasks_are_drawn_as_workers_become_free(two_processes):
    drawn = []

    def numbers():
        for number in range(1, 12):
            drawn.append(number)
            yield number

    run = two_processes.run(Squares(WEIGHTS), numbers(), lambda _: None)
    next(run)
    assert len(drawn) <= 3
    run.close()


def test_a_lost_worker_ends_in_one_error_and_the_engine_goes_on(two_processes):
    with pytest.raises(DeviceError, match="A worker process died") as lost:
        list(two_processes.run(Squares(WEIGHTS), [DEADLY], lambda _: None))
    assert "to continue" in lost.value.hint
    assert dict(two_processes.run(Squares(WEIGHTS), [2], lambda _: None))[2][0] == 12


def test_errors_of_tasks_arrive_as_they_are(two_processes):
    with pytest.raises(TruncateKitError, match="epoch 1, step 3") as caught:
        list(two_processes.run(Squares(WEIGHTS), [WRONG], lambda _: None))
    assert "learning_rate" in caught.value.hint
    with pytest.raises(RuntimeError, match="OddError: 1 and 2"):
        list(two_processes.run(Squares(WEIGHTS), [ODD], lambda _: None))


def test_what_a_task_logs_is_logged_here(two_processes, caplog):
    """Nobody sees a worker's own standard error: that a batch went on in parts would never be said."""
    sent = []
    assert len(list(two_processes.run(Squares(WEIGHTS), [LOGGED, 1], sent.append))) == 2
    assert [record.getMessage() for record in caplog.records] == ["Not enough memory for a batch of 400."]
    assert caplog.records[0].name == "truncate_kit.core.hardware"
    assert all(isinstance(message, tuple) for message in sent)


def test_what_still_runs_is_stopped_when_the_caller_leaves(two_processes, tmp_path):
    run = two_processes.run(Squares(WEIGHTS, seconds=60, homes=tmp_path), [1, 2], lambda message: interrupt(message))

    def interrupt(message):
        if message[0] == "squared":
            assert list(tmp_path.iterdir())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(run)
    assert not workers_of(os.getpid())
    assert not list(tmp_path.iterdir())  # what they had unfolded goes with them
    assert dict(two_processes.run(Squares(WEIGHTS), [2], lambda _: None))[2][0] == 12


def test_more_processes_than_gpus_are_refused():
    with pytest.raises(UsageError, match="`count` 0 is out of range"):
        Processes(0)
    with pytest.raises(DeviceError, match="CUDA was asked for"):
        Processes(torch.cuda.device_count() + 1, device="cuda")


_LONG = """
from tests.support.squares import Squares
from truncate_kit.core.parallel import Processes
import sys, torch
with Processes(int(sys.argv[1])) as engine:
    for _ in engine.run(Squares(torch.tensor([5, 3]), seconds=0.3), range(1, 1000), print):
        print("found", flush=True)
"""


@pytest.mark.parametrize(("how", "count"), [(signal.SIGKILL, 2), (signal.SIGINT, 1)])
def test_no_worker_outlives_the_process_that_started_it(how, count):
    running = Program(_LONG, count)
    assert any("found" in line for line in running.stdout), "it ended early"
    workers = workers_of(running.pid)
    assert len(workers) == count
    running.kill(how)
    running.communicate()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
