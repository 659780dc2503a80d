"""`python -m services.drafter`: the drafter as a program."""

from adasd.rpc.drafter import DrafterService
from services.drafter.settings import DrafterSettings
from services.replica.drafting import DrafterServicer
from services.replica.program import Offer, Program, run
from services.replica.traces import TracedDrafter
from services.tracing import OFF


def offering(program: Program, settings: DrafterSettings) -> Offer:
    servicer, tracing = DrafterServicer(program.host, settings.max_candidates), program.tracing
    return Offer([DrafterService(servicer if tracing is OFF else TracedDrafter(servicer, tracing))])


if __name__ == "__main__":
    run(DrafterSettings, "drafter", offering)
