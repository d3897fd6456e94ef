"""A campaign in a process of its own, for the test that kills it: in a module, because fresh processes import it by name."""

import contextlib
import os
import tempfile
import time
from functools import partial
from multiprocessing.connection import Connection

from pie_p.operators import Operator
from pie_p.profiling.campaign import CampaignPlan, run_campaign
from pie_p.profiling.clocks import SimulatedClock
from pie_p.profiling.laws import Timeline
from pie_p.profiling.measurement import Procedure
from pie_p.profiling.progress import Progress
from pie_p.profiling.simulated_host import SimulatedGpu, SimulatedKernel, simulated_bench

PLAN = CampaignPlan(
    name="killed",
    gpu="h100-sxm-80gb",
    kernels={"linear": 16, "norm": 16, "attention_decode": 16},
    procedure=Procedure(enough_s=1.6, enough_iterations=8, trials=2, rise_s=0.1, cool_down_s=0.1, warm_up_s=0.1, most_spread=1.0),
)


def work(pipe: Connection, folder: str, pause_s: float) -> None:
    """Run the campaign, and tell after each point how many are done."""
    bench, clock, board = simulated_bench(SimulatedGpu())

    def tell(progress: Progress) -> None:
        pipe.send(progress.done)

    run_campaign(PLAN, folder, bench, partial(_slow, pause_s, clock, board), on_progress=tell)
    pipe.send("finished")


def _slow(pause_s: float, clock: SimulatedClock, board: Timeline, operator: Operator) -> SimulatedKernel:
    time.sleep(pause_s)
    return SimulatedKernel(operator, SimulatedGpu(), clock, board)


def starter(orders: Connection) -> None:
    """Start a campaign for each order (pipe, folder, pause) in a forked process, and give its id back; until the order is None."""
    _warm_up()
    while (order := orders.recv()) is not None:
        pipe, folder, pause_s = order
        identity = os.fork()
        if identity == 0:
            orders.close()
            with contextlib.suppress(BaseException):
                work(pipe, folder, pause_s)
            os._exit(0)
        pipe.close()
        orders.send(identity)
    with contextlib.suppress(ChildProcessError):  # until all that were started are gone
        while True:
            os.wait()


def _warm_up() -> None:
    """Everything that a first campaign imports and works out."""
    with tempfile.TemporaryDirectory() as folder:
        bench, clock, board = simulated_bench(SimulatedGpu())
        small = PLAN.model_copy(update={"kernels": {"norm": 1}})
        run_campaign(small, folder, bench, partial(_slow, 0.0, clock, board))
    PLAN.points()
