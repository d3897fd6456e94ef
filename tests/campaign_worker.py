"""A campaign in a process of its own, for the test that kills it: in a module, because fresh processes import it by name."""

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
    kernels={"linear": 30, "norm": 30, "attention_decode": 30},
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
