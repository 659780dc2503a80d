"""`python -m services.drafter`: the drafter as a program."""

from adasd.rpc.drafter import DrafterService
from services.drafter.servicer import DrafterServicer
from services.drafter.settings import DrafterSettings
from services.replica.hosting import ReplicaHost
from services.replica.program import run
from services.replica.traces import TracedDrafter
from services.tracing import OFF, Tracing


def service(host: ReplicaHost, settings: DrafterSettings, tracing: Tracing) -> DrafterService:
    servicer = DrafterServicer(host, settings.max_candidates)
    return DrafterService(servicer if tracing is OFF else TracedDrafter(servicer, tracing))


if __name__ == "__main__":
    run(DrafterSettings, "drafter", service)
